"""How far off a worker's predictions have lately been, and so how far off the next one may be.

Split conformal prediction: the next error exceeds the largest but k of n past ones with a chance of
at most (k + 1) / (n + 1), whatever the errors' distribution, as long as they are exchangeable.
Errors of a worker are not quite that, so each weighs less the older it is (a weighted quantile,
with the weight of one future error at infinity).

Errors are scaled: one unit is 0.1 s or 15 % of the prediction, whichever is more, the tolerance by
which predictions are graded. And they are kept apart by the size of the prediction: most waits are
near 0 and known well, and would promise too much of the long ones, which the bounds are about.

Where errors drift, as while a queue grows, or with work that nobody told us of, past ones promise
too much. So each promise is held against what came: a broken one widens those that follow, a kept
one narrows them again, such that in the long run a tenth is broken, whatever the errors do.

Before enough errors are there, a bound is wide: half of the prediction, or the largest miss seen.
Ignored: that a long wait's error is known only when it is over.
Source: Vovk et al. 2005; weights by age as in Barber, Candes, Ramdas, Tibshirani 2023; promises as
in the quantile tracking of Angelopoulos, Candes, Tibshirani 2023.
"""

from bisect import bisect_left, bisect_right, insort
from collections import deque
from typing import Final, Literal

from leadsman.units import Seconds

WINDOW = 512
HALF_LIFE = 128.0
"""Errors after which an error counts half: 172 in a full window, enough for a confidence of .99."""

UNIT_SECONDS = 0.1
UNIT_SHARE = 0.15

WIDE_SECONDS = 0.25
WIDE_SHARE = 0.5
"""The bound before enough errors: about twice the worst P90 of a first experiment on a real engine
under full load (10 to 25 % of the wait). Chosen, not derived."""

PROMISED = 0.9
"""The confidence at which promises are held against what came."""

WIDEN = 0.5
"""Units by which a broken promise widens the next bounds, but for PROMISED of it."""

WIDEST = 8.0
"""Units that bounds are widened by at most."""

CLASSES: tuple[Seconds, ...] = (1.0, 5.0, 30.0)
"""Predictions between two of these share their errors."""

_AGES = [0.5 ** (age / HALF_LIFE) for age in range(WINDOW + 1)]


def unit(seconds: Seconds) -> Seconds:
    """Give the error that counts as one at a prediction of this size."""
    return max(UNIT_SECONDS, UNIT_SHARE * seconds)


class ErrorWindow:
    """The recent scaled errors (actual - predicted) of predictions of one size."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[tuple[float, int]] = []
        self._seen = 0
        self._quantiles: dict[float, float | None] = {}

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, error: float) -> None:
        """Take the newest error; the oldest leaves a full window. O(log n) and a shift."""
        if len(self._recent) == WINDOW:
            oldest = (self._recent.popleft(), self._seen - WINDOW)
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(error)
        insort(self._sorted, (error, self._seen))
        self._seen += 1
        self._quantiles.clear()

    @property
    def largest(self) -> float | None:
        """The largest error in the window; None while it is empty."""
        return self._sorted[-1][0] if self._sorted else None

    def quantile(self, confidence: float) -> float | None:
        """Error that the next one does not exceed with this confidence; None: too few to say.

        O(1) until the next `add`, then O((1 - confidence) * n).
        """
        if confidence not in self._quantiles:
            self._quantiles[confidence] = self._quantile(confidence)
        return self._quantiles[confidence]

    def _quantile(self, confidence: float) -> float | None:
        newest = self._seen - 1
        total = 1.0 + sum(_AGES[: len(self._recent)])
        above, allowed = 1.0, (1.0 - confidence) * total * (1.0 + 1e-9)
        if above > allowed:
            return None
        for error, at in reversed(self._sorted):
            above += _AGES[newest - at]
            if above > allowed:
                return error
        return self._sorted[0][0] if self._sorted else None


class Residuals:
    """Errors of one worker's predictions of one quantity: its queue wait, or its TTFT."""

    def __init__(self) -> None:
        self._windows = tuple(ErrorWindow() for _ in range(len(CLASSES) + 1))
        self._wider = [0.0] * len(self._windows)

    def __len__(self) -> int:
        return sum(len(window) for window in self._windows)

    def add(self, predicted: Seconds, actual: Seconds, promised: Seconds | None = None) -> None:
        """Learn from one prediction that has come to its end.

        promised: its bound at a confidence of PROMISED when it was made; None: it had none.
        """
        size = bisect_right(CLASSES, predicted)
        self._windows[size].add((actual - predicted) / unit(predicted))
        if promised is not None:
            wider = self._wider[size] + WIDEN * ((actual > promised) - (1.0 - PROMISED))
            self._wider[size] = min(max(0.0, wider), WIDEST)

    def bound(self, predicted: Seconds, confidence: float) -> Seconds:
        """Seconds that the actual does not exceed with this confidence; never negative.

        confidence: in (0, 1). Wide while there are too few errors to say.
        """
        size = bisect_right(CLASSES, predicted)
        window, wider = self._windows[size], self._wider[size]
        error = window.quantile(confidence)
        if error is not None:
            return max(predicted + (error + wider) * unit(predicted), 0.0)
        wide = max(WIDE_SECONDS, WIDE_SHARE * predicted)
        return predicted + max(wide, (window.largest or 0.0) * unit(predicted))


Weights = Literal["prior", "learned"]


class BetterOf:
    """Which of two predictors has lately been right: `first` until the other one has shown it.

    Both are graded on every request, in units of error, at most `_WORST` each, so that one stall
    decides nothing. The other takes over when its mean is a tenth better.
    """

    _STEP: Final = 1.0 / 32.0
    _WORST: Final = 4.0
    _MARGIN: Final = 0.9

    def __init__(self, first: Weights = "prior") -> None:
        self.best: Weights = first
        self._loss: dict[Weights, float] = {"prior": 0.0, "learned": 0.0}
        self._graded = 0

    def add(self, *, prior: Seconds, learned: Seconds, actual: Seconds) -> None:
        """Grade what both predicted of one request."""
        self._graded += 1
        step = max(self._STEP, 1.0 / self._graded)
        self._learn("prior", prior, actual, step)
        self._learn("learned", learned, actual, step)
        other: Weights = "learned" if self.best == "prior" else "prior"
        if self._graded >= 8 and self._loss[other] < self._MARGIN * self._loss[self.best]:
            self.best = other

    def loss(self, name: Weights) -> float:
        """Recent mean error of one predictor, in units of error."""
        return self._loss[name]

    def _learn(self, name: Weights, predicted: Seconds, actual: Seconds, step: float) -> None:
        error = min(abs(predicted - actual) / unit(actual), self._WORST)
        self._loss[name] += step * (error - self._loss[name])
