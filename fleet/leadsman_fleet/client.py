"""A picker's end of the stream: it watches, reports, and never makes its owner wait.

Losing the stream loses nothing: the client resumes where it was, or takes a snapshot, and tells
its live grants again. Meanwhile its owner decides on what it has; `state_age` says how old that
is. Used the same way when both ends are in one process.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import grpc
from leadsman.declared import Declared
from leadsman.records import Record, WorkerGone, WorkerSeen
from leadsman.units import Seconds, WorkerId

from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.clocks import ClockOffset
from leadsman_fleet.codec import WIRE_VERSION, decode, encode, shifted
from leadsman_fleet.declared_codec import decode_declared
from leadsman_fleet.fleet_pb2_grpc import FleetStub
from leadsman_fleet.follower import Follower, Part, Phase
from leadsman_fleet.outbox import Outbox, Report

log = logging.getLogger(__name__)

_CHANNEL: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTiming:
    """linger: how long reports wait for company; silence: when a mute stream is given up;
    retry: the longest pause between attempts.
    """

    linger: Seconds = 0.01
    silence: Seconds = 5.0
    retry: Seconds = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which log to follow, and as whom; `replica` is drawn anew by every process."""

    address: str
    replica: str
    pool: str = "default"


class FleetClient:
    """Follows one pool. `on_record` gets every record in order, its times on `clock`.

    declared: what the pool's owner declares, as last told; None before that, or where nobody does.

    take: where the log's owner is in this process, its `take`: reports go there as they are.
    """

    def __init__(
        self,
        target: Target,
        on_record: Callable[[Record], None],
        *,
        clock: Callable[[], Seconds] = time.monotonic,
        timing: ClientTiming | None = None,
        take: Callable[[str, Sequence[Record]], None] | None = None,
    ) -> None:
        self.synced = asyncio.Event()
        self.declared: Declared | None = None
        self.skipped = 0
        self.failed = 0
        self._target = target
        self._on_record = on_record
        self._clock = clock
        self._timing = timing or ClientTiming()
        self._hand_over = take
        self._follower = Follower()
        self._outbox = Outbox()
        self._has_reports = asyncio.Event()
        self._offset = ClockOffset()
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

    async def run(self) -> None:
        """Watch and report until cancelled."""
        async with grpc.aio.insecure_channel(self._target.address, options=_CHANNEL) as channel:
            stub = FleetStub(channel)  # type: ignore[no-untyped-call]  # generated
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._again_and_again(self._watch, stub), name="fleet watch")
                tasks.create_task(self._again_and_again(self._tell, stub), name="fleet reports")

    async def _again_and_again(
        self, attempt: Callable[[FleetStub], Awaitable[None]], stub: FleetStub
    ) -> None:
        pause = 0.05
        while True:
            began = self._clock()
            try:
                await attempt(stub)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                log.warning("fleet stream lost", extra={"error": _words(error)})
            pause = 0.05 if self._clock() - began > self._timing.retry else pause * 2
            await asyncio.sleep(min(pause, self._timing.retry) * random.uniform(0.5, 1.0))

    async def _watch(self, stub: FleetStub) -> None:
        self._follower.begin()
        request = pb.WatchRequest(
            pool=self._target.pool,
            replica=self._target.replica,
            epoch=self._follower.epoch or "",
            sequence=self._follower.sequence,
        )
        call = stub.Watch(request)
        try:
            await self._read(call)
        finally:
            call.cancel()

    async def _read(self, call: grpc.aio.UnaryStreamCall[pb.WatchRequest, pb.Envelope]) -> None:
        is_first = True
        while True:
            async with asyncio.timeout(self._timing.silence):
                envelope = await call.read()
            if not isinstance(envelope, pb.Envelope):
                return
            if is_first and envelope.phase == pb.Envelope.LIVE:
                self._tell_again(None)
            is_first = False
            self._take(envelope)

    def _take(self, envelope: pb.Envelope) -> None:
        now = self._clock()
        self._heard_at = now
        offset = self._offset.observe(envelope.sent_at, now)
        if envelope.HasField("declared"):
            self.declared, unknown = decode_declared(envelope.declared)
            self.skipped += unknown
        decoded = decode(envelope.records)
        self.skipped += decoded.skipped
        part = Part(
            epoch=envelope.epoch,
            sequence=envelope.sequence,
            phase=Phase(envelope.phase),
            records=tuple(shifted(record, offset) for record in decoded.records),
        )
        if envelope.epoch != self._named_in:
            self._named_in, self._named = envelope.epoch, set()
        for record in self._follower.take(part, now):
            self._pass_on(record)
        if part.phase is not Phase.SNAPSHOT:
            self.synced.set()

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

    async def _tell(self, stub: FleetStub) -> None:
        if len(self._outbox):
            self._has_reports.set()
        while True:
            await self._has_reports.wait()
            await asyncio.sleep(self._timing.linger)
            self._has_reports.clear()
            batch = self._outbox.take()
            if batch:
                await self._report(stub, batch)
                self._outbox.confirm()
            if len(self._outbox):
                self._has_reports.set()

    async def _report(self, stub: FleetStub, batch: Sequence[Record]) -> None:
        if self._hand_over is not None:
            self._hand_over(self._target.replica, batch)
            return
        request = pb.ReportRequest(
            version=WIRE_VERSION,
            replica=self._target.replica,
            sent_at=self._clock(),
            records=[encode(report) for report in batch],
            pool=self._target.pool,
        )
        await stub.Report(request, timeout=self._timing.silence)


def _words(error: grpc.aio.AioRpcError | TimeoutError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return "silence"
