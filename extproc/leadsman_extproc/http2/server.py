"""Listening, and ending without breaking what is under way."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from leadsman.units import Seconds

from leadsman_extproc.http2.calls import Handlers
from leadsman_extproc.http2.connection import Connection

_LOOK_EVERY: Final[Seconds] = 0.02


@asynccontextmanager
async def listening(
    address: str, handlers: Handlers, *, tls: ssl.SSLContext | None = None, drain: Seconds = 0.0
) -> AsyncIterator[int]:
    """Serve at `host:port` until left; gives the port. Then calls have `drain` seconds to end.

    Raises OSError where the address cannot be had.
    """
    connections: set[Connection] = set()

    def connect() -> Connection:
        return Connection(handlers, connections)

    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(connect, host.strip("[]") or None, int(port), ssl=tls)
    except (ValueError, OSError) as problem:
        raise OSError(f"cannot listen at {address}: {problem}") from problem
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for connection in connections:
            connection.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain):
                while any(one.open_calls for one in connections):  # noqa: ASYNC110  (rare)
                    await asyncio.sleep(_LOOK_EVERY)
        for connection in list(connections):
            connection.close()
