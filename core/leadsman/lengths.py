"""How many tokens a request will still put out, before anybody knows.

A slot and its blocks are taken until an answer ends, so waiting for them is a question about
lengths. What is known of an answer: its `max_tokens` (who caps at 256 wants short answers) and its
`min_tokens` (who ignores the end of sequence has both alike), how long the former answers of its
family were (a conversation, a system prompt), and how much it has put out already. The model, over
bins of a sixteenth of an octave:

    P(bin) ~ seen[cap][bin] * tilt(z[bin])

`seen` counts the answers under caps of the same octave, recent ones more, leaning on those under
any cap while they are few. z is a bin's rank among all answers on the logistic scale, in units of
its standard deviation; `tilt` makes of a standard normal one with the mean and variance that the
family's former ranks predict. How much they predict is learned as well. Beyond `generated` the
distribution is cut off.

Ignored: that long answers finish last, so that a fresh start sees too many short ones; that answers
cut at max_tokens would have gone on (the same caps come again); the prompt's length (R^2 = .02).
Source: Mooncake FAST'25 conversation trace (rank correlation .61 with a family's former answer).
"""

import math
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from leadsman.units import BlockKey, Tokens

Floats = npt.NDArray[np.float64]

PRIOR_MEAN = 300.0
"""Tokens assumed of an answer before any has finished, geometrically spread: as in chats."""

PRIOR_WEIGHT = 0.1
"""How many answers the assumption counts as; it fades like an old sample."""

HALF_LIFE = 1000.0
"""Answers after which an answer counts half."""

CAP_EVIDENCE = 3.0
"""Answers under any cap that count as so many under this one."""

FAMILY_CORRELATION = 0.61
"""Of an answer with the family's former one, where there is any: as on the conversation trace."""

FAMILY_PRIOR = 20.0
"""How many pairs of answers the assumption counts as that there is none."""

MAX_FAMILIES = 4096

PER_OCTAVE = 16
"""Edges of the bins in an octave; the first is at one token."""

_FAMILY_STEP = 0.25
_BINS = PER_OCTAVE * 21
_EDGES: Floats = 2.0 ** (np.arange(_BINS + 1) / PER_OCTAVE)
_LOGISTIC_SD = math.pi / math.sqrt(3.0)
_RAREST = 1e-4
"""A rank is no nearer to either end than this: on the logistic scale they are infinitely far."""
_HEAVY = 1e12


