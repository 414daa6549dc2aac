"""A run's grades in the figures that the project promises, whole and by group.

`leadsman.grade` says what a good prediction is; here its figures are collected by worker, by
offered load and by where the worker's curve came from, and what has no grade is counted: refusals
by their reason, requests lost with their engine, requests served without a prediction.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from leadsman.grade import Cell, Grade
from leadsman.grade import Summary as Figures
from leadsman.units import Seconds

LOAD_BANDS = (0.5, 0.7, 0.9, 1.1, 1.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One served request: its grade, and what helps to see why it is what it is.

    load: offered at its arrival, in capacities. predicted_wait, actual_wait: in the queue.
    ahead: requests queued before it on its worker, as the prediction saw them; None: not kept.
    """

    grade: Grade
    at: Seconds
    predicted_wait: Seconds
    actual_wait: Seconds
    ahead: int | None
    curve: str
    load: float | None = None

    @property
    def predicted_prefill(self) -> Seconds:
        """What was predicted to lie between queue and first token."""
        return self.grade.predicted - self.predicted_wait

    @property
    def actual_prefill(self) -> Seconds:
        """What lay between queue and first token."""
        return self.grade.actual - self.actual_wait


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a group of served requests; None where none of them counts."""

    requests: int
    within_1s: float | None
    within_10s: float | None
    within_relative: float | None
    median_error_s: float | None
    p90_error_s: float | None
    cache_mismatch: float | None
    bound_kept: float | None
    same_side: float | None


class Summary(Shares, frozen=True, kw_only=True):
    """A run's figures; the keys of its JSON file.

    requests: all that were offered. graded: those that were served and had a prediction.
    lost: sent to an engine that went away. unpriced: served without a prediction.
    """

    workers: int
    graded: int
    refused: int
    refused_by_reason: dict[str, int]
    lost: int
    unpriced: int
    by_worker: dict[str, Shares]
    by_load: dict[str, Shares]
    by_curve: dict[str, Shares]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the requests that have no grade."""

    workers: int
    refused: Counter[str]
    lost: int = 0
    unpriced: int = 0


def summarise(graded: Sequence[Graded], counts: Counts) -> Summary:
    """Compute a run's summary."""
    refused = counts.refused.total()
    offered = len(graded) + refused + counts.lost + counts.unpriced
    overall = msgspec.structs.asdict(shares(graded)) | {"requests": offered}
    return Summary(
        **overall,
        workers=counts.workers,
        graded=len(graded),
        refused=refused,
        refused_by_reason=dict(sorted(counts.refused.items())),
        lost=counts.lost,
        unpriced=counts.unpriced,
        by_worker=_grouped(graded, lambda one: one.grade.worker),
        by_load=_grouped(graded, lambda one: band(one.load)),
        by_curve=_grouped(graded, lambda one: one.curve),
    )


def shares(graded: Iterable[Graded]) -> Shares:
    """Compute the figures of a group."""
    figures = Figures()
    for one in graded:
        figures.add(one.grade)
    cells = figures.cells()
    judged = sum(cells.values())
    right = cells[Cell.IN_TIME] + cells[Cell.LATE]
    return Shares(**figures.figures(), same_side=right / judged if judged else None)


def _grouped(graded: Sequence[Graded], key: Callable[[Graded], str]) -> dict[str, Shares]:
    groups: defaultdict[str, list[Graded]] = defaultdict(list)
    for one in graded:
        groups[key(one)].append(one)
    return {name: shares(group) for name, group in sorted(groups.items())}


def band(load: float | None) -> str:
    """Name the band of offered load."""
    if load is None:
        return "unknown"
    below = [edge for edge in LOAD_BANDS if edge <= load]
    above = [edge for edge in LOAD_BANDS if edge > load]
    return f"{below[-1] if below else 0}-{above[0] if above else 'up'}"
