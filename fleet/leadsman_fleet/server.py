"""Serves one pool's log over gRPC: every watcher is brought to the end, and kept there.

A watcher has no queue. It has a position, and whenever it is ready for more it is sent what the
log holds since then, as one batch, so a slow one neither blocks the others nor costs memory.
Reports of pickers enter the same log and so reach every other replica. A replica that has not
watched for a while has its grants ended: the connections that it held are gone with it. What is
declared of the pool is no record but a state: each stream is told it once, and when it changes.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from leadsman.declared import Declared
from leadsman.records import Ended, Granted, Learned, Outcome, Record, TokensSeen
from leadsman.units import Seconds, WorkerId

from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.clocks import ClockOffset
from leadsman_fleet.codec import MESSAGE_BYTES, WIRE_VERSION, decode, shifted
from leadsman_fleet.declared_codec import encode_declared
from leadsman_fleet.fleet_pb2_grpc import FleetServicer
from leadsman_fleet.log import Catchup, FleetLog
from leadsman_fleet.state import FleetState
from leadsman_fleet.waiting import happens

log = logging.getLogger(__name__)

UNLIMITED: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTiming:
    """linger: how long news wait for company; heartbeat: the longest silence;
    replica_grace: how long a replica may be away before its grants are ended.
    """

    linger: Seconds = 0.005
    heartbeat: Seconds = 1.0
    replica_grace: Seconds = 30.0


class _Replica:
    """What the server knows of one replica: its clock, and whether it watches."""

    def __init__(self) -> None:
        self.offset = ClockOffset()
        self.watches = 0
        self.expiry: asyncio.TimerHandle | None = None


class FleetService(FleetServicer):
    """The service of one pool. Runs on one event loop, like the log that it owns."""

    def __init__(
        self,
        fleet_log: FleetLog,
        *,
        pool: str = "default",
        clock: Callable[[], Seconds] = time.monotonic,
        timing: ServerTiming | None = None,
    ) -> None:
        self.skipped = 0
        self._log = fleet_log
        self.pool = pool
        self._clock = clock
        self._timing = timing or ServerTiming()
        self._declared: Declared | None = None
        self._news: dict[asyncio.Event, str] = {}
        self._replicas: dict[str, _Replica] = {}

    def publish(self, record: Record, source: str | None = None) -> None:
        """Append a record and wake the watchers. Its times are on this server's clock.

        The source is not woken: it would be sent nothing. Its position moves on by heartbeats.
        """
        if self._log.append(record, source) is not None:
            for news, reader in self._news.items():
                if reader != source:
                    news.set()

    @property
    def state(self) -> FleetState:
        """What the log adds up to; the log's own."""
        return self._log.state

    def lessons(self) -> list[Learned]:
        """List what was learned of each worker last."""
        return self._log.lessons()

    def stores(self) -> list[WorkerId]:
        """List the shared stores that it knows; the log's own."""
        return self._log.state.stores()

    def declare(self, declared: Declared) -> None:
        """Say what is declared of the pool from now on."""
        if declared != self._declared:
            self._declared = declared
            for news in self._news:
                news.set()

    async def Watch(  # noqa: N802, D102  # the protocol's name, described in fleet.proto
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[bytes, None]:
        if request.pool != self.pool:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no pool {request.pool!r} here")
        replica = self._arrive(request.replica)
        news = asyncio.Event()
        self._news[news] = request.replica
        log.info("watch begins", extra={"replica": request.replica, "sequence": request.sequence})
        try:
            async for envelope in self._follow(request, news):
                yield envelope
        finally:
            del self._news[news]
            self._leave(request.replica, replica)
            log.info("watch ends", extra={"replica": request.replica})

    async def Report(  # noqa: N802, D102
        self, request: pb.ReportRequest, _context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ReportResponse:
        offset = self._known(request.replica).offset.observe(request.sent_at, self._clock())
        decoded = decode(request.records)
        reports = [shifted(one, offset) for one in decoded.records if _is_report(one)]
        skipped = decoded.skipped + len(decoded.records) - len(reports)
        self.skipped += skipped
        self.take(request.replica, reports)
        return pb.ReportResponse(appended=len(reports), skipped=skipped)

    def take(self, name: str, reports: Sequence[Record]) -> None:
        """Take what a replica of this process, or by `Report` another, has to tell."""
        self._known(name)
        for report in reports:
            self.publish(report, name)

    def _known(self, name: str) -> _Replica:
        """Find a replica; one that reports before it ever watched has its grace from now."""
        replica = self._replicas.get(name)
        if replica is None:
            replica = self._arrive(name)
            self._leave(name, replica)
        return replica

    async def _follow(self, request: pb.WatchRequest, news: asyncio.Event) -> AsyncIterator[bytes]:
        epoch = request.epoch or None
        sequence = request.sequence
        told: Declared | None = None
        while True:
            news.clear()
            catchup = self._log.since(epoch, sequence, reader=request.replica)
            for head, written in self._envelopes(catchup):
                if self._declared is not None and self._declared is not told:
                    told = self._declared
                    head.declared.CopyFrom(encode_declared(told))
                yield head.SerializeToString() + b"".join(written)
            epoch, sequence = self._log.epoch, catchup.sequence
            if sequence < self._log.sequence:
                continue
            if await happens(news, within=self._timing.heartbeat):
                await asyncio.sleep(self._timing.linger)

    def _envelopes(self, catchup: Catchup) -> Iterator[tuple[pb.Envelope, Iterable[bytes]]]:
        """Cut a snapshot into messages; news are one, and with nothing in it a heartbeat.

        Gives each envelope without its records, and these as they are written.
        """
        if not catchup.is_snapshot:
            yield self._head(pb.Envelope.LIVE, catchup.sequence), catchup.written
            return
        part: list[bytes] = []
        size = 0
        for one in catchup.written:
            if size >= MESSAGE_BYTES:
                yield self._head(pb.Envelope.SNAPSHOT, 0), part
                part, size = [], 0
            part.append(one)
            size += len(one)
        yield self._head(pb.Envelope.SNAPSHOT_END, catchup.sequence), part

    def _head(self, phase: pb.Envelope.Phase, sequence: int) -> pb.Envelope:
        return pb.Envelope(
            version=WIRE_VERSION,
            epoch=self._log.epoch,
            sequence=sequence,
            phase=phase,
            sent_at=self._clock(),
        )

    def _arrive(self, name: str) -> _Replica:
        replica = self._replicas.setdefault(name, _Replica())
        replica.watches += 1
        if replica.expiry is not None:
            replica.expiry.cancel()
            replica.expiry = None
        return replica

    def _leave(self, name: str, replica: _Replica) -> None:
        replica.watches -= 1
        if replica.watches == 0:
            loop = asyncio.get_running_loop()
            replica.expiry = loop.call_later(self._timing.replica_grace, self._expire, name)

    def _expire(self, name: str) -> None:
        del self._replicas[name]
        grants = self._log.grants_of(name)
        log.warning("replica is gone", extra={"replica": name, "grants_ended": len(grants)})
        for grant in grants:
            over = Ended(
                worker=grant.worker,
                request=grant.request,
                at=self._clock(),
                outcome=Outcome.CUT_OFF,
            )
            self.publish(over, name)


def _is_report(record: Record) -> bool:
    return isinstance(record, Granted | TokensSeen | Ended | Learned)


def _handlers(service: FleetServicer) -> "grpc.GenericRpcHandler[Any, Any]":
    """Say what serves each call; what `Watch` gives is in bytes already."""
    report = pb.ReportRequest.FromString
    answer = pb.ReportResponse.SerializeToString
    calls: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Watch": grpc.unary_stream_rpc_method_handler(service.Watch, pb.WatchRequest.FromString),
        "Report": grpc.unary_unary_rpc_method_handler(service.Report, report, answer),
        "HandBack": grpc.stream_unary_rpc_method_handler(service.HandBack, report, answer),
    }
    name = pb.DESCRIPTOR.services_by_name["Fleet"].full_name
    return grpc.method_handlers_generic_handler(name, calls)


async def listen(service: FleetServicer, *addresses: str) -> tuple[grpc.aio.Server, list[int]]:
    """Start serving at addresses (`host:port`, port 0 for a free one, or `unix:path`).

    Gives the server and its ports. OSError where an address cannot be had.
    """
    server = grpc.aio.server(options=UNLIMITED)
    server.add_generic_rpc_handlers((_handlers(service),))
    ports = []
    for address in addresses:
        try:
            ports.append(server.add_insecure_port(address))
        except RuntimeError as error:
            problem = f"cannot listen for the fleet stream at {address}: {error}"
            raise OSError(problem) from error
    await server.start()
    return server, ports
