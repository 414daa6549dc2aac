"""How good the predictions were, by everything that may bear on it: one pass over the outcomes.

Each served and priced outcome falls into one bin of error (2 % wide) in one group of each kind: its
model, its worker, its size, how old the state was, the hour, and whether the engine found in its
cache what was credited. Counts a group and bin are all that shares and percentiles need, so ten
million records become some ten thousand rows in one aggregation, and percentiles are right to 2 %.

Outcomes that stand for others count as many times (`weight`). The cells are those of
`leadsman.grade`; a wait is the real TTFT less the predicted own prefill, as nobody reports it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from leadsman.grade import Cell
from leadsman.units import Seconds, Tokens

from leadsman_bench.seeing.records import Kept
from leadsman_bench.seeing.refusals import Judged, judge_refusals

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

KINDS: Final = ("model", "worker", "size", "age", "hour", "cache", "curve")
BIN: Final = 1.02
LEAST: Final[Seconds] = 1e-4
MOST_HOURS: Final = 24
EVERYONE: Final = (1 << len(KINDS)) - 1
"""GROUPING_ID of the group of all: a bit for each kind that it is not grouped by."""
CELLS: Final = (Cell.IN_TIME, Cell.UNDERPREDICTED, Cell.FALSE_ALARM, Cell.LATE)
SIZES: Final = ("< 1K", "1K - 4K", "4K - 16K", "16K - 64K", "64K - 256K", "> 256K")
AGES: Final = ("< 0.1 s", "0.1 - 1 s", "1 - 5 s", "5 - 30 s", "> 30 s", "unknown")

KEPT: Final[Mapping[str, Kept]] = MappingProxyType(
    {
        "outcomes": Kept(
            (
                "request", "time", "sent_at", "ended_at", "weight", "set_aside",
                "worker", "model", "curve", "trust", "state_age", "block_size",
                "allowed_queue_wait", "allowed_ttft", "queue_wait_bound", "ttft_bound",
                "predicted_queue_wait", "predicted_ttft", "ttft", "queued_requests",
                "prompt_tokens", "held", "predicted_cached", "cached_tokens",
            )
        ),
        "decisions": Kept(
            (
                "request", "time", "kind", "model", "reason",
                "allowed_queue_wait", "allowed_ttft", "decision",
            ),
            "kind = 'refused'",
        ),
    }
)  # fmt: skip
"""What is read here and of refusals (`refusals`), several times over."""

_PRICED: Final = """
CREATE OR REPLACE TEMP VIEW priced AS
SELECT *,
  greatest(0, ttft - (predicted_ttft - predicted_queue_wait)) AS waited,
  abs(ttft - predicted_ttft) AS off
FROM outcomes
WHERE ttft IS NOT NULL AND predicted_ttft IS NOT NULL
  AND (getvariable('model') IS NULL OR model = getvariable('model'))
  AND (getvariable('since') IS NULL OR time >= getvariable('since'))
