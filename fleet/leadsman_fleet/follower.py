"""Turns what a watcher receives into records that always tell the truth when applied in order.

Live records pass through. A snapshot says what there is, not what is no more: the follower
remembers which workers, stores and foreign grants it has passed on, and adds the departures that
the snapshot implies. A grant is passed on once, however often snapshots name it, and not before its
worker is known: whoever holds it tells it again when the worker comes.
"""

from dataclasses import dataclass
from enum import Enum

from leadsman.records import (
    Ended,
    Granted,
    KvEvents,
    Outcome,
    Record,
    StoreSeen,
    WorkerGone,
    WorkerSeen,
    is_store,
)
from leadsman.units import RequestId, Seconds, WorkerId


class Phase(Enum):
    """Which part of the stream an envelope is."""

    LIVE = 0
    SNAPSHOT = 1
    SNAPSHOT_END = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One envelope, decoded."""

    epoch: str
    sequence: int
    phase: Phase
    records: tuple[Record, ...]


class Follower:
    """A position in the log, and what has been passed on by it. One per watcher."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.sequence = 0
        self._workers: set[WorkerId] = set()
        self._grants: set[tuple[WorkerId, RequestId]] = set()
        self._named_workers: set[WorkerId] | None = None
        self._named_grants: set[tuple[WorkerId, RequestId]] = set()

    def begin(self) -> None:
        """Start on a new stream: a snapshot that broke off will be told again from its start."""
        self._named_workers = None
        self._named_grants = set()

    def take(self, part: Part, now: Seconds) -> list[Record]:
        """Give the records to apply, in order; `now` stamps the ends that a snapshot implies."""
        if part.phase is not Phase.LIVE and self._named_workers is None:
            self._named_workers = set()
        passed = [record for record in part.records if self._passes(record)]
        if part.phase is Phase.SNAPSHOT_END:
            passed += self._departures(now)
        if part.phase is not Phase.SNAPSHOT:
            self.epoch, self.sequence = part.epoch, part.sequence
        return passed

    def _passes(self, record: Record) -> bool:
        match record:
            case WorkerSeen() | StoreSeen():
                self._name(record.worker)
            case KvEvents() if is_store(record.worker):
                self._name(record.worker)
            case WorkerGone():
                self._workers.discard(record.worker)
                self._grants = {grant for grant in self._grants if grant[0] != record.worker}
            case Granted():
                if record.worker not in self._workers:
                    return False
                grant = (record.worker, record.request)
                if self._named_workers is not None:
                    self._named_grants.add(grant)
                is_new = grant not in self._grants
                self._grants.add(grant)
                return is_new
            case Ended():
                self._grants.discard((record.worker, record.request))
        return True

    def _name(self, worker: WorkerId) -> None:
        self._workers.add(worker)
        if self._named_workers is not None:
            self._named_workers.add(worker)

    def _departures(self, now: Seconds) -> list[Record]:
        named = self._named_workers or set()
        gone = sorted(self._workers - named)
        over = sorted(grant for grant in self._grants - self._named_grants if grant[0] in named)
        self._workers &= named
        self._grants &= self._named_grants
        self._named_workers, self._named_grants = None, set()
        ends = [
            Ended(worker=worker, request=request, at=now, outcome=Outcome.CUT_OFF)
            for worker, request in over
        ]
        return [*(WorkerGone(worker=worker) for worker in gone), *ends]
