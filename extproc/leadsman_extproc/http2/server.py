"""Listening, and ending without breaking what is under way."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from leadsman.units import Seconds

from leadsman_extproc.http2.calls import Handlers
from leadsman_extproc.http2.connection import Connection

_LOOK_EVERY: Final[Seconds] = 0.02
_LAST_WORDS: Final[Seconds] = 1.0
"""How long a peer may take to read what was said before its connection is cut."""


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
        await _until(lambda: not any(one.open_calls for one in connections), within=drain)
        for connection in list(connections):
            connection.close()
        await _until(lambda: not connections, within=_LAST_WORDS)
        for connection in list(connections):
            connection.abort()


async def _until(is_so: Callable[[], bool], *, within: Seconds) -> None:
    """Wait until it is so, or as long as that is bearable."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            while not is_so():  # noqa: ASYNC110  (rare)
                await asyncio.sleep(_LOOK_EVERY)