"""

_BINNED: Final = """
CREATE OR REPLACE TEMP TABLE binned AS
WITH marked AS (
  SELECT weight, off, ttft, predicted_ttft, model, worker, coalesce(curve, 'unknown') AS curve,
    CASE WHEN prompt_tokens < 1024 THEN 0 WHEN prompt_tokens < 4096 THEN 1
      WHEN prompt_tokens < 16384 THEN 2 WHEN prompt_tokens < 65536 THEN 3
      WHEN prompt_tokens < 262144 THEN 4 ELSE 5 END AS size,
    CASE WHEN state_age IS NULL THEN 5 WHEN state_age < 0.1 THEN 0 WHEN state_age < 1 THEN 1
      WHEN state_age < 5 THEN 2 WHEN state_age < 30 THEN 3 ELSE 4 END AS age,
    CAST(floor((time - $first) / $width) AS INTEGER) AS hour,
    CASE WHEN cached_tokens IS NULL THEN 'unknown'
      WHEN cached_tokens // coalesce(block_size, 1) = predicted_cached // coalesce(block_size, 1)
      THEN 'match' ELSE 'mismatch' END AS cache,
    CAST(round(ln(greatest(off, $least)) / $bin) AS INTEGER) AS bin,
    allowed_queue_wait IS NOT NULL OR allowed_ttft IS NOT NULL AS bounded,
    coalesce(queue_wait_bound <= allowed_queue_wait, true)
      AND coalesce(ttft_bound <= allowed_ttft, true) AS predicted_kept,
    coalesce(waited <= allowed_queue_wait, true) AND coalesce(ttft <= allowed_ttft, true) AS kept,
    ttft <= ttft_bound AS covered
  FROM priced
)
SELECT GROUPING_ID(model, worker, size, age, hour, cache, curve) AS which,
  model, worker, size, age, hour, cache, curve, bin,
  sum(weight) AS requests,
  sum(weight) FILTER (off <= 1) AS within_1s,
  sum(weight) FILTER (off <= 10) AS within_10s,
  sum(weight) FILTER (off <= greatest(0.1, 0.15 * ttft)) AS within_relative,
  sum(weight * ttft) AS real, sum(weight * predicted_ttft) AS predicted,
  sum(weight) FILTER (cache <> 'unknown') AS told,
  sum(weight) FILTER (cache = 'mismatch') AS mismatched,
  sum(weight) FILTER (covered) AS covered,
  sum(weight) FILTER (bounded AND predicted_kept AND kept) AS in_time,
  sum(weight) FILTER (bounded AND predicted_kept AND NOT kept) AS underpredicted,
  sum(weight) FILTER (bounded AND NOT predicted_kept AND kept) AS false_alarm,
  sum(weight) FILTER (bounded AND NOT predicted_kept AND NOT kept) AS late
FROM marked
GROUP BY GROUPING SETS ((bin), (model, bin), (worker, bin), (size, bin), (age, bin), (hour, bin),
  (cache, bin), (curve, bin))
"""

_SUMMED: Final = """
WITH running AS (
  SELECT *, sum(requests) OVER (PARTITION BY which, model, worker, size, age, hour, cache, curve
    ORDER BY bin) AS up_to
  FROM binned
), shares AS (
  SELECT which, model, worker, size, age, hour, cache, curve,
    sum(requests) AS requests, sum(within_1s) AS within_1s, sum(within_10s) AS within_10s,
    sum(within_relative) AS within_relative, sum(real) AS real, sum(predicted) AS predicted,
    sum(told) AS told, sum(mismatched) AS mismatched, sum(covered) AS covered,
    sum(in_time) AS in_time, sum(underpredicted) AS underpredicted,
    sum(false_alarm) AS false_alarm, sum(late) AS late
  FROM binned GROUP BY ALL
)
SELECT s.*, min(r.bin) FILTER (r.up_to >= 0.5 * s.requests) AS p50,
  min(r.bin) FILTER (r.up_to >= 0.9 * s.requests) AS p90,
  min(r.bin) FILTER (r.up_to >= 0.99 * s.requests) AS p99
FROM shares s JOIN running r ON s.which = r.which
  AND s.model IS NOT DISTINCT FROM r.model AND s.worker IS NOT DISTINCT FROM r.worker
  AND s.size IS NOT DISTINCT FROM r.size AND s.age IS NOT DISTINCT FROM r.age
  AND s.hour IS NOT DISTINCT FROM r.hour AND s.cache IS NOT DISTINCT FROM r.cache
  AND s.curve IS NOT DISTINCT FROM r.curve
GROUP BY ALL ORDER BY ALL
"""

_REUSE: Final = """
SELECT model, sum(weight * prompt_tokens), sum(weight * held), sum(weight * predicted_cached),
  sum(weight * cached_tokens), sum(weight * greatest(held - predicted_cached, 0)),
  sum(weight * greatest(predicted_cached - cached_tokens, 0)),
  sum(weight * greatest(cached_tokens - predicted_cached, 0))
