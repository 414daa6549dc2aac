"""The figures of one play: predictions beside what came, cache estimates, refusals.

Graded is what the picker's own journal says. The client's clock is the witness: what it saw may
differ from the picker's view by what Envoy takes, and the largest difference is told.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from leadsman.grade import Grade, Summary
from leadsman.units import Seconds
from leadsman_bench.demo_results import Outcome
from leadsman_bench.player import Played

from engine.vllm import BLOCK_SIZE, NAME

NEXT: Final = 10
"""How many predictions after a fault are looked at together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What came of one play. load: in units of the measured capacity; around: the share of the
    requests that did not come through Leadsman, and are not counted here. told: whether callers
    said how long their answers would be.

    broken: requests without a whole answer that were not refused. covered: the share whose real
    time kept the bound that the prediction gave. apart: the median of what the client waited
    longer than the picker saw.
    """

    name: str
    slots: int
    load: float
    around: float
    told: bool
    requests: int
    graded: int
    within_relative: float | None
    median_error: Seconds | None
    p90_error: Seconds | None
    cache_mismatch: float | None
    covered: float | None
    refused: dict[str, int]
    bounds_kept: float | None
    broken: int
    ttft_median: Seconds | None
    ttft_p90: Seconds | None
    apart: Seconds | None


def graded(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Grade]]:
    """Grade what was served and had been priced."""
    grades = (one.grade(worker=one.worker, model=NAME, block_size=BLOCK_SIZE) for one in outcomes)
    return [(one, grade) for one, grade in zip(outcomes, grades, strict=True) if grade is not None]


def measured(
    played: Sequence[Played],
    outcomes: Sequence[Outcome],
    *,
    name: str,
    slots: int,
    load: float,
    around: float,
    told: bool,
) -> Measured:
    """Sum up one play."""
    sent = {one.planned.id: one for one in played}
    found = graded([one for one in outcomes if one.request in sent])
    summary = Summary()
    for _, grade in found:
        summary.add(grade)
    figures = summary.figures()
    refused = Counter(one.reason for one in played if one.reason is not None)
    times = [grade.actual for _, grade in found]
    apart = [
        waited - grade.actual
        for _, grade in found
        if (waited := sent[grade.request].ttft) is not None
    ]
    return Measured(
        name=name,
        slots=slots,
        load=load,
        around=around,
        told=told,
        requests=len(played),
        graded=len(found),
        within_relative=figures["within_relative"],
        median_error=figures["median_error_s"],
        p90_error=figures["p90_error_s"],
        cache_mismatch=figures["cache_mismatch"],
        covered=_share([g.actual <= o.ttft_bound for o, g in found if o.ttft_bound is not None]),
        refused=dict(refused),
        bounds_kept=figures["bound_kept"],
        broken=sum(one.broke or one.status != 200 for one in played) - refused.total(),
        ttft_median=_quantile(times, 0.5),
        ttft_p90=_quantile(times, 0.9),
        apart=_quantile(apart, 0.5),
    )


def pooled(cells: Sequence[Measured], share: str) -> float | None:
    """Give a share of all graded requests together."""
    known = [(getattr(one, share), one.graded) for one in cells if getattr(one, share) is not None]
    return sum(part * count for part, count in known) / sum(c for _, c in known) if known else None


def _share(said: Sequence[bool]) -> float | None:
    return sum(said) / len(said) if said else None


def _quantile(values: Sequence[Seconds], q: float) -> Seconds | None:
    return float(np.quantile(values, q)) if values else None


def recovered(
    found: Sequence[tuple[Outcome, Grade]], ids: Collection[str], since: Seconds
) -> Seconds | None:
    """Say how long after `since`, on the picker's clock, all was right again.

    The soonest moment after which at most one of the next ten predictions for `ids` is wrong (those
    are wrong now and then with nothing amiss), and no cache estimate ever; 0 where nothing went
    wrong. None: not by the end of what was played, or fewer than ten were left.
    """
    rows = [
        (outcome.sent_at - since, grade.within_relative, grade.cache_matched is not False)
        for outcome, grade in found
        if outcome.request in ids and outcome.sent_at is not None and outcome.sent_at > since
    ]
    rows.sort()
    wrong_before: Seconds = 0.0
    for first, (at, _, _) in enumerate(rows):
        soon = rows[first : first + NEXT]
        right = sum(within for _, within, _ in soon)
        if len(soon) == NEXT and right >= NEXT - 1 and all(m for _, _, m in rows[first:]):
            return wrong_before
        wrong_before = at
    return None
