"""How many tokens a request will still put out, before anybody knows.

A slot is taken until an answer ends, so the wait for a slot is a question about lengths. The model:
lengths of one model's finished answers are an empirical distribution (recent ones weigh more); a
prefix family (a conversation, a system prompt) shifts it by a factor, the blend of its own recent
answers and everybody's. A request that has put out g tokens has the distribution above g.

A single number per request is wrong in one direction: the next free slot of 64 is a minimum, the
last is a maximum, and 64 times the mean has neither (on the conversation trace the mean is 146
tokens late for the first of 64 slots and 855 early for the last). So each request takes its own
quantile: `spread_draw(n)` for the n-th, a golden-ratio sequence that fills (0, 1) evenly. The error
of one such replay is within a quarter of that of the mean of 64 random ones.

Ignored: that long answers finish last, so that a fresh start sees too many short ones; that answers
cut at max_tokens would have gone on (the same caps come again); the prompt's length (R^2 = .02).
Source: Mooncake FAST'25 conversation trace (correlation .61 with the previous answer of a family).
"""

import math
from bisect import bisect_left
from collections import OrderedDict
from itertools import accumulate

from leadsman.units import BlockKey, Tokens

PRIOR_MEAN = 300.0
"""Tokens assumed of an answer before any has finished, geometrically spread: as in chats."""

PRIOR_WEIGHT = 0.5
"""How many answers the assumption counts as; it fades like an old sample."""

HALF_LIFE = 1000.0
"""Answers after which an answer counts half."""

FAMILY_EVIDENCE = 0.64
"""Answers of strangers that one of the family outweighs: (1 - .61) / .61, .61 being the correlation
within a family on the conversation trace."""

MAX_FAMILIES = 4096

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_FAMILY_STEP = 0.25
_PER_OCTAVE = 16
_BINS = _PER_OCTAVE * 21
_EDGES = [math.pow(2.0, bin_ / _PER_OCTAVE) for bin_ in range(_BINS + 1)]
_HEAVY = 1e12


def spread_draw(n: int) -> float:
    """Give the n-th request its quantile, in (0, 1): any run of draws fills the interval evenly."""
    return (0.5 + n * _GOLDEN) % 1.0


class Lengths:
    """Output lengths of one model, learned from the answers that finished."""

    def __init__(self) -> None:
        self._growth = 2.0 ** (1.0 / HALF_LIFE)
        self._unit = 1.0
        self._weights = _prior()
        self._total = sum(self._weights)
        self._sum = PRIOR_WEIGHT * PRIOR_MEAN
        self._below: list[float] | None = None
        self._families: OrderedDict[BlockKey, tuple[float, int]] = OrderedDict()

    def add(self, tokens: Tokens, family: BlockKey | None = None) -> None:
        """Learn from one answer that ended by itself or at its cap; not from an aborted one."""
        if tokens < 0:
            raise ValueError(f"output length: {tokens} tokens is negative")
        self._unit *= self._growth
        self._weights[_bin(tokens)] += self._unit
        self._total += self._unit
        self._sum += self._unit * tokens
        self._below = None
        if self._unit > _HEAVY:
            self._lighten()
        if family is not None:
            self._learn_family(family, tokens)

    @property
    def mean(self) -> float:
        """Mean output tokens of an answer, over all families."""
        return self._sum / self._total

    def expected(self, family: BlockKey | None = None, max_tokens: Tokens | None = None) -> float:
        """Mean output tokens of an answer of this family, at most `max_tokens`."""
        tokens = self.mean
        if family is not None and (known := self._families.get(family)) is not None:
            average, answers = known
            evidence = min(answers, 2.0 / _FAMILY_STEP - 1.0)
            own = evidence / (evidence + FAMILY_EVIDENCE)
            tokens = own * average + (1.0 - own) * tokens
        return tokens if max_tokens is None else min(tokens, float(max_tokens))

    def quantile(
        self, q: float, family: BlockKey | None = None, max_tokens: Tokens | None = None
    ) -> float:
        """Output tokens that a share `q`, in (0, 1), of the family's answers does not exceed."""
        return self.remaining(0, draw=q, family=family, max_tokens=max_tokens)

    def remaining(
        self,
        generated: Tokens,
        *,
        draw: float = 0.5,
        family: BlockKey | None = None,
        max_tokens: Tokens | None = None,
    ) -> float:
        """Tokens still to come of an answer that has `generated`: the quantile `draw` of them.

        draw: in (0, 1), see `spread_draw`. At least one token, unless the cap is reached: the
        request is still running. About 2 us.
        """
        scale = max(self.expected(family), 1.0) / max(self.mean, 1.0)
        left = max(scale * self._length_beyond(generated / scale, draw) - generated, 1.0)
        return left if max_tokens is None else min(left, float(max(max_tokens - generated, 0)))

    def _length_beyond(self, generated: float, draw: float) -> float:
        """Give the quantile `draw` of the lengths above `generated`, all families together."""
        if self._below is None:
            self._below = list(accumulate(self._weights, initial=0.0))
        below = self._below
        passed, total = 0.0, below[-1]
        if generated >= 1.0:
            bin_ = _bin(generated)
            passed = below[bin_] + self._weights[bin_] * _inside(generated, bin_)
        if total - passed < 1e-9 * total:
            return generated - self.mean * math.log(1.0 - draw)
        target = passed + draw * (total - passed)
        bin_ = min(max(bisect_left(below, target) - 1, 0), _BINS - 1)
        low, high = _EDGES[bin_], _EDGES[bin_ + 1]
        return low + (high - low) * min((target - below[bin_]) / self._weights[bin_], 1.0)

    def _learn_family(self, family: BlockKey, tokens: Tokens) -> None:
        average, answers = self._families.pop(family, (0.0, 0))
        step = max(1.0 / (answers + 1), _FAMILY_STEP)
        self._families[family] = (average + step * (tokens - average), answers + 1)
        if len(self._families) > MAX_FAMILIES:
            self._families.popitem(last=False)

    def _lighten(self) -> None:
        """Take one common factor out of all weights, so that growth never overflows."""
        self._weights = [weight / self._unit for weight in self._weights]
        self._total /= self._unit
        self._sum /= self._unit
        self._unit = 1.0


def _bin(tokens: float) -> int:
    return min(int(math.log2(tokens) * _PER_OCTAVE), _BINS - 1) if tokens > 1 else 0


def _inside(tokens: float, bin_: int) -> float:
    low, high = _EDGES[bin_], _EDGES[bin_ + 1]
    return min(max((tokens - low) / (high - low), 0.0), 1.0)


def _prior() -> list[float]:
    survival = [math.exp(-(edge - 1.0) / PRIOR_MEAN) for edge in _EDGES]
    return [PRIOR_WEIGHT * (survival[bin_] - survival[bin_ + 1]) for bin_ in range(_BINS)]
