"""The last of what a page shows, in bounded memory: some 6 MB whatever comes."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from leadsman.units import Seconds

from leadsman_fleet.page.shown import Bucket, Point

MOST_POINTS: Final = 10_000
WIDTH: Final[Seconds] = 10.0
"""Of a bucket of decisions."""
MOST_BUCKETS: Final = 360
"""One hour."""
MOST_NEW: Final = 2_000
"""Points that one tick tells: who is served more in a second is shown the latest of them."""


@dataclass(slots=True)
class _Counts:
    at: Seconds
    admitted: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def told(self) -> Bucket:
        return Bucket(at=self.at, admitted=self.admitted, refused=dict(self.refused))


class History:
    """Points and counts, of which the oldest go. Times are since 1970."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=MOST_POINTS)
        self._new: deque[Point] = deque(maxlen=MOST_NEW)
        self._buckets: deque[_Counts] = deque(maxlen=MOST_BUCKETS)

    def served(self, point: Point) -> None:
        """Take a request whose first token was seen."""
        self._points.append(point)
        self._new.append(point)

    def decided(self, at: Seconds, reason: str | None) -> None:
        """Count a decision. reason: why it was refused; None: it was not."""
        bucket = self._bucket(at)
        if reason is None:
            bucket.admitted += 1
        else:
            bucket.refused[reason] += 1

    def told(self) -> tuple[Point, ...]:
        """Give what is kept but for the news, oldest first."""
        points = tuple(self._points)
        return points[: len(points) - len(self._new)]

    def news(self) -> tuple[Point, ...]:
        """Give the points that came since this was asked last."""
        news = tuple(self._new)
        self._new.clear()
        return news

    def growing(self) -> tuple[Bucket, ...]:
        """Give the buckets that may have grown within the last WIDTH seconds."""
        return tuple(bucket.told() for bucket in list(self._buckets)[-2:])

    def buckets(self) -> tuple[Bucket, ...]:
        """Give the buckets in which anything was decided, oldest first."""
        return tuple(bucket.told() for bucket in self._buckets)

    def _bucket(self, at: Seconds) -> _Counts:
        begin = at - at % WIDTH
        if not self._buckets or self._buckets[-1].at < begin:
            self._buckets.append(_Counts(begin))
        return self._buckets[-1]
