"""What one replica still has to tell, kept until it was taken.

Reports go out in batches, one at a time; a batch that was not confirmed goes out again, and
whoever receives it ignores what it already knows. While nobody listens the box keeps within its
bound by forgetting what has no consequence: requests that began and ended unheard, and tokens or
lessons that later ones replace. The end of a grant that was told is never forgotten. After a
reconnection every live grant is told again, since the other side may have lost or expired it.
"""

from typing import TypeAlias

from leadsman.records import Ended, Granted, Learned, TokensSeen
from leadsman.units import RequestId, WorkerId

Report: TypeAlias = Granted | TokensSeen | Ended | Learned
Place: TypeAlias = tuple[WorkerId, RequestId]
"""A grant's identity: a request that moves is granted on one worker after another."""


class Outbox:
    """Reports in order. Memory: `limit` reports, plus the live grants and their ends."""

    def __init__(self, limit: int = 10_000) -> None:
        self.forgotten = 0
        self._limit = self._shrink_above = limit
        self._pending: list[Report] = []
        self._sending: list[Report] = []
        self._live: dict[Place, list[Granted | TokensSeen]] = {}
        self._learned: dict[WorkerId, Learned] = {}
        self._told: set[Place] = set()

    def __len__(self) -> int:
        return len(self._pending) + len(self._sending)

    def put(self, report: Report) -> None:
        """Add a report. Never blocks; amortised O(1)."""
        match report:
            case Granted():
                self._live[_place(report)] = [report]
            case TokensSeen():
                if _place(report) in self._live:
                    self._live[_place(report)][1:] = [report]
            case Ended():
                self._live.pop(_place(report), None)
            case Learned():
                self._learned[report.worker] = report
        self._pending.append(report)
        if len(self._pending) > self._shrink_above:
            self._shrink()

    def take(self) -> list[Report]:
        """Give what is to be sent next: all of it, or again what was not confirmed."""
        if not self._sending:
            self._sending, self._pending = self._pending, []
            self._told.update(_place(one) for one in self._sending if isinstance(one, Granted))
        return self._sending

    def confirm(self) -> None:
        """Forget what was taken: it has arrived."""
        self._told.difference_update(_place(one) for one in self._sending if isinstance(one, Ended))
        self._sending = []

    def restate(self, worker: WorkerId | None = None) -> None:
        """Tell the live grants and the lessons again, of one worker or of all."""
        said: list[Report] = [
            report
            for reports in self._live.values()
            for report in reports
            if worker is None or report.worker == worker
        ]
        lessons = [self._learned[worker]] if worker in self._learned else []
        if worker is None:
            lessons = list(self._learned.values())
        self._pending = [*said, *lessons, *self._pending]
        if len(self._pending) > self._shrink_above:
            self._shrink()

    def forget_worker(self, worker: WorkerId) -> None:
        """Give back what is held of a worker that left."""
        self._learned.pop(worker, None)

    def _shrink(self) -> None:
        began = {_place(report) for report in self._pending if isinstance(report, Granted)}
        ended = {_place(report) for report in self._pending if isinstance(report, Ended)}
        unheard = (began & ended) - self._told
        latest: dict[tuple[type[Report], Place | WorkerId], Report] = {}
        for report in self._pending:
            if isinstance(report, Learned):
                latest[Learned, report.worker] = report
            elif _place(report) not in unheard:
                latest[type(report), _place(report)] = report
        before = len(self._pending)
        self._pending = list(latest.values())
        self.forgotten += before - len(self._pending)
        self._shrink_above = max(self._limit, 2 * len(self._pending))


def _place(report: Granted | TokensSeen | Ended) -> Place:
    return report.worker, report.request
