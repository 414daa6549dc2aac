"""How long one engine step lasts, and how a worker's own steps teach it.

    seconds = t0 + a·P + b·A + t_d·D + e·E + s·F

P prefill tokens in the step; A = Σ n·(c + n/2) over its chunks of n tokens on c of context, which
telescopes: over all chunks of a prompt it is (end² − start²)/2, however they are cut; D decoding
sequences; E their summed context; F prompts that finish. Six non-negative weights a worker.

The prior comes from isolated prompts: C(N) = overhead + a·N + b'·N² gives s, a and b = 2·b', and
t0 = t_d = e = 0 where no decode table is known. A prompt of N tokens takes some N / budget + 1/2
steps, so a curve's a and s hold t0 too: they are held against sums of weights (`_sums`). Busy
stretches between two *observed* step ends teach the rest by weighted ridge regression towards the
prior, relative errors, with forgetting; a slow drift factor follows the machine. Ignored on
purpose: graph padding, kernel choice, noise.
Source: measured on vLLM 0.32 on a CPU; 4.7k steps, bias < 1 ms in every bucket, no interactions.
"""

from collections.abc import Sequence
from operator import add
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from leadsman.units import Seconds, Tokens

Vector: TypeAlias = npt.NDArray[np.float64]

WINDOW: Seconds = 0.25
"""Shorter stretches are joined: jitter of one observation must not look like a step's length."""

PLAUSIBLE = (1 / 3, 3.0)
"""A sample outside this ratio to its prediction is a restart or foreign work, not this model."""

FORGET = 0.998
"""A window's weight, one window later: what prefill costs must outlive minutes of pure decoding."""

DRIFT_FORGET = 0.97
"""The drift factor's memory: about 8 s of busy steps."""

DRIFT_PRIOR: Seconds = 3.0
"""Seconds of agreement that the drift factor starts with."""

DRIFT_NOISE = 0.05
"""A drift of this size counts half: smaller ones are mostly noise, larger ones a slower machine."""

CREDULOUS = 20
"""So many windows are taken as they come where the prior is a guess; those with prefill in them and
those without are counted apart: a busy engine shows hundreds of the one kind before any other."""

LEAST_SHARE = 0.02
"""A prior weight that explains a smaller share of the time is held as loosely as one of this share:
else a guess that is a hundred times too small would hold against any number of steps."""

FAINT = 1e-3
"""Of a window: how much holds t0 at 0 where the prior is an isolated curve, which may as well be
all t0: the first steps that are seen outweigh it."""

REJECTS_TO_YIELD = 40
"""So many implausible samples of a kind in a row mean that the weights are wrong, not they."""

EYE: Vector = np.eye(6)
ZERO: Vector = np.zeros(6)
RIDGE: Vector = 1e-12 * EYE
"""Keeps the equations solvable where two features have always gone together."""

SLACK, PATIENCE, MOST_PIVOTS = 1e-12, 3, 40
"""Of `non_negative`: rounding of a slope; rounds without progress; rounds at most."""


class StepFeatures(NamedTuple):
    """What steps are made of, summed over `steps` of them."""

    steps: float = 0.0
    prefill: float = 0.0
    attention: float = 0.0
    decodes: float = 0.0
    context: float = 0.0
    finals: float = 0.0


