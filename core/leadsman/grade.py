"""How a prediction has done, once what really happened is known.

The error alone is a poor grade: what counts is on which side of the bound prediction and outcome
were. Four cells: in time as predicted; *underpredicted* (admitted as fast, was not); *false alarm*
(predicted too slow, would have been in time); late as predicted. Served requests show the first two
cells. A refused request is judged by hindsight (`hindsight`), or by probes: refusals that are
admitted at random, each counting for as many as it stands for.

Ignored: what a refused request, had it been served, would have done to those behind it.
Source: the criteria (1 s, 10 s, the bound) after Sference's account of its scheduler; max(0.1 s,
15 %) since a short TTFT flatters those.
"""

from array import array
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

import numpy as np

from leadsman.residuals import unit
from leadsman.units import RequestId, Seconds, Tokens, WorkerId


class Cell(StrEnum):
    """On which side of the bound the prediction and the outcome were."""

    IN_TIME = "in_time"
    UNDERPREDICTED = "underpredicted"
    FALSE_ALARM = "false_alarm"
    LATE = "late"

    @classmethod
    def of(cls, *, predicted_in_time: bool, was_in_time: bool) -> "Cell":
        """Name the cell of one request."""
        if predicted_in_time:
            return cls.IN_TIME if was_in_time else cls.UNDERPREDICTED
        return cls.FALSE_ALARM if was_in_time else cls.LATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """One bound of a served request: what it bounds is a wait, or the whole TTFT.

    predicted: what admission compared with the bound, so the quantile and not the expected value.
    set_aside: it was served although the policy would have refused it (shadow mode, a probe).
    """

    bound: Seconds
    predicted: Seconds
    actual: Seconds
    set_aside: bool = False

    @property
    def cell(self) -> Cell:
        """On which side of the bound both were."""
        return Cell.of(predicted_in_time=self.predicted <= self.bound, was_in_time=self.was_kept)

    @property
    def was_kept(self) -> bool:
        """Whether the outcome kept the bound."""
        return self.actual <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """One served request: what was predicted and credited, and what came.

    reused: cached tokens in the engine's usage; None where it reports none.
    weight: how many requests it stands for; a probe counts for 1 / (share of refusals probed).
    state_age: how old the worker's state was when the prediction was made.
    """

    request: RequestId
    worker: WorkerId
    model: str
    prompt_tokens: Tokens
    predicted: Seconds
    actual: Seconds
    credited: Tokens
    reused: Tokens | None
    block_size: Tokens
    bounded: Bounded | None = None
    state_age: Seconds | None = None
    weight: float = 1.0

    @property
    def error(self) -> Seconds:
        """Predicted minus actual: above zero where the prediction was too slow."""
        return self.predicted - self.actual

    def within(self, seconds: Seconds) -> bool:
        """Whether the prediction was at most this far off."""
        return abs(self.error) <= seconds

    @property
    def within_relative(self) -> bool:
        """Whether it was within max(0.1 s, 15 %) of the real TTFT."""
        return self.within(unit(self.actual))

    @property
    def cache_matched(self) -> bool | None:
        """Whether the engine reused what was credited, to the block; None where it is not known."""
        if self.reused is None:
            return None
        return self.credited // self.block_size == self.reused // self.block_size


class Figures(TypedDict):
    """A summary in the keys of every report: shares, seconds, a count; None: nothing to say."""

    within_1s: float | None
    within_10s: float | None
    within_relative: float | None
    median_error_s: float | None
    p90_error_s: float | None
    cache_mismatch: float | None
    bound_kept: float | None
    requests: int


class Summary:
    """Grades, added up. Grows by 8 bytes a request: a server starts a new one now and then."""

    def __init__(self) -> None:
        self._errors = array("d")
        self._within = {"1s": 0, "10s": 0, "relative": 0}
        self._cache_known = 0
        self._cache_mismatched = 0
        self._cells = dict.fromkeys(Cell, 0.0)
        self._bounded = 0
        self._kept = 0

    def __len__(self) -> int:
        return len(self._errors)

    def add(self, grade: Grade) -> None:
        """Count one served request."""
        self._errors.append(abs(grade.error))
        self._within["1s"] += grade.within(1.0)
        self._within["10s"] += grade.within(10.0)
        self._within["relative"] += grade.within_relative
        if grade.cache_matched is not None:
            self._cache_known += 1
            self._cache_mismatched += not grade.cache_matched
        if grade.bounded is not None:
            self._add_bounded(grade.bounded, grade.weight)

    def add_refused(self, *, would_have_been_in_time: bool | None, weight: float = 1.0) -> None:
        """Count one refusal by hindsight; None, where that is not known, counts nothing."""
        if would_have_been_in_time is not None:
            cell = Cell.of(predicted_in_time=False, was_in_time=would_have_been_in_time)
            self._cells[cell] += weight

    def figures(self) -> Figures:
        """Give the figures that reports state."""
        return Figures(
            within_1s=self._of_all(self._within["1s"]),
            within_10s=self._of_all(self._within["10s"]),
            within_relative=self._of_all(self._within["relative"]),
            median_error_s=self._error_quantile(0.5),
            p90_error_s=self._error_quantile(0.9),
            cache_mismatch=_share(self._cache_mismatched, self._cache_known),
            bound_kept=_share(self._kept, self._bounded),
            requests=len(self),
        )

    def cells(self) -> dict[Cell, float]:
        """Weighted counts of bounded requests, served and judged by hindsight."""
        return dict(self._cells)

    @property
    def underprediction_share(self) -> float | None:
        """Share of all judged bounded requests that were admitted as fast and came late."""
        return _share(self._cells[Cell.UNDERPREDICTED], sum(self._cells.values()))

    @property
    def false_alarm_share(self) -> float | None:
        """Share of all judged bounded requests that were refused and would have been in time."""
        return _share(self._cells[Cell.FALSE_ALARM], sum(self._cells.values()))

    def _add_bounded(self, bounded: Bounded, weight: float) -> None:
        self._cells[bounded.cell] += weight
        if not bounded.set_aside:
            self._bounded += 1
            self._kept += bounded.was_kept

    def _of_all(self, count: int) -> float | None:
        return _share(count, len(self))

    def _error_quantile(self, q: float) -> Seconds | None:
        return float(np.quantile(np.asarray(self._errors), q)) if self._errors else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
