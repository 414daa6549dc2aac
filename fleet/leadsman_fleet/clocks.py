"""Puts times that two machines wrote on one axis.

Both ends read monotonic clocks with different origins. A message that was sent at s on their
clock and received at r on ours has r - s = offset + delay, with delay ≥ 0, so the least difference
ever seen is the best bound of the offset. Two ends of one machine share a clock: there the least
difference is all delay, and an offset that small is taken for none.
"""

from typing import Final

from leadsman.units import Seconds

_ONE_CLOCK: Final[Seconds] = 0.005


class ClockOffset:
    """How much more our clock reads than one peer's."""

    def __init__(self) -> None:
        self._least: Seconds | None = None

    def observe(self, sent_at: Seconds, received_at: Seconds) -> Seconds:
        """Learn from one message, and give the offset to add to the times in it."""
        difference = received_at - sent_at
        least = difference if self._least is None else min(self._least, difference)
        self._least = least
        return 0.0 if abs(least) < _ONE_CLOCK else least
