"""Waiting for what may not happen."""

import asyncio

from leadsman.units import Seconds


async def happens(event: asyncio.Event, *, within: Seconds) -> bool:
    """Wait for an event; False where it does not happen in time."""
    try:
        async with asyncio.timeout(within):
            await event.wait()
    except TimeoutError:
        return False
    return True
