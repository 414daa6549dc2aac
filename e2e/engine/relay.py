"""A TCP relay that can be cut: what passes through it is lost while it is.

The engine's event and replay sockets are reached through relays, so that their connections can be
dropped while engine and picker go on.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from leadsman_bench.processes import free_ports


@dataclass(slots=True)
class Relay:
    """Relays connections to `port` from a free port of its own, in a thread of its own."""

    target: int
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _serving: set["asyncio.Task[None]"] = field(default_factory=set)

    def start(self) -> None:
        """Begin to relay."""
        self.port = self.port or free_ports(1)[0]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.mend()

    def stop(self) -> None:
        """Drop everything, for good."""
        assert self._thread is not None
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Drop all connections, and take none."""
        self._run(self._cut)

    def mend(self) -> None:
        """Take connections again."""
        self._run(self._mend)

    def _run(self, what: Callable[[], Coroutine[None, None, None]]) -> None:
        asyncio.run_coroutine_threadsafe(what(), self._loop).result(timeout=10)

    async def _mend(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in [*self._open]:
            writer.transport.abort()
        while self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            beyond = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, beyond[1]}
        try:
            await asyncio.gather(_pump(reader, beyond[1]), _pump(beyond[0], writer))
        finally:
            self._open -= {writer, beyond[1]}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.transport.abort()
