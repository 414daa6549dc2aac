"""ZeroMQ sockets on an asyncio loop, read where they are told to be readable.

pyzmq's own asyncio sockets make a future for every wait and every message: 150 us a message, six
times what a message costs to be understood here. A socket's descriptor tells only that something
changed since it was looked at last; so whoever is woken reads until nothing is left, or comes back
by itself.

A process may have 1,023 sockets by default, and each stream of events takes four: the context that
is shared here has room for as many as there can be.

Source: ZeroMQ zmq_getsockopt(3), ZMQ_FD; zmq_ctx_set(3), ZMQ_MAX_SOCKETS, ZMQ_SOCKET_LIMIT.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

import zmq

Frames = list[bytes]
_POLLIN: Final = int(zmq.POLLIN)


@cache
def context() -> "zmq.Context[zmq.Socket[bytes]]":
    """Give the context of all streams of this process."""
    made = zmq.Context()
    made.set(zmq.MAX_SOCKETS, made.get(zmq.SOCKET_LIMIT))
    return made


def arrived(socket: "zmq.Socket[bytes]", limit: int | None = None) -> Iterator[Frames]:
    """Give the messages that have come already, `limit` at most.

    A frame knows whether more follow, and to ask the socket takes as long as to read it.
    """
    given = 0
    while (limit is None or given < limit) and int(socket.getsockopt(zmq.EVENTS)) & _POLLIN:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        frames = [frame.bytes]
        while frame.more:
            frame = socket.recv(zmq.NOBLOCK, copy=False)
            frames.append(frame.bytes)
        yield frames
        given += 1


class Waking:
    """Calls `wake` whenever one of its sockets may have something, until it is closed."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._sockets: set[zmq.Socket[bytes]] = set()

    def add(self, socket: "zmq.Socket[bytes]") -> None:
        """Wake for this one too, and at once: what came before now wakes nobody."""
        self._sockets.add(socket)
        self._loop.add_reader(socket.FD, self._wake)
        self._loop.call_soon(self._wake)

    def drop(self, socket: "zmq.Socket[bytes]") -> None:
        """Wake for it no more, and close it."""
        self._sockets.discard(socket)
        self._loop.remove_reader(socket.FD)
        socket.close(linger=0)

    def close(self) -> None:
        """Close all."""
        for socket in list(self._sockets):
            self.drop(socket)
