"""What a run's predictions were worth, in the figures that the project promises.

Every served request has a predicted and a real time to first token; the shares count those within
1 s, within 10 s and, since a short time flatters both, within 0.1 s or 15 % of the real one,
whichever is more. A cache estimate is wrong where the credited tokens are not those the engine
reports as reused. A bound is kept where the request's queue wait was no longer than asked for; a
verdict is right where prediction and reality lie on the same side of it.

The queue wait itself is on no wire: it is the real time to first token less the predicted time of
the request's own prefill.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from leadsman.units import Seconds, Tokens

LOAD_BANDS = (0.5, 0.7, 0.9, 1.1, 1.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """One served request, its prediction beside what happened.

    reused: tokens that the engine reports from its cache; None where it reported none.
    bound: the longest queue wait that the caller accepts; load: offered then, in capacities.
    """

    request: str
    worker: str
    at: Seconds
    prompt_tokens: Tokens
    predicted: Seconds
    actual: Seconds
    predicted_wait: Seconds
    credited: Tokens
    reused: Tokens | None = None
    bound: Seconds | None = None
    curve: str = "own"
    load: float | None = None

    @property
    def error(self) -> Seconds:
        """Real less predicted time to first token: positive where it came later."""
        return self.actual - self.predicted

    @property
    def actual_wait(self) -> Seconds:
        """The real queue wait, as far as it can be told."""
        return max(0.0, self.actual - (self.predicted - self.predicted_wait))

    @property
    def within_relative(self) -> bool:
        """Whether the prediction was within 0.1 s or 15 %, whichever is more."""
        return abs(self.error) <= max(0.1, 0.15 * self.actual)

    @property
    def cache_matched(self) -> bool | None:
        """Whether the credited tokens are those that were reused."""
        return None if self.reused is None else self.credited == self.reused

    @property
    def kept_bound(self) -> bool | None:
        """Whether the queue wait kept its bound; None where there is none."""
        return None if self.bound is None else self.actual_wait <= self.bound

    @property
    def same_side(self) -> bool | None:
        """Whether predicted and real wait are on the same side of the bound."""
        if self.bound is None:
            return None
        return (self.predicted_wait <= self.bound) == (self.actual_wait <= self.bound)


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of a group of served requests; None where none of them counts."""

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
        by_worker=_grouped(graded, lambda one: one.worker),
        by_load=_grouped(graded, lambda one: _band(one.load)),
        by_curve=_grouped(graded, lambda one: one.curve),
    )


def shares(graded: Sequence[Graded]) -> Shares:
    """Compute the shares of a group."""
    errors = np.abs([one.error for one in graded])
    median, p90 = np.quantile(errors, (0.5, 0.9)).tolist() if graded else (None, None)
    wrong = _share(one.cache_matched for one in graded)
    return Shares(
        requests=len(graded),
        within_1s=_share((errors <= 1.0).tolist()),
        within_10s=_share((errors <= 10.0).tolist()),
        within_relative=_share(one.within_relative for one in graded),
        median_error_s=median,
        p90_error_s=p90,
        cache_mismatch=None if wrong is None else 1 - wrong,
        bound_kept=_share(one.kept_bound for one in graded),
        same_side=_share(one.same_side for one in graded),
    )


def _share(answers: Iterable[bool | None]) -> float | None:
    """Return the share of yes among the answers there are; None where there are none."""
    known = [answer for answer in answers if answer is not None]
    return sum(known) / len(known) if known else None


def _grouped(graded: Sequence[Graded], key: Callable[[Graded], str]) -> dict[str, Shares]:
    groups: defaultdict[str, list[Graded]] = defaultdict(list)
    for one in graded:
        groups[key(one)].append(one)
    return {name: shares(group) for name, group in sorted(groups.items())}


def _band(load: float | None) -> str:
    if load is None:
        return "unknown"
    below = [edge for edge in LOAD_BANDS if edge <= load]
    above = [edge for edge in LOAD_BANDS if edge > load]
    return f"{below[-1] if below else 0}-{above[0] if above else 'up'}"