class Lengths:
    """Output lengths of one model, learned from the answers that finished."""

    def __init__(self) -> None:
        self._growth = 2.0 ** (1.0 / HALF_LIFE)
        self._unit = 1.0
        self._all = _prior()
        self._by_cap: dict[int, Floats] = {}
        self._ranks: Floats | None = None
        self._families: OrderedDict[BlockKey, tuple[float, int]] = OrderedDict()
        self._pairs = self._left_over = FAMILY_PRIOR
        self._explained = 0.0

    def add(
        self,
        tokens: Tokens,
        family: BlockKey | None = None,
        max_tokens: Tokens | None = None,
    ) -> None:
        """Learn from one answer that ended by itself or at its cap; not from an aborted one."""
        if tokens < 0:
            raise ValueError(f"output length: {tokens} tokens is negative")
        if family is not None:
            self._learn_family(family, float(self._z()[_bin(tokens)]))
        self._unit *= self._growth
        self._all[_bin(tokens)] += self._unit
        self._under(max_tokens)[_bin(tokens)] += self._unit
        self._ranks = None
        if self._unit > _HEAVY:
            self._lighten()

    def remaining(
        self,
        generated: Tokens,
        *,
        draw: float = 0.5,
        family: BlockKey | None = None,
        max_tokens: Tokens | None = None,
        min_tokens: Tokens = 0,
    ) -> float:
        """Tokens still to come of an answer that has `generated`: the quantile `draw` of them.

        draw: in (0, 1). At least one token, unless the cap is reached: the request is still
        running. About 20 us.
        """
        left = beyond(self.below(family, max_tokens, min_tokens), generated, draw)
        return left if max_tokens is None else min(left, float(max(max_tokens - generated, 0)))

    def below(
        self,
        family: BlockKey | None = None,
        max_tokens: Tokens | None = None,
        min_tokens: Tokens = 0,
    ) -> Floats:
        """Give the chance that an answer is shorter than each edge, shape (edges,): from 0 to 1."""
        if max_tokens is not None and min_tokens >= max_tokens:
            return _at_its_cap()
        weights = self._all * (CAP_EVIDENCE * self._unit / float(np.add.reduce(self._all)))
        weights += self._under(max_tokens)
        if family is not None and (known := self._families.get(family)) is not None:
            weights *= self._tilt(*known)
        below: Floats = np.empty(_BINS + 1)
        below[0] = 0.0
        np.add.accumulate(weights, out=below[1:])
        below /= below[-1]
        return _not_before(min_tokens, below) if min_tokens > 1 else below

    def _under(self, max_tokens: Tokens | None) -> Floats:
        """Give the answers under caps of this octave, for reading and for counting."""
        octave = -1 if max_tokens is None else _bin(max_tokens) // PER_OCTAVE
        if octave not in self._by_cap:
            self._by_cap[octave] = np.zeros(_BINS)
        return self._by_cap[octave]

    def _z(self) -> Floats:
        """Give each bin's rank among all answers on the logistic scale: mean 0, variance 1."""
        if self._ranks is None:
            ranks: Floats = np.add.accumulate(self._all)
            everyone = float(ranks[-1])
            ranks -= 0.5 * self._all
            np.maximum(ranks, _RAREST * everyone, out=ranks)
            np.minimum(ranks, (1.0 - _RAREST) * everyone, out=ranks)
            ranks /= everyone - ranks
            np.log(ranks, out=ranks)
            ranks /= _LOGISTIC_SD
            self._ranks = ranks
        return self._ranks

    # -- families ------------------------------------------------------------------------------

    def _tilt(self, average: float, answers: int) -> Floats:
        """Give the weight of each bin, but for a factor that all have.

        exp(z^2 / 2 - (z - mean)^2 / 2 variance), without what is the same for every z.
        """
        mean, z = self._predicted(_shrunk(average, answers)), self._z()
        variance = min(max(self._left_over / self._pairs, 0.05), 1.0)
        tilt: Floats = z * (0.5 - 0.5 / variance)
        tilt += mean / variance
        tilt *= z
        np.exp(tilt, out=tilt)
        return tilt

    def _predicted(self, guess: float) -> float:
        """Predict the rank of a family's next answer from what its former ones let one guess."""
        return self._explained / self._pairs * guess

    def _learn_family(self, family: BlockKey, z: float) -> None:
        average, answers = self._families.pop(family, (0.0, 0))
        if answers:
            self._learn_pair(_shrunk(average, answers), z)
        step = max(1.0 / (answers + 1), _FAMILY_STEP)
        self._families[family] = (average + step * (z - average), answers + 1)
        if len(self._families) > MAX_FAMILIES:
            self._families.popitem(last=False)

    def _learn_pair(self, guess: float, z: float) -> None:
        fade = 1.0 / self._growth
        off = z - self._predicted(guess)
        self._pairs = fade * self._pairs + guess * guess / FAMILY_CORRELATION**2
        self._explained = fade * self._explained + guess * z / FAMILY_CORRELATION**2
        self._left_over = fade * self._left_over + off * off

    def _lighten(self) -> None:
        """Take one common factor out of all weights, so that growth never overflows."""
        for weights in (self._all, *self._by_cap.values()):
            np.divide(weights, self._unit, out=weights)
        self._unit = 1.0


def _at_its_cap() -> Floats:
    below: Floats = np.zeros(_BINS + 1)
    below[-1] = 1.0
    return below


def _not_before(least: Tokens, below: Floats) -> Floats:
    """Take out of a distribution what is shorter than `least`."""
    shorter = float(np.interp(least, _EDGES, below))
    if shorter > 1.0 - 1e-9:
        return _at_its_cap()
    left: Floats = np.maximum(below - shorter, 0.0) / (1.0 - shorter)
    return left


def beyond(below: Floats, generated: Tokens, draw: float = 0.5) -> float:
    """Give the quantile `draw` of what is still to come, at least one token; see `Lengths.below`.

    An answer longer than any seen goes on as the assumed ones do.
    """
    passed = float(np.interp(generated, _EDGES, below)) if generated >= 1 else 0.0
    if passed > 1.0 - 1e-9:
        return max(1.0, -PRIOR_MEAN * math.log(1.0 - draw))
    target = passed + draw * (1.0 - passed)
    bin_ = min(max(int(np.searchsorted(below, target)) - 1, 0), _BINS - 1)
    share = (target - below[bin_]) / max(below[bin_ + 1] - below[bin_], 1e-300)
    length = float(_EDGES[bin_] + min(share, 1.0) * (_EDGES[bin_ + 1] - _EDGES[bin_]))
    return max(length - generated, 1.0)


def _shrunk(average: float, answers: int) -> float:
    """Shrink a family's average: one answer correlates as assumed, many with what they share."""
    evidence = min(answers, 2.0 / _FAMILY_STEP - 1.0)
    strangers = (1.0 - FAMILY_CORRELATION) / FAMILY_CORRELATION
    return evidence / (evidence + strangers) * average


def _bin(tokens: float) -> int:
    return min(int(math.log2(tokens) * PER_OCTAVE), _BINS - 1) if tokens > 1 else 0


def _prior() -> Floats:
    survival = np.exp(-(_EDGES - 1.0) / PRIOR_MEAN)
    weights: Floats = PRIOR_WEIGHT * (survival[:-1] - survival[1:])
    return weights