class StepWeights(NamedTuple):
    """Seconds per unit of each feature, all ≥ 0, in the order of `StepFeatures`."""

    t0: Seconds
    a: Seconds
    b: Seconds
    t_d: Seconds
    e: Seconds
    s: Seconds

    def seconds(self, f: StepFeatures) -> Seconds:
        """Predict how long steps with these features take."""
        return (
            self.t0 * f.steps
            + self.a * f.prefill
            + self.b * f.attention
            + self.t_d * f.decodes
            + self.e * f.context
            + self.s * f.finals
        )

    def alone(self, tokens: Tokens, budget: Tokens) -> Seconds:
        """Predict how long steps take that prefill so many tokens of short prompts."""
        return self.a * tokens + self.t0 * -(-tokens // budget)

    def scaled(self, factor: float) -> "StepWeights":
        """All weights times `factor`."""
        return StepWeights(*(w * factor for w in self))


class StepLearner:
    """Fits a worker's weights to its busy stretches; starts from, and leans on, a prior.

    `weights` is the fit times the drift factor. `trust` is the number of windows that the prior
    counts as: a measured curve and decode table deserve 100, a guess 1. `budget`: tokens of a full
    step, where a prior without a t0 is an isolated curve's. About 0.1 ms a window.
    """

    def __init__(
        self, prior: StepWeights, trust: float = 100.0, budget: Tokens | None = None
    ) -> None:
        self.prior = self.weights = prior
        self.trust, self.budget = trust, budget
        self.windows = self.prefill_windows = 0
        self._fit: Vector = np.array(prior, dtype=np.float64)
        self._gram: Vector = np.zeros((6, 6))
        self._moment: Vector = np.zeros(6)
        self._seen = self._drift_actual = self._drift_predicted = 0.0
        self._rejects = [0, 0]
        self.interrupt()

    def lean_on(self, prior: StepWeights, trust: float) -> None:
        """Take another prior; what was learned from steps stays, and is weighed against it."""
        self.prior, self.trust = prior, trust
        self._fit = self._solve()
        self.weights = StepWeights(*map(float, self._fit))

    def interrupt(self) -> None:
        """Drop the open window: its end was not observed, or the engine idled in it."""
        self._pending = [0.0] * 6
        self._pending_seconds: Seconds = 0.0

    def observe(self, features: Sequence[float], seconds: Seconds) -> None:
        """Take a busy stretch between two observed step ends; learn when a window is full."""
        self._pending = list(map(add, self._pending, features))
        self._pending_seconds += seconds
        if self._pending_seconds >= WINDOW:
            x, y = np.array(self._pending), self._pending_seconds
            self.interrupt()
            self._learn(x, y)

    def _learn(self, x: Vector, y: Seconds) -> None:
        predicted, prefills = float(x @ self._fit), bool(x[1] > 0)
        if not self._is_plausible(predicted, y, prefills=prefills):
            return
        self.windows += 1
        self.prefill_windows += prefills
        # Relative to the prediction: by its own y a slow outlier would weigh less than a fast one.
        weight = 1.0 / max(predicted, 0.5 * y) ** 2
        self._seen = FORGET * self._seen + 1.0
        self._gram = FORGET * self._gram + weight * np.outer(x, x)
        self._moment = FORGET * self._moment + weight * y * x
        self._fit = self._solve()
        self._drift_actual = DRIFT_FORGET * self._drift_actual + y
        self._drift_predicted = DRIFT_FORGET * self._drift_predicted + float(x @ self._fit)
        self.weights = StepWeights(*map(float, self._fit)).scaled(self._drift())

    def _drift(self) -> float:
        ratio = (self._drift_actual + DRIFT_PRIOR) / (self._drift_predicted + DRIFT_PRIOR)
        size = (ratio - 1.0) ** 2
        return 1.0 + (ratio - 1.0) * size / (size + DRIFT_NOISE**2)

    def _is_plausible(self, predicted: Seconds, y: Seconds, *, prefills: bool) -> bool:
        low, high = PLAUSIBLE
        known = self.prefill_windows if prefills else self.windows - self.prefill_windows
        if known < CREDULOUS and (self.trust <= 1 or not (prefills or self.prior.t_d)):
            return True
        if predicted > 0 and low < y / predicted < high:
            self._rejects[prefills] = 0
            return True
        self._rejects[prefills] += 1
        if self._rejects[prefills] > REJECTS_TO_YIELD:
            self._rejects[prefills] = 0
            return True
        return False

    def _solve(self) -> Vector:
        """Fit the weights anew: ridge regression towards the prior, none below 0."""
        prior = np.array(self.prior)
        whole = np.sqrt(self._seen / np.maximum(self._gram.diagonal(), 1e-30))
        held_by = np.maximum(np.maximum(prior, LEAST_SHARE * whole), 1e-30)
        pull = np.where(prior > 0, self.trust / held_by**2, 1e-9)
        sums = self._sums
        if sums is not EYE:
            pull[0] = FAINT * self.trust / held_by[5] ** 2
        gram = self._gram + (sums.T * pull) @ sums
        return non_negative(gram, self._moment + (pull * prior) @ sums, self._fit > 0)

    @property
    def _sums(self) -> Vector:
        """What the prior speaks of, a row each: the weights, or what an isolated curve shows."""
        if self.budget is None or self.prior.t0 or self.prior.t_d or self.prior.e:
            return EYE
        sums = EYE.copy()
        sums[1, 0], sums[5, 0] = 1.0 / self.budget, 0.5
        return sums


def non_negative(gram: Vector, moment: Vector, support: npt.NDArray[np.bool_]) -> Vector:
    """Minimise x.gram.x/2 - moment.x over all x >= 0, exactly.

    By principal pivoting from `support`, a guess of where x is positive: all that are on the wrong
    side change sides, or one alone once that has not made them fewer for a while. One round of 25
    us where the guess is right.
    Source: Kim and Park, Fast nonnegative matrix factorization, SIAM J. Sci. Comput. 33 (2011).
    """
    scale = 1.0 / np.sqrt(gram.diagonal())
    scaled: Vector = gram * np.outer(scale, scale) + RIDGE
    wanted: Vector = moment * scale
    inside, fewest, patience = support, len(moment) + 1, PATIENCE
    for _ in range(MOST_PIVOTS):
        # Whoever is outside has an equation of its own, x = 0.
        equations: Vector = np.where(np.outer(inside, inside), scaled, EYE)
        x = np.linalg.solve(equations, np.where(inside, wanted, ZERO))
        wrong = np.where(inside, x < 0, scaled @ x < wanted - SLACK)
        count = int(wrong.sum())
        if not count:
            break
        fewest, patience = (count, PATIENCE) if count < fewest else (fewest, patience - 1)
        if patience < 0:
            wrong[: wrong.nonzero()[0][-1]] = False
        inside = inside ^ wrong
    found: Vector = np.maximum(x, 0.0) * scale
    return found
