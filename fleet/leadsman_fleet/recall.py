"""Asks pickers what they were told before, on behalf of an operator that knows nothing.

An operator that was alone and crashed leaves nobody who stood by. An engine's replay reaches back
minutes, its cache hours; but every picker holds the whole of it. So whoever comes to lead, and has
heard nothing, first refuses each Watch with FAILED_PRECONDITION: a picker that was told of the pool
before then hands back what it knows, and comes again. What is handed back is what collectors had
said; who holds grants tells them anyway. Of several pickers the first is taken: all were told the
same.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import grpc
from leadsman.records import KvEvents, Record, StoreSeen, TrustChanged, WorkerGone, WorkerSeen
from leadsman.units import Seconds

from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.clocks import ClockOffset
from leadsman_fleet.codec import decode, shifted
from leadsman_fleet.fleet_pb2_grpc import FleetServicer
from leadsman_fleet.state import FleetState
from leadsman_fleet.waiting import happens

HANDS_BACK: Seconds = 10.0
"""How long one hand-back may take: five million blocks are told in half of it."""


def is_collectors(record: Record) -> bool:
    """Whether a record says what collectors say, and not pickers."""
    return isinstance(record, WorkerSeen | WorkerGone | StoreSeen | KvEvents | TrustChanged)


class Recall(FleetServicer):
    """Serves in place of the pools until they are known. clock: what the states' times are on."""

    def __init__(self, pools: Collection[str], clock: Callable[[], Seconds]) -> None:
        self._missing = set(pools)
        self._clock = clock
        self._states: dict[str, FleetState] = {}
        self._under_way = 0
        self._turned = asyncio.Event()

    async def gather(self, patience: Seconds) -> dict[str, FleetState]:
        """Give what was handed back: of all pools, or of those for which somebody came in time."""
        until = self._clock() + patience
        while self._missing:
            left = until - self._clock() + (HANDS_BACK if self._under_way else 0.0)
            self._turned.clear()
            if left <= 0 or not await happens(self._turned, within=left):
                break
        return self._states

    async def Watch(  # noqa: N802, D102  # the protocol's name, described in fleet.proto
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        if request.pool in self._missing:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "what was told of the pool?")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")

    async def Report(  # noqa: N802, D102
        self, _request: pb.ReportRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")

    async def HandBack(  # noqa: N802, D102
        self,
        parts: AsyncIterator[pb.ReportRequest],
        _context: grpc.aio.ServicerContext[Any, Any],
    ) -> pb.ReportResponse:
        state, offset, pool = FleetState(), ClockOffset(), ""
        self._under_way += 1
        self._turned.set()
        try:
            async for part in parts:
                pool, moved = part.pool, offset.observe(part.sent_at, self._clock())
                for record in decode(part.records).records:
                    if is_collectors(record):
                        state.apply(shifted(record, moved))
            if pool in self._missing:
                self._missing.discard(pool)
                self._states[pool] = state
        finally:
            self._under_way -= 1
            self._turned.set()
        return pb.ReportResponse()
