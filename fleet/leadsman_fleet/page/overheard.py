"""Predictions and what came of them, as whoever decides nothing hears of them in the records.

A grant says what was predicted, and the first tokens that are seen of it what came. Bounds, waits
and what was credited are on no record, and refusals are nobody's but the picker's.
"""

from collections.abc import Callable

from leadsman.records import Ended, Granted, Record, TokensSeen, WorkerGone
from leadsman.units import RequestId, Seconds

from leadsman_fleet.page.history import History
from leadsman_fleet.page.shown import Point


class Overheard:
    """Keeps grants in flight, and fills a history. epoch: says when the records' clock was at 0."""

    def __init__(self, history: History, epoch: Callable[[], Seconds]) -> None:
        self._history = history
        self._epoch = epoch
        self._waiting: dict[RequestId, Granted] = {}
        self._seen: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, record: Record) -> None:
        """Take any record. A grant that is said again, as after a reconnection, is the same."""
        match record:
            case Granted():
                if record.request not in self._waiting:
                    self._waiting[record.request] = record
                    self._history.decided(self._epoch() + record.at, None)
            case TokensSeen():
                granted = self._waiting.get(record.request)
                if granted is not None and record.request not in self._seen:
                    self._seen.add(record.request)
                    self._see(granted, record)
            case Ended():
                self._forget(record.request)
            case WorkerGone():
                at_it = [g.request for g in self._waiting.values() if g.worker == record.worker]
                for request in at_it:
                    self._forget(request)

    def _forget(self, request: RequestId) -> None:
        self._waiting.pop(request, None)
        self._seen.discard(request)

    def _see(self, granted: Granted, seen: TokensSeen) -> None:
        if granted.predicted_ttft is None or granted.worker != seen.worker:
            return
        self._history.served(
            Point(
                request=granted.request,
                at=self._epoch() + seen.at,
                worker=granted.worker,
                predicted=granted.predicted_ttft,
                actual=seen.at - granted.at,
            )
        )
