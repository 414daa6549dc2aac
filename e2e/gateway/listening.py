"""What pickers tell each other of requests, as the operator's stream has it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from leadsman.records import Ended, Granted, Record
from leadsman_fleet.client import ClientTiming, FleetClient, Target

from .cluster import PATIENCE

FLEET = 9100


@contextlib.asynccontextmanager
async def listening(operator: str, pool: str) -> AsyncIterator[list[Granted | Ended]]:
    """Follow a pool's stream by the operator's address until left; gives what has come so far."""
    heard: list[Granted | Ended] = []

    def hear(record: Record) -> None:
        if isinstance(record, Granted | Ended):
            heard.append(record)

    target = Target(address=f"{operator}:{FLEET}", replica="listener", pool=pool)
    client = FleetClient(target, hear, timing=ClientTiming(linger=0.0, retry=0.2))
    following = asyncio.create_task(client.run())
    try:
        await asyncio.wait_for(client.synced.wait(), PATIENCE)
        yield heard
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
