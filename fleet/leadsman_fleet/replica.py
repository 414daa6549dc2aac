"""What a picker does at its end of the fleet's stream, whatever carries it.

It passes records on in order, each grant once, and adds the departures that a snapshot implies. It
keeps what it has to tell until it was taken, and never makes its owner wait. Losing the stream
loses nothing: its owner decides on what it has, and `state_age` says how old that is.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from leadsman.declared import Declared
from leadsman.records import Record, WorkerGone, WorkerSeen
from leadsman.units import Seconds, WorkerId

from leadsman_fleet.follower import Follower, Part
from leadsman_fleet.outbox import Outbox, Report

log = logging.getLogger(__name__)


class Replica(ABC):
    """One picker's end. `on_record` gets every record in order, its times on `clock`.

    synced: set once it has heard all that was said before it came.
    declared: what the pool's owner declares, as last told; None before that, or where nobody does.
    """

    def __init__(
        self,
        on_record: Callable[[Record], None],
        *,
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        self.synced = asyncio.Event()
        self.declared: Declared | None = None
        self.skipped = 0
        self.failed = 0
        self._on_record = on_record
        self._clock = clock
        self._follower = Follower()
        self._outbox = Outbox()
        self._has_reports = asyncio.Event()
        self._heard_at: Seconds | None = None
        self._named_in: str | None = None
        self._named: set[WorkerId] = set()

    @property
    def epoch(self) -> str | None:
        """The life of the log that is followed now; None before any was."""
        return self._follower.epoch

    @property
    def forgotten(self) -> int:
        """Reports that were dropped while nobody listened."""
        return self._outbox.forgotten

    def report(self, record: Record) -> None:
        """Tell the other replicas what this one did, soon. Never blocks."""
        assert isinstance(record, Report), "only collectors tell of workers"
        self._outbox.put(record)
        self._has_reports.set()

    def state_age(self, now: Seconds) -> Seconds | None:
        """Seconds since the stream last spoke, heartbeats included; None before it ever did."""
        return None if self._heard_at is None else now - self._heard_at

    @abstractmethod
    async def run(self) -> None:
        """Follow and report until cancelled."""

    def _take_part(self, part: Part, now: Seconds) -> None:
        if part.epoch != self._named_in:
            self._named_in, self._named = part.epoch, set()
        for record in self._follower.take(part, now):
            self._pass_on(record)

    def _pass_on(self, record: Record) -> None:
        try:
            self._on_record(record)
        except Exception:
            self.failed += 1
            log.exception("record not applied", extra={"record": type(record).__name__})
        if isinstance(record, WorkerGone):
            self._named.discard(record.worker)
            self._outbox.forget_worker(record.worker)
        elif isinstance(record, WorkerSeen) and record.worker not in self._named:
            self._named.add(record.worker)
            self._tell_again(record.worker)

    def _tell_again(self, worker: WorkerId | None) -> None:
        """Say what lives on a worker that the log has only now been told of, or may have lost."""
        self._outbox.restate(worker)
        self._has_reports.set()

    async def _tell_each(
        self, tell: Callable[[Sequence[Record]], Awaitable[None]], linger: Seconds
    ) -> None:
        """Tell what there is, batch by batch, for ever; a batch that fails is told again."""
        if len(self._outbox):
            self._has_reports.set()
        while True:
            await self._has_reports.wait()
            await asyncio.sleep(linger)
            self._has_reports.clear()
            batch = self._outbox.take()
            if batch:
                await tell(batch)
                self._outbox.confirm()
            if len(self._outbox):
                self._has_reports.set()
