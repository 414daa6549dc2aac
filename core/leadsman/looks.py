"""Looks: what may be spent on asking a worker that routing passes over, to see whether it is right.

Only a worker that is asked teaches, and routing asks who is predicted to be quickest. So one whose
lesson came out too slow (its first requests met a starved process, or kernels not yet compiled)
would idle beside quicker ones for ever, and the lesson never be corrected. A look sends it a
request all the same, at the price of the wait that it is predicted to add: a hundredth of each
second, saved up to a second. That bounds what all clients lose together, however many workers are
slow and however few requests there are; and where the lesson was wrong, they lose less than that.

A share and not a chance: what a look costs differs a thousandfold by prompt, and a short prompt
teaches as well. So only what would be answered within MOST is sent to look: of a worker that nobody
has measured the price is a guess, and a long prompt would pay for it. Both figures are chosen: a
lesson wrong by 0.3 s is looked at twice a minute.
Ignored: a lesson too slow by more than MOST for every prompt that comes; nobody pays that much.
"""

from typing import Final

from leadsman.units import Seconds

SHARE: Final = 0.01
MOST: Final[Seconds] = 1.0

REST: Final[Seconds] = 5.0
"""How long nobody must have asked a worker: before, what it taught is fresh."""


class Looks:
    """What one model's looks may cost by now."""

    def __init__(self) -> None:
        self._saved: Seconds = MOST
        self._at: Seconds | None = None

    def affordable(self, now: Seconds) -> Seconds:
        """Give the most that a look may add to one request's wait now."""
        passed = 0.0 if self._at is None else max(0.0, now - self._at)
        return min(MOST, self._saved + SHARE * passed)

    def spend(self, seconds: Seconds, now: Seconds) -> None:
        """Take a look's price, no more than is affordable."""
        self._saved, self._at = self.affordable(now) - seconds, now