FROM priced WHERE held IS NOT NULL AND predicted_cached IS NOT NULL AND cached_tokens IS NOT NULL
GROUP BY model ORDER BY 2 DESC
"""

_DRIFT: Final = """
SELECT worker, sum(weight) FILTER (is_late), sum(weight * ttft) FILTER (NOT is_late)
  / sum(weight * predicted_ttft) FILTER (NOT is_late), sum(weight * ttft) FILTER (is_late)
  / sum(weight * predicted_ttft) FILTER (is_late)
FROM (SELECT *, time >= $middle AS is_late FROM priced) GROUP BY worker ORDER BY worker
"""

_WORST: Final = """
SELECT request, worker, prompt_tokens, predicted_ttft, ttft, predicted_cached, cached_tokens,
  queued_requests, curve, trust
FROM priced ORDER BY off DESC LIMIT $most
"""

_REFUSED: Final = """
SELECT reason, count(*) FROM decisions
WHERE kind = 'refused' AND (getvariable('model') IS NULL OR model = getvariable('model'))
  AND (getvariable('since') IS NULL OR time >= getvariable('since'))
GROUP BY reason ORDER BY 2 DESC
"""

_ENDED: Final = """
SELECT sum(weight), sum(weight) FILTER (ttft IS NULL), sum(weight) FILTER (set_aside IS NOT NULL),
  min(time), max(time), count(*)
FROM outcomes
WHERE (getvariable('model') IS NULL OR model = getvariable('model'))
  AND (getvariable('since') IS NULL OR time >= getvariable('since'))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """How predictions of a group did. requests: weighted; shares are of those of which it is known;
    slower: by what share real times were above the predicted ones, in sum. None: nothing to say.
    """

    requests: float
    within_1s: float
    within_10s: float
    within_relative: float
    slower: float | None
    p50: Seconds
    p90: Seconds
    p99: Seconds
    cache_mismatch: float | None
    covered: float
    cells: Mapping[Cell, float]

    @property
    def bounded(self) -> float:
        """How many had a bound."""
        return sum(self.cells.values())

    def share(self, cell: Cell) -> float | None:
        """Which share of those with a bound are in a cell."""
        return self.cells[cell] / self.bounded if self.bounded else None


@dataclass(frozen=True, slots=True)
class Reuse:
    """Prompt tokens of one model, and where what was cached of them was lost.

    held: by the worker of the fleet that held most; used: what routing was to find on its own;
    delivered: what the engine found. passed_by: held elsewhere and not used; missed: used and not
    delivered; unforeseen: delivered beyond what was used.
    """

    model: str
    prompt: Tokens
    held: Tokens
    used: Tokens
    delivered: Tokens
    passed_by: Tokens
    missed: Tokens
    unforeseen: Tokens


@dataclass(frozen=True, slots=True)
class Drift:
    """Real over predicted time of one worker, in the first and in the last half of the time."""

    worker: str
    requests: float
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class Worst:
    """One of the predictions that were furthest off."""

    request: str
    worker: str
    prompt_tokens: Tokens
    predicted: Seconds
    actual: Seconds
    credited: Tokens | None
    reused: Tokens | None
    queued_requests: int | None
    curve: str | None
    trust: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that is printed. groups: by kind of group, then by name, in the order to show them in.

    hindsight: what was refused; probed: what was let in although refused.
    """

    rows: int
    requests: float
    unanswered: float
    set_aside: float
    span: Seconds
    refused: Mapping[str, int]
    hindsight: Judged
    probed: Judged
    all: Group | None
    groups: Mapping[str, Mapping[str, Group]]
    reuse: tuple[Reuse, ...]
    drift: tuple[Drift, ...]
    worst: tuple[Worst, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be graded. last: seconds before the newest record; None: all."""

    model: str | None = None
    last: Seconds | None = None
    worst: int = 8


