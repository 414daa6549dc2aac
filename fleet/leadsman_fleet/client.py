"""A picker's end of the stream by gRPC: it resumes where it was, or takes a snapshot.

After every reconnection it tells its live grants again, since the other side may have lost or
expired them. A server that knows nothing is told what the one before had said (`recall`). Used the
same way when both ends are in one process.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import grpc
from leadsman.records import Record
from leadsman.units import Seconds

from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.clocks import ClockOffset
from leadsman_fleet.codec import WIRE_VERSION, batches, decode, encode, shifted
from leadsman_fleet.declared_codec import decode_declared
from leadsman_fleet.fleet_pb2_grpc import FleetStub
from leadsman_fleet.follower import Part, Phase
from leadsman_fleet.recall import HANDS_BACK, is_collectors
from leadsman_fleet.replica import Replica
from leadsman_fleet.state import FleetState

log = logging.getLogger(__name__)

_CHANNEL: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # A new leader is found within half a second: gRPC's pause and our own come one after the other.
    ("grpc.max_reconnect_backoff_ms", 250),
    # gRPC's own 30 s would hold on to the former leaders' addresses while operators are rolled out.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTiming:
    """linger: how long reports wait for company; silence: when a mute stream is given up;
    retry: the longest pause between attempts.
    """

    linger: Seconds = 0.01
    silence: Seconds = 5.0
    retry: Seconds = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which log to follow, and as whom; `replica` is drawn anew by every process.

    hands_back: whether what is told is kept, for a server that has lost it: 12 to 24 bytes a block.
    """

    address: str
    replica: str
    pool: str = "default"
    hands_back: bool = False


class FleetClient(Replica):
    """Follows one pool over gRPC.

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
        self._known = FleetState() if target.hands_back else None
        super().__init__(self._keeping(on_record), clock=clock)
        self._target = target
        self._timing = timing or ClientTiming()
        self._hand_over = take
        self._offset = ClockOffset()

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
        pause, was_lost = 0.05, False
        while True:
            began = self._clock()
            try:
                await attempt(stub)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                has_lasted = self._clock() - began > self._timing.retry
                if has_lasted or not was_lost:
                    log.warning("fleet stream lost", extra={"error": _words(error)})
                was_lost = True
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
        except grpc.aio.AioRpcError as error:
            is_asked = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            if is_asked and self._known is not None and self.synced.is_set():
                await stub.HandBack(self._handed_back(self._known), timeout=HANDS_BACK)
            raise
        finally:
            call.cancel()

    async def _handed_back(self, known: FleetState) -> AsyncIterator[pb.ReportRequest]:
        """Say all that was told, worker by worker."""
        for batch in batches(record for _, record in known.told()):
            yield self._request(batch)

    def _keeping(self, hear: Callable[[Record], None]) -> Callable[[Record], None]:
        """Keep what collectors say, where it is to be handed back."""
        known = self._known
        if known is None:
            return hear

        def keep(record: Record) -> None:
            if is_collectors(record):
                known.apply(record)
            hear(record)

        return keep

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
        self._take_part(part, now)
        if part.phase is not Phase.SNAPSHOT:
            self.synced.set()

    async def _tell(self, stub: FleetStub) -> None:
        await self._tell_each(partial(self._report, stub), self._timing.linger)

    async def _report(self, stub: FleetStub, batch: Sequence[Record]) -> None:
        if self._hand_over is not None:
            self._hand_over(self._target.replica, batch)
            return
        await stub.Report(self._request(batch), timeout=self._timing.silence)

    def _request(self, batch: Sequence[Record]) -> pb.ReportRequest:
        return pb.ReportRequest(
            version=WIRE_VERSION,
            replica=self._target.replica,
            sent_at=self._clock(),
            records=[encode(record) for record in batch],
            pool=self._target.pool,
        )


def _words(error: grpc.aio.AioRpcError | TimeoutError) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return "silence"
