"""Were refusals right? By hindsight for each of them, and by those that were let in to see.

Hindsight (`leadsman.hindsight`) asks the worker that routing would have sent it to, the one of the
least expected TTFT: what was served there just before and after says between which two moments it
would have begun, and where the bound lies between these the answer is not known. Probes (and all
that shadow mode let in) were served, so each says it for sure, of few. The two ask the same and
share nothing, so what they say must agree within their intervals.

Ignored: what those that were refused would have done to each other, had all been let in; and that
other workers might have been in time.
"""

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_JUDGED: Final = """
WITH weighed AS (
  SELECT request, time, allowed_queue_wait, allowed_ttft, unnest(from_json(
    decision->'$.candidates',
    '[{"price": {"worker": "VARCHAR", "queue_wait": "DOUBLE", "own_prefill": "DOUBLE"}}]'
  )).price AS price
  FROM decisions
  WHERE kind = 'refused' AND (getvariable('model') IS NULL OR model = getvariable('model'))
    AND (getvariable('since') IS NULL OR time >= getvariable('since'))
), refused AS (
  SELECT any_value(time) AS at,
    arg_min(price.worker, price.queue_wait + price.own_prefill) AS worker,
    arg_min(least(allowed_queue_wait, allowed_ttft - price.own_prefill),
      price.queue_wait + price.own_prefill) AS allowed
  FROM weighed GROUP BY request, time
), served AS (
  SELECT worker, time - (ended_at - sent_at) AS at, time - (ended_at - sent_at)
    + greatest(0, ttft - (predicted_ttft - predicted_queue_wait)) AS began
  FROM outcomes WHERE ttft IS NOT NULL AND predicted_ttft IS NOT NULL
), between_two AS (
  SELECT refused.*, after.began - refused.at AS most,
    greatest(0, coalesce(before.began - refused.at, 0)) AS least
  FROM refused
  ASOF LEFT JOIN served AS after ON refused.worker = after.worker AND refused.at < after.at
  ASOF LEFT JOIN served AS before ON refused.worker = before.worker AND refused.at >= before.at
)
SELECT count(*) FILTER (most <= allowed),
  count(*) FILTER (least > allowed AND (most <= allowed) IS NOT TRUE), count(*)
FROM between_two WHERE allowed IS NOT NULL
"""

_PROBED: Final = """
SELECT count(*) FILTER (kept), count(*) FILTER (NOT kept), count(*)
FROM (
  SELECT coalesce(waited <= allowed_queue_wait, true)
    AND coalesce(ttft <= allowed_ttft, true) AS kept
  FROM priced
  WHERE set_aside IS NOT NULL AND (allowed_queue_wait IS NOT NULL OR allowed_ttft IS NOT NULL)
)
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """Refusals with a bound, by what became or would have become of them.

    asked: all of them; false_alarms: would have been in time; right: would not; else unknown.
    """

    false_alarms: int
    right: int
    asked: int

    @property
    def known(self) -> int:
        """Of how many it is known."""
        return self.false_alarms + self.right

    @property
    def share(self) -> float | None:
        """Which share of those of which it is known were false alarms."""
        return self.false_alarms / self.known if self.known else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the true share lies, at 95 %."""
        return wilson(self.false_alarms, self.known) if self.known else None


def judge_refusals(database: "DuckDBPyConnection") -> tuple[Judged, Judged]:
    """Judge what was refused by hindsight, and what was let in although refused by its outcome.

    Reads the views and variables that `grade` has made.
    """
    [hindsight] = database.execute(_JUDGED).fetchall()
    [probed] = database.execute(_PROBED).fetchall()
    return Judged(*hindsight), Judged(*probed)


def wilson(hits: int, tries: int, z: float = 1.96) -> tuple[float, float]:
    """Bound a share by its score interval, which holds for few tries and for shares near 0 too.

    Source: E. B. Wilson, Journal of the American Statistical Association 22, 1927.
    """
    share, spread = hits / tries, z * z / tries
    middle = share + spread / 2
    half = z * sqrt(share * (1 - share) / tries + spread / (4 * tries))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