EVERYTHING: Final = Asked()


def grade(database: "DuckDBPyConnection", asked: Asked = EVERYTHING) -> Report:
    """Grade what was recorded; of lines, `KEPT` is all that the records must have kept."""
    _restrict(database, asked)
    [ended] = database.execute(_ENDED).fetchall()
    requests, unanswered, set_aside, first, last, rows = ended
    first, last = first or 0.0, last or 0.0
    width = 3600.0 * max(1.0, -(-(last - first) // (3600.0 * MOST_HOURS)))
    start = first // width * width
    database.execute(_PRICED)
    database.execute(_BINNED, {"first": start, "width": width, "least": LEAST, "bin": log(BIN)})
    everyone, groups = _groups(database, lambda hour: _moment(hour, start, width))
    middle = {"middle": (first + last) / 2}
    hindsight, probed = judge_refusals(database)
    return Report(
        rows=rows,
        requests=requests or 0.0,
        unanswered=unanswered or 0.0,
        set_aside=set_aside or 0.0,
        span=last - first,
        refused=dict(database.execute(_REFUSED).fetchall()),
        hindsight=hindsight,
        probed=probed,
        all=everyone,
        groups=groups,
        reuse=tuple(Reuse(*row) for row in database.execute(_REUSE).fetchall()),
        drift=tuple(Drift(*row) for row in database.execute(_DRIFT, middle).fetchall()),
        worst=tuple(Worst(*r) for r in database.execute(_WORST, {"most": asked.worst}).fetchall()),
    )


def _restrict(database: "DuckDBPyConnection", asked: Asked) -> None:
    since = None
    if asked.last is not None:
        [(newest,)] = database.execute("SELECT max(time) FROM outcomes").fetchall()
        since = None if newest is None else newest - asked.last
    database.execute("SET VARIABLE model = $model::VARCHAR", {"model": asked.model})
    database.execute("SET VARIABLE since = $since::DOUBLE", {"since": since})


def _groups(
    database: "DuckDBPyConnection", moment: Callable[[int | None], str]
) -> tuple[Group | None, dict[str, dict[str, Group]]]:
    """Sum the bins up to groups; the one of all comes first."""
    named: dict[str, Callable[[Any], str]] = {
        "size": SIZES.__getitem__,
        "age": AGES.__getitem__,
        "hour": moment,
    }
    everyone = None
    found: dict[str, dict[str, Group]] = {kind: {} for kind in KINDS}
    for which, *rest in database.execute(_SUMMED).fetchall():
        names, sums = dict(zip(KINDS, rest, strict=False)), rest[len(KINDS) :]
        group = _group(sums)
        if which == EVERYONE:
            everyone = group
            continue
        kind = KINDS[len(KINDS) - (EVERYONE ^ which).bit_length()]
        found[kind][named.get(kind, str)(names[kind])] = group
    return everyone, found


def _group(sums: Sequence[Any]) -> Group:
    requests, one, ten, relative, real, predicted, told, mismatched, covered, *rest = sums
    cells, bins = rest[:4], rest[4:]
    return Group(
        requests=requests,
        within_1s=(one or 0.0) / requests,
        within_10s=(ten or 0.0) / requests,
        within_relative=(relative or 0.0) / requests,
        slower=real / predicted - 1.0 if predicted else None,
        p50=BIN ** bins[0],
        p90=BIN ** bins[1],
        p99=BIN ** bins[2],
        cache_mismatch=(mismatched or 0.0) / told if told else None,
        covered=(covered or 0.0) / requests,
        cells={cell: value or 0.0 for cell, value in zip(CELLS, cells, strict=True)},
    )


def _moment(hour: int | None, start: Seconds, width: Seconds) -> str:
    if hour is None:
        return "unknown"
    return datetime.fromtimestamp(start + hour * width, UTC).strftime("%m-%d %H:%M")
