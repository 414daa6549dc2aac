"""The picker's server: ext_proc, the access log, and health, on one port.

Messages are bytes on the way in and out: the wire module parses, and what never differs is
serialised once. There are no size limits on messages (gRPC's usual 4 MB turns a large body into a
500); the cap on bodies is our own.

Draining: readiness goes first; gateways take a while to hear of it, and in full duplex they fail
requests whose call is refused. So new calls are refused only later, and those in flight may finish.
Requests that are held are placed or refused at once, and no more are held.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from leadsman_extproc import certificates
from leadsman_extproc.access_log import AccessLog
from leadsman_extproc.exchange import Processor
from leadsman_extproc.health import EXT_PROC, Health
from leadsman_extproc.http2.calls import Call, Handlers, Receiver
from leadsman_extproc.http2.server import listening
from leadsman_extproc.metrics import MetricsServer
from leadsman_extproc.picking import Picking
from leadsman_extproc.watch import Watching

ACCESS_LOG: Final = "envoy.service.accesslog.v3.AccessLogService"
_NOTHING: Final = b""
"""A StreamAccessLogsResponse: it has no fields."""


class _LogStream:
    """One stream of the access log."""

    def __init__(self, log: AccessLog, picking: Picking, call: Call) -> None:
        self._log = log
        self._picking = picking
        self._call = call

    def message(self, raw: bytes) -> None:
        try:
            self._log.take(raw)
        except DecodeError:
            self._picking.counts.errors["access_log"] += 1

    def whole(self) -> None:
        self._call.send([_NOTHING])
        self._call.finish()

    def gone(self) -> None:
        pass


def _handlers(processor: Processor) -> Handlers:
    picking = processor.picking
    log = AccessLog(picking.grants, picking.clock)

    def take_log(call: Call) -> Receiver:
        return _LogStream(log, picking, call)

    return {
        f"/{EXT_PROC}/Process": processor.process,
        f"/{ACCESS_LOG}/StreamAccessLogs": take_log,
    }


@dataclass(slots=True, kw_only=True)
class Server:
    """A running picker; `port` is the one it got."""

    port: int
    processor: Processor
    health: Health
    metrics: MetricsServer | None


@asynccontextmanager
async def serving(
    picking: Picking, watching: Watching, is_ready: Callable[[], bool]
) -> AsyncIterator[Server]:
    """Serve until left, then drain: readiness is lost, for `settings.notice` seconds calls are
    still taken, and those in flight then get `settings.drain` to finish.

    Raises OSError where an address cannot be had, or a certificate cannot be read.
    """
    settings = picking.settings
    processor = Processor(picking=picking, watching=watching)
    health = Health(is_ready)
    handlers = {**_handlers(processor), **health.handlers()}
    async with AsyncExitStack() as stack:
        if settings.health is not None:
            await stack.enter_async_context(listening(settings.health, health.handlers()))
        metrics = None
        if settings.metrics_port is not None:
            gauges = {"grants": picking.grants.counted, "in_flight": picking.picker.in_flight}
            metrics = MetricsServer(
                picking.counts, settings.metrics_port, gauges, token=settings.token
            )
            stack.callback(metrics.close)
        tls = None
        if settings.tls is not None:
            tls = certificates.context_of(settings.tls)
            await stack.enter_async_context(certificates.kept_fresh(tls, settings.tls))
        port = await stack.enter_async_context(
            listening(settings.listen, handlers, tls=tls, drain=settings.drain)
        )
        stack.push_async_callback(asyncio.sleep, settings.notice)
        await stack.enter_async_context(health.kept_fresh())
        stack.callback(picking.waiting.close)
        yield Server(port=port, processor=processor, health=health, metrics=metrics)
