"""gRPC health: alive while anything answers, ready while some worker is and nothing is drained.

Gateways and charts ask under different names; all but liveness mean readiness.
Source: Gateway API Inference Extension, proposal 004, and its charts.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from leadsman.units import Seconds

EXT_PROC = "envoy.service.ext_proc.v3.ExternalProcessor"
LIVENESS = "liveness"
NAMES = ("", LIVENESS, "readiness", EXT_PROC, "inference-extension")
EVERY: Seconds = 1.0


class Health:
    """The health service of one picker."""

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        # grpc-stubs leave `aio` out.
        self._servicer: Any = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._is_ready = is_ready

    def serve_on(self, server: grpc.aio.Server) -> None:
        """Add the service to a server that was not started yet."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    @asynccontextmanager
    async def kept_fresh(self) -> AsyncIterator[None]:
        """Follow readiness until left; from then on say that nothing new is wanted."""
        await self._say(is_ready=self._is_ready())
        follower = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)
            await self._say(is_ready=False)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            await self._say(is_ready=self._is_ready())

    async def _say(self, *, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in NAMES:
            serves = is_ready or name == LIVENESS
            await self._servicer.set(name, status.SERVING if serves else status.NOT_SERVING)
