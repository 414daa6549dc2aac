"""The picker's gRPC server: ext_proc, the access log, and health, on one port.

grpc.aio hands messages over as bytes and takes bytes: the wire module parses, and what never
differs is serialised once. There are no size limits on messages (gRPC's 4 MB turns a large body
into a 500); the cap on bodies is our own.

One stream is one task. Whatever ends it (end of file, cancellation, an error of ours), its
session takes leave, and the grant is released by what was seen, never by a timer.

Draining: readiness goes first, then new streams are refused, and those in flight may finish.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

import grpc
from google.protobuf.message import DecodeError

from leadsman_extproc import wire
from leadsman_extproc.access_log import AccessLog
from leadsman_extproc.health import EXT_PROC, Health
from leadsman_extproc.metrics import MetricsServer
from leadsman_extproc.picking import Answer, PassOn, Picking, SendOn
from leadsman_extproc.session import Session
from leadsman_extproc.settings import Settings
from leadsman_extproc.watch import Watching

ACCESS_LOG = "envoy.service.accesslog.v3.AccessLogService"
_UNLIMITED = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


@dataclass(slots=True, kw_only=True)
class Processor:
    """Serves ext_proc streams, each with a session of its own."""

    picking: Picking
    watching: Watching
    open_streams: int = 0

    async def process(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """Serve one stream to its end."""
        settings, clock = self.picking.settings, self.picking.clock
        session = Session(
            max_body=settings.max_body,
            ends_early=settings.ends_early,
            watching=self.watching,
        )
        self.open_streams += 1
        try:
            async for raw in messages:
                event = wire.read(raw)
                answers = session.receive(event, clock()) if event else ()
                if session.is_asking:
                    answers = [*answers, *await self._judge(session)]
                for answer in answers:
                    await context.write(answer)
                if session.is_over:
                    return
        except DecodeError:
            self.picking.counts.errors["wire"] += 1
        finally:
            self.open_streams -= 1
            session.leave(clock())

    async def _judge(self, session: Session) -> Sequence[bytes]:
        match await self.picking.verdict(session.asked()):
            case SendOn(grant, headers):
                return session.send_on(grant, headers)
            case PassOn(endpoint, headers):
                return session.pass_on(endpoint, headers)
            case Answer(reply):
                return session.refuse(reply)
            case other:
                assert_never(other)


async def _take_log(log: AccessLog, picking: Picking, messages: AsyncIterator[bytes]) -> bytes:
    async for raw in messages:
        try:
            log.take(raw)
        except DecodeError:
            picking.counts.errors["access_log"] += 1
    return b""  # StreamAccessLogsResponse has no fields


def _handlers(processor: Processor) -> Sequence["grpc.GenericRpcHandler[bytes, bytes]"]:
    log = AccessLog(processor.picking.grants, processor.picking.clock)

    async def take(messages: AsyncIterator[bytes], _context: Context) -> bytes:
        return await _take_log(log, processor.picking, messages)

    stream: Any = grpc.stream_stream_rpc_method_handler(processor.process)
    logs: Any = grpc.stream_unary_rpc_method_handler(take)
    return (
        grpc.method_handlers_generic_handler(EXT_PROC, {"Process": stream}),
        grpc.method_handlers_generic_handler(ACCESS_LOG, {"StreamAccessLogs": logs}),
    )


@dataclass(slots=True, kw_only=True)
class Server:
    """A running picker; `port` is the one it got."""

    port: int
    processor: Processor
    health: Health
    metrics: MetricsServer | None


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    if settings.tls is None:
        return None
    pair = (settings.tls.key.read_bytes(), settings.tls.certificate.read_bytes())
    return grpc.ssl_server_credentials([pair])


def _bind(server: grpc.aio.Server, address: str, tls: grpc.ServerCredentials | None) -> int:
    return (
        server.add_insecure_port(address) if tls is None else server.add_secure_port(address, tls)
    )


@asynccontextmanager
async def serving(picking: Picking, watching: Watching) -> AsyncIterator[Server]:
    """Serve until left, then drain: streams in flight get `settings.drain` seconds to finish.

    Raises RuntimeError where an address cannot be had, OSError where a certificate cannot be read.
    """
    settings = picking.settings
    processor = Processor(picking=picking, watching=watching)
    health = Health(picking.workers.any_ready)
    server = grpc.aio.server(options=_UNLIMITED)
    server.add_generic_rpc_handlers(_handlers(processor))
    health.serve_on(server)
    port = _bind(server, settings.listen, _credentials(settings))
    async with AsyncExitStack() as stack:
        if settings.health is not None:
            await stack.enter_async_context(_probes(settings.health, health))
        metrics = None
        if settings.metrics_port is not None:
            metrics = MetricsServer(picking.counts, settings.metrics_port)
            stack.callback(metrics.close)
        await server.start()
        stack.push_async_callback(server.stop, settings.drain)
        await stack.enter_async_context(health.kept_fresh())
        yield Server(port=port, processor=processor, health=health, metrics=metrics)


@asynccontextmanager
async def _probes(address: str, health: Health) -> AsyncIterator[None]:
    """Serve health alone, in plain text."""
    server = grpc.aio.server()
    health.serve_on(server)
    _bind(server, address, None)
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)
