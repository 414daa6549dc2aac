"""How much cache the sessions that are in will need at once, at the most.

A session's context is what its next call finds cached, as long as it is there: past the caches'
size sessions push out each other's, each call prefills all that came before it anew, and a worker
that served two calls a second serves one. Twelve agents on a cache for fourteen got 2.1 calls a
second done, sixteen 1.2 (`leadsman bench`, the agents' worker).

The model: a session begins small and grows to a length that is learned from those that are over,
then it leaves with all that it had; all grow alike. Who has most leaves first. So the need is
greatest now or just before one of them leaves: each that is no longer than the one that leaves has
then grown by as much as that one still did. What callers share, as the instructions of agents of
one kind, is counted with nobody: it is what a session's first call finds cached.

Ignored: which worker keeps what; that some grow faster; sessions longer than those before them,
beyond what they have now.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate

from leadsman.units import Tokens

_STEP = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one call brings to the caches: the tokens of its prompt, and how many are there already.

    room: says how many the caches of all workers can keep; None where that is not known.
    """

    tokens: Tokens
    cached: Tokens
    room: Callable[[], Tokens | None]


class Contexts:
    """The length at which sessions end, and what it says of those that have not ended."""

    def __init__(self) -> None:
        self._final: float | None = None

    def ended(self, tokens: Tokens) -> None:
        """Learn from a session that is over."""
        former = float(tokens) if self._final is None else self._final
        self._final = former + _STEP * (tokens - former)

    def most(self, sizes: Iterable[Tokens]) -> float:
        """Give the most that sessions of these sizes will need at once. O(n log n)."""
        rising = sorted(sizes)
        if not rising:
            return 0.0
        final = rising[-1] if self._final is None else self._final
        least = accumulate(rising)
        later = [
            together + number * (final - size)
            for number, (together, size) in enumerate(zip(least, rising, strict=True), 1)
            if size <= final
        ]
        return max(sum(rising), *later) if later else float(sum(rising))
