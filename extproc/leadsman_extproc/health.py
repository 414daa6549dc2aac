"""gRPC health: alive while anything answers, ready while some worker is and nothing is drained.

A picker that still hears what was said before it came is not ready: it would decide on the past.

Gateways and charts ask under different names; all but liveness mean readiness.
Source: Gateway API Inference Extension, proposal 004, and its charts; grpc.health.v1.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from leadsman.units import Seconds

from leadsman_extproc.http2.calls import Call, Handlers, Receiver, Status

EXT_PROC: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS: Final = "liveness"
NAMES: Final = frozenset({"", LIVENESS, "readiness", EXT_PROC, "inference-extension"})
EVERY: Final[Seconds] = 1.0
_STATUS: Final = health_pb2.HealthCheckResponse


class Health:
    """The health service of one picker."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._serves = False
        self._watching: set[_Watch] = set()

    def handlers(self) -> Handlers:
        """Return what is to be served."""
        return {
            "/grpc.health.v1.Health/Check": self._check,
            "/grpc.health.v1.Health/Watch": self._watch,
        }

    def status(self, name: str) -> int | None:
        """Say a service's status; None for a name that nobody serves."""
        if name not in NAMES:
            return None
        return int(_STATUS.SERVING if self._serves or name == LIVENESS else _STATUS.NOT_SERVING)

    @asynccontextmanager
    async def kept_fresh(self) -> AsyncIterator[None]:
        """Follow readiness until left; from then on say that nothing new is wanted."""
        self._say(is_ready=self._is_ready())
        follower = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            self._say(is_ready=False)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            self._say(is_ready=self._is_ready())

    def _say(self, *, is_ready: bool) -> None:
        self._serves = is_ready
        for watch in self._watching:
            watch.tell()

    def _check(self, call: Call) -> Receiver:
        return _Check(self, call)

    def _watch(self, call: Call) -> Receiver:
        watch = _Watch(self, call, self._watching.discard)
        self._watching.add(watch)
        return watch


class _Check:
    """One question, one answer."""

    def __init__(self, health: Health, call: Call) -> None:
        self._health = health
        self._call = call

    def message(self, raw: bytes) -> None:
        name = _asked(raw)
        status = None if name is None else self._health.status(name)
        if status is None:
            self._call.finish(Status.NOT_FOUND, "unknown service")
            return
        self._call.send([_said(status)])
        self._call.finish()

    def whole(self) -> None:
        self._call.finish(Status.UNKNOWN, "nothing was asked")

    def gone(self) -> None:
        pass


class _Watch:
    """One question, and an answer whenever it changes."""

    def __init__(self, health: Health, call: Call, gone: Callable[["_Watch"], None]) -> None:
        self._health = health
        self._call = call
        self._gone = gone
        self._name: str | None = None
        self._told: int | None = None

    def message(self, raw: bytes) -> None:
        self._name = _asked(raw)
        self.tell()

    def tell(self) -> None:
        if self._name is None:
            return
        known = self._health.status(self._name)
        status = int(_STATUS.SERVICE_UNKNOWN) if known is None else known
        if status != self._told:
            self._told = status
            self._call.send([_said(status)])

    def whole(self) -> None:
        """Nothing more is asked; the answers go on."""

    def gone(self) -> None:
        self._gone(self)


def _asked(raw: bytes) -> str | None:
    try:
        return str(health_pb2.HealthCheckRequest.FromString(raw).service)
    except DecodeError:
        return None


def _said(status: int) -> bytes:
    said: bytes = _STATUS(status=status).SerializeToString()
    return said
