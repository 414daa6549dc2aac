"""What a connection has to send, within what its peer lets it.

A peer grants bytes by stream and for the connection as a whole. What fits goes out at once; what
does not waits with its stream, in order, and goes out as the peer grants more. Long messages are
not copied: they are cut into frames as views of them.

While bytes that came are being worked through, frames gather and leave together; at any other time
each leaves at once.

Source: RFC 9113, sections 5.2 and 6.9.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

from leadsman_extproc.http2 import frames
from leadsman_extproc.http2.frames import ConnectionProblem, ErrorCode

Buffer: TypeAlias = bytes | memoryview
_JOINED: Final = 65536
"""Bytes up to which one copy is cheaper than a list of pieces for the kernel."""


class Outlet(ABC):
    """One stream's side of it: what its peer lets it send, and what waits for that.

    A stream is one, rather than has one that calls it back: so it is freed with its last frame, and
    leaves nothing for the garbage collector to find.
    """

    __slots__ = ("last", "number", "waiting", "window")

    def __init__(self, number: int, window: int) -> None:
        self.number = number
        self.window = window
        self.waiting: deque[memoryview] = deque()
        self.last = b""

    @abstractmethod
    def drained(self) -> None:
        """Take note that nothing waits any more."""


class Outflow:
    """Sends the frames of one connection. `gathers`: whether frames wait for `flush`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.gathers = False
        self.initial_window = frames.FIRST_WINDOW
        self.max_frame = frames.MAX_FRAME
        self._window = frames.FIRST_WINDOW
        self._transport = transport
        self._out: list[Buffer] = []
        self._size = 0
        self._blocked: dict[int, Outlet] = {}

    @property
    def has_gathered(self) -> bool:
        """Whether frames wait for `flush`."""
        return bool(self._out)

    def put(self, frame: bytes) -> None:
        """Send a frame that no window bounds."""
        self._add(frame)
        self._leave()

    def send(self, outlet: Outlet, before: bytes, pieces: Sequence[bytes]) -> None:
        """Send a frame and a stream's bytes as DATA, as far as its peer lets us; the rest later."""
        if before:
            self._add(before)
        size = sum(map(len, pieces))
        if outlet.waiting or size > outlet.window or size > self._window:
            outlet.waiting.extend(memoryview(piece) for piece in pieces if piece)
            self._blocked[outlet.number] = outlet
            self._drain(outlet)
        elif size <= self.max_frame:
            self._spend(outlet, size)
            self._add(frames.head(size, frames.DATA, 0, outlet.number))
            self._out.extend(pieces)
            self._size += size
        else:
            self._spend(outlet, size)
            self._cut(outlet.number, [memoryview(piece) for piece in pieces], size)
        self._leave()

    def end(self, outlet: Outlet, last: bytes) -> None:
        """Send the frames that end a stream, behind all that waits."""
        if outlet.waiting:
            outlet.last = last
        else:
            self.put(last)

    def forget(self, outlet: Outlet) -> None:
        """Drop what waits: the stream is no more."""
        outlet.waiting.clear()
        outlet.last = b""
        self._blocked.pop(outlet.number, None)

    def grant(self, more: int) -> None:
        """Take note that the peer takes so much more in all."""
        self._window = _grown(self._window, more)
        for blocked in list(self._blocked.values()):
            self._drain(blocked)
        self._leave()

    def grant_one(self, outlet: Outlet, more: int) -> None:
        """Take note that the peer takes so much more (or less) of one stream."""
        outlet.window = _grown(outlet.window, more)
        if outlet.waiting:
            self._drain(outlet)
            self._leave()

    def adopt(self, settings: bytes, outlets: Sequence[Outlet]) -> None:
        """Take a peer's settings; a new first window moves those of open streams as well."""
        for name, value in frames.read_settings(settings):
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionProblem(ErrorCode.FLOW_CONTROL_ERROR, "too large a window")
                more, self.initial_window = value - self.initial_window, value
                for outlet in outlets:
                    self.grant_one(outlet, more)
            elif name == frames.MAX_FRAME_SIZE:
                if value < frames.MAX_FRAME:
                    raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "too small a frame")
                self.max_frame = value

    def flush(self) -> None:
        """Hand over to the transport what was gathered."""
        out, size = self._out, self._size
        if not out:
            return
        self._out, self._size = [], 0
        if size <= _JOINED:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def _leave(self) -> None:
        if not self.gathers:
            self.flush()

    def _add(self, frame: bytes) -> None:
        self._out.append(frame)
        self._size += len(frame)

    def _drain(self, outlet: Outlet) -> None:
        """Send what waits as far as it may go."""
        room = max(0, min(outlet.window, self._window))
        pieces: list[memoryview] = []
        size = 0
        while outlet.waiting and size < room:
            piece = outlet.waiting.popleft()
            fits = room - size
            if len(piece) > fits:
                outlet.waiting.appendleft(piece[fits:])
                piece = piece[:fits]
            pieces.append(piece)
            size += len(piece)
        self._spend(outlet, size)
        self._cut(outlet.number, pieces, size)
        if not outlet.waiting:
            del self._blocked[outlet.number]
            if outlet.last:
                self._add(outlet.last)
            outlet.drained()

    def _cut(self, number: int, pieces: Sequence[memoryview], size: int) -> None:
        """Cut bytes into frames, each as long as the peer takes them."""
        room = 0
        for piece in pieces:
            at = 0
            while at < len(piece):
                if not room:
                    room = min(size, self.max_frame)
                    self._add(frames.head(room, frames.DATA, 0, number))
                part = piece[at : at + room]
                taken = len(part)
                self._out.append(part)
                self._size += taken
                at, room, size = at + taken, room - taken, size - taken

    def _spend(self, outlet: Outlet, size: int) -> None:
        outlet.window -= size
        self._window -= size


def _grown(window: int, more: int) -> int:
    if window + more > frames.MAX_WINDOW:
        raise ConnectionProblem(ErrorCode.FLOW_CONTROL_ERROR, "a window grew too large")
    return window + more
