"""Connections to ZeroMQ sockets on an asyncio loop: made, read, and made again when they break.

What comes is heard in the callback that read it. Whoever sends faster than it is heard is slowed
down by its own full buffers, as any TCP peer, and a publisher then drops what it would have sent.

The kernel looks whether a silent peer is still there: a publisher says nothing for hours, and one
whose machine is gone would be waited for as long.

Source: ZeroMQ zmq_tcp(7), zmq_ipc(7); zmq_setsockopt(3), ZMQ_RECONNECT_IVL.
"""

import asyncio
import logging
import random
import socket
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from leadsman.units import Seconds

from leadsman_engines.zmtp import Zmtp, ZmtpError

log = logging.getLogger(__name__)

Frames: TypeAlias = list[bytes]
RECONNECT: Final[Seconds] = 0.1
HANDSHAKE: Final[Seconds] = 5.0
_TURN: Final = 32 * 1024
"""Bytes heard from one peer before others have their turn."""
_ALIVE: Final = {socket.TCP_KEEPIDLE: 15, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}


class Link:
    """A connection to one endpoint.

    kind: which socket we are, as `SUB`. first: what is said once the peer is ready. on_ready: told
    so, before. hear: gets each message. What either raises ends `run`.
    """

    def __init__(
        self,
        endpoint: str,
        kind: str,
        first: bytes,
        hear: Callable[[Frames], None],
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._endpoint = endpoint
        self._kind = kind
        self._first = first
        self._hear = hear
        self._on_ready = on_ready
        self._peer: _Peer | None = None

    async def run(self) -> None:
        """Be connected until cancelled. ValueError where the endpoint is none."""
        while True:
            peer = _Peer(Zmtp(self._kind), self._greeted, self._hear)
            self._peer = peer
            try:
                await self._follow(peer)
            except (OSError, TimeoutError, ZmtpError) as error:
                fields = {"endpoint": self._endpoint, "error": str(error) or repr(error)}
                log.debug("not connected", extra=fields)
            finally:
                peer.hang_up()
            if peer.failure is not None:
                raise peer.failure
            await asyncio.sleep(RECONNECT * random.uniform(0.5, 1.0))

    def hang_up(self) -> None:
        """Hear nothing more; to be cancelled by whoever runs it."""
        if self._peer is not None:
            self._peer.hang_up()

    async def _follow(self, peer: "_Peer") -> None:
        """Connect, and hear until the connection breaks."""
        async with asyncio.timeout(HANDSHAKE):
            await _connect(self._endpoint, peer)
            await peer.turned.wait()
        await peer.gone

    def _greeted(self) -> bytes:
        self._on_ready()
        return self._first


class _Peer(asyncio.Protocol):
    """One connection.

    greeted: gives what to say to a peer that is ready. turned: set once it is, or will never be.
    gone: the connection's end. failure: what those who hear raised.
    """

    def __init__(
        self, wire: Zmtp, greeted: Callable[[], bytes], hear: Callable[[Frames], None]
    ) -> None:
        self.turned = asyncio.Event()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failure: Exception | None = None
        self._wire = wire
        self._greeted = greeted
        self._hear = hear
        self._is_over = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self._send()

    def data_received(self, data: bytes) -> None:
        """Hear what is whole."""
        if self._is_over or self._transport is None:
            return
        if len(data) > _TURN:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)
        try:
            messages = self._wire.take(data)
        except ZmtpError as problem:
            self._end(problem)
            return
        try:
            if not self.turned.is_set() and self._wire.is_ready:
                self._wire.outgoing += self._greeted()
                self.turned.set()
            if self._wire.outgoing:
                self._send()
            for frames in messages:
                if self._is_over:
                    return
                self._hear(frames)
        except Exception as error:  # noqa: BLE001  # raised by whoever runs the link
            self.failure = error
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so."""
        self._transport = None
        self._end(exc)

    def hang_up(self) -> None:
        """End the connection, and hear nothing more."""
        self._end(None)
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        assert self._transport is not None
        self._transport.write(self._wire.outgoing)
        self._wire.outgoing = b""

    def _go_on(self) -> None:
        if self._transport is not None and not self._is_over:
            self._transport.resume_reading()

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self.turned.set()
        if self.gone.done():
            return
        if error is None:
            self.gone.set_result(None)
        else:
            self.gone.set_exception(error)
            self.gone.exception()  # whoever does not wait any more need not be told


async def _connect(endpoint: str, peer: _Peer) -> None:
    """Connect to an endpoint as libzmq writes them. OSError where nobody is there."""
    loop = asyncio.get_running_loop()
    way, _, place = endpoint.partition("://")
    if way == "ipc":
        path = "\0" + place[1:] if place.startswith("@") else place
        await loop.create_unix_connection(lambda: peer, path)
        return
    host, _, port = place.rpartition(":")
    if way != "tcp" or not port.isdecimal():
        raise ValueError(f"{endpoint!r} is neither tcp://HOST:PORT nor ipc://PATH")
    transport, _ = await loop.create_connection(lambda: peer, host.strip("[]"), int(port))
    connection = cast("socket.socket", transport.get_extra_info("socket"))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _ALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
