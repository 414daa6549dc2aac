"""When refused callers come back: so that each second gets as many as it can serve, and no more.

Ten callers refused in one second and told the same Retry-After are the next burst. The model: from
the moment at which the wait is projected to fit, the pool frees one second of prefill per second
and worker. Each refused caller books the prefill that it will bring into the first second that
still has room, and is told that second. Booked seconds that pass are forgotten.

Ignored: callers that never come back (their room stays empty: a second of it at most is lost to
each), new callers that take the room first, and decoding.
"""

import math

from leadsman.budget import LONGEST_RETRY_AFTER
from leadsman.units import Seconds


class Returns:
    """Booked returns to one pool, by whole seconds of `now`."""

    def __init__(self) -> None:
        self._booked: dict[int, Seconds] = {}

    def book(self, now: Seconds, earliest: Seconds, *, work: Seconds, workers: int) -> Seconds:
        """Book `work` seconds of prefill from `earliest` on, and give the moment to come back.

        Beyond the longest Retry-After nobody is expected back: nothing is booked there.
        """
        self._forget_before(math.floor(now))
        second, last = math.floor(earliest), math.floor(now + LONGEST_RETRY_AFTER)
        while second <= last and self._booked.get(second, 0.0) >= workers:
            second += 1
        back = max(float(second), earliest)
        while work > 0 and second <= last:
            room = max(workers - self._booked.get(second, 0.0), 0.0)
            self._booked[second] = self._booked.get(second, 0.0) + min(work, room)
            work -= room
            second += 1
        return back

    def booked(self, second: int) -> Seconds:
        """Prefill that is booked into one second."""
        return self._booked.get(second, 0.0)

    def _forget_before(self, second: int) -> None:
        if self._booked and next(iter(self._booked)) < second:
            self._booked = {at: work for at, work in self._booked.items() if at >= second}
