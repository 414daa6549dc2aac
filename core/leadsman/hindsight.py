"""Would a refused request have been served in time? Asked once the worker's real timeline is known.

The model: a worker that serves in order of arrival. A request that was served shows when the engine
began with it; one that would have come between two of them would have begun between them too. So
each served neighbour gives a bound: the wait would have been at most what the next one's start
says, and at least what the previous one's says. Where the bound to be judged lies between the two,
the answer is not known, and is said to be so.

Ignored: preemption, priorities, and that a smaller request may slip in between.
"""

import math
from bisect import bisect_right, insort

from leadsman.units import Seconds


class Timeline:
    """When a worker really began with each request that it served."""

    def __init__(self) -> None:
        self._served: list[tuple[Seconds, Seconds]] = []

    def __len__(self) -> int:
        return len(self._served)

    def add(self, arrived: Seconds, wait: Seconds) -> None:
        """Note a served request: when it was sent to the worker, and its real queue wait."""
        if wait < 0:
            raise ValueError(f"timeline: a wait of {wait} s is negative")
        insort(self._served, (arrived, arrived + wait))

    def least_wait(self, at: Seconds) -> Seconds:
        """Give the least that a request arriving at `at` would have waited."""
        place = self._place(at)
        started = self._served[place - 1][1] if place else at
        return max(started - at, 0.0)

    def most_wait(self, at: Seconds) -> Seconds | None:
        """Give the most that it would have waited; None where nothing was served after it."""
        place = self._place(at)
        if place == len(self._served):
            return None
        return self._served[place][1] - at

    def forget_before(self, at: Seconds) -> None:
        """Drop what was served before `at`, but for the last one, which still tells of `at`."""
        del self._served[: max(self._place(at) - 1, 0)]

    def _place(self, at: Seconds) -> int:
        """Where a request arriving at `at` would have stood: behind all that had arrived."""
        return bisect_right(self._served, (at, math.inf))


def hindsight(timeline: Timeline, *, refused_at: Seconds, allowed: Seconds) -> bool | None:
    """Say whether a request refused at `refused_at` would have begun within `allowed` seconds.

    None: the worker's timeline does not tell (yet).
    """
    most = timeline.most_wait(refused_at)
    if most is not None and most <= allowed:
        return True
    if timeline.least_wait(refused_at) > allowed:
        return False
    return None
