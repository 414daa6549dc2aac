"""Many pools behind one address: each call goes to the service of the pool that it names.

A pool that was there once stays: its watchers hear that its workers are gone, and hear of the
new ones when it comes back. A pool that never was is not found, so that a misspelt name shows.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import grpc

from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.fleet_pb2_grpc import FleetServicer
from leadsman_fleet.server import FleetService


class Pools(FleetServicer):
    """The services by pool. make: gives a new pool's."""

    def __init__(self, make: Callable[[str], FleetService]) -> None:
        self._make = make
        self._services: dict[str, FleetService] = {}

    def of(self, pool: str) -> FleetService:
        """Give a pool's service; it is there from now on."""
        service = self._services.get(pool)
        if service is None:
            service = self._services[pool] = self._make(pool)
        return service

    async def Watch(  # noqa: N802, D102
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncGenerator[bytes, None]:
        service = await self._named(request.pool, context)
        async with aclosing(service.Watch(request, context)) as envelopes:
            async for envelope in envelopes:
                yield envelope

    async def Report(  # noqa: N802, D102
        self, request: pb.ReportRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ReportResponse:
        service = await self._named(request.pool, context)
        return await service.Report(request, context)

    async def _named(self, pool: str, context: grpc.aio.ServicerContext[Any, Any]) -> FleetService:
        service = self._services.get(pool)
        if service is None:
            known = ", ".join(sorted(self._services)) or "none"
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"no pool {pool!r} here; there are: {known}"
            )
        assert service is not None, "abort raises"
        return service
