"""One connection: frames in, calls served, frames out.

A gateway keeps one connection a worker thread and opens a stream on it for each HTTP request.
Everything is done as it comes: a frame that completes a message hands it to its call, and what
the call sends leaves with what the rest of the same bytes brings about.

A peer's mistake ends the connection where the protocol says so, else its stream. Frames of streams
that are closed already are normal (they were under way) and count for nothing but the window.

Source: RFC 9113, sections 3.4, 4, 5.1 and 6.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, cast

from leadsman.units import Seconds

from leadsman_extproc.http2 import frames
from leadsman_extproc.http2.calls import Handlers, Status
from leadsman_extproc.http2.frames import ConnectionProblem, ErrorCode
from leadsman_extproc.http2.headers import HeaderReader, Headers
from leadsman_extproc.http2.outflow import Outflow
from leadsman_extproc.http2.stream import WINDOW, Stream

LOG: Final = logging.getLogger(__name__)
_CONNECTION_WINDOW: Final = 256 * 2**20
_PATIENCE: Final[Seconds] = 0.01
"""How long answers wait for those to what came with them: a burst is judged one by one."""
_GREETING: Final = frames.settings({frames.INITIAL_WINDOW_SIZE: WINDOW}) + frames.window_update(
    0, _CONNECTION_WINDOW - frames.FIRST_WINDOW
)


class Connection(asyncio.Protocol):
    """Serves `handlers` to one peer; is one of `those_open` from its handshake to its end."""

    def __init__(self, handlers: Handlers, those_open: set["Connection"]) -> None:
        self._handlers = handlers
        self._those_open = those_open
        self._streams: dict[int, Stream] = {}
        self._headers = HeaderReader()
        self._rest = b""
        self._is_greeted = False
        self._is_leaving = False
        self._owed = 0
        self._last = 0

    @property
    def open_calls(self) -> int:
        """How many calls are open."""
        return len(self._streams)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        if transport.get_extra_info("sslcontext") is None:
            self._transport.set_write_buffer_limits(high=0)  # a write leaves at once if it can
        self._outflow = Outflow(self._transport)
        self._outflow.put(_GREETING)
        self._those_open.add(self)

    def data_received(self, data: bytes) -> None:
        """Work through the frames that are whole, and keep the rest."""
        if self._rest:
            data = self._rest + data
        self._outflow.gathers = True
        try:
            self._rest = data[self._work(data) :]
            self._let_send()
        except ConnectionProblem as problem:
            self._send_away(problem)
        finally:
            self._outflow.gathers = False
            self._outflow.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take leave of every call."""
        del exc
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.reset()
        self._those_open.discard(self)

    def pause_writing(self) -> None:
        """Read nothing more while the peer does not read."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on reading."""
        self._transport.resume_reading()

    def leave(self) -> None:
        """Take no new calls; those that are open may end."""
        if not self._is_leaving:
            self._is_leaving = True
            self._outflow.put(frames.goaway(self._last, ErrorCode.NO_ERROR))

    def close(self) -> None:
        """End the connection, and every call on it, once what was said has left."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection now."""
        self._transport.abort()

    # -- frames -------------------------------------------------------------------------------

    def _work(self, data: bytes) -> int:
        """Work through whole frames; return where the first that is not whole begins."""
        at, end = 0, len(data)
        if not self._is_greeted:
            if end < len(frames.PREFACE):
                return 0
            if not data.startswith(frames.PREFACE):
                raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "no HTTP/2")
            self._is_greeted = True
            at = len(frames.PREFACE)
        until = time.monotonic() + _PATIENCE
        while end - at >= frames.HEAD_SIZE:
            word, flags, number = frames.HEAD.unpack_from(data, at)
            size, kind = word >> 8, word & 0xFF
            if size > frames.MAX_FRAME:
                raise ConnectionProblem(ErrorCode.FRAME_SIZE_ERROR, "a frame is too long")
            start = at + frames.HEAD_SIZE
            if start + size > end:
                break
            at = start + size
            if kind == frames.DATA and self._headers.open_for is None:
                self._data(flags, number & frames.MAX_WINDOW, data, start, at)
            else:
                self._frame(kind, flags, number & frames.MAX_WINDOW, data[start:at])
            if self._outflow.has_gathered and time.monotonic() >= until:
                self._outflow.flush()
                until = time.monotonic() + _PATIENCE
        return at

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        open_for = self._headers.open_for
        if open_for is not None and (kind, number) != (frames.CONTINUATION, open_for):
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        take = _TAKES.get(kind)
        if take is not None:  # frames of unknown kinds are ignored: RFC 9113, section 5.5
            take(self, flags, number, payload)

    def _data(self, flags: int, number: int, data: bytes, start: int, stop: int) -> None:
        size = stop - start
        self._owed += size
        if self._owed > _CONNECTION_WINDOW:
            raise ConnectionProblem(ErrorCode.FLOW_CONTROL_ERROR, "more than is let in")
        stream = self._streams.get(number)
        if stream is None:
            if number == 0 or number > self._last:
                raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "data of no stream")
            return
        if flags & frames.PADDED:
            data = frames.unpadded(flags, data[start:stop])
            start, stop = 0, len(data)
        stream.take(size, data, start, stop)
        if flags & frames.END_STREAM:
            stream.end()

    def _open(self, flags: int, number: int, payload: bytes) -> None:
        self._opened(self._headers.begin(number, flags, payload))

    def _continue(self, flags: int, _number: int, payload: bytes) -> None:
        self._opened(self._headers.go_on(flags, payload))

    def _opened(self, headers: Headers | None) -> None:
        """Begin a call, or end one whose trailers these are; not whole yet where None."""
        if headers is None:
            return
        stream = self._streams.get(headers.stream) or self._begin(headers.stream, headers.fields)
        if stream is not None and headers.end_of_stream:
            stream.end()

    def _begin(self, number: int, fields: Mapping[bytes, bytes]) -> Stream | None:
        if number % 2 == 0:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "a caller's streams are odd")
        if number <= self._last:
            return None  # trailers of a call that is over
        if self._is_leaving:
            self._outflow.put(frames.rst_stream(number, ErrorCode.REFUSED_STREAM))
            return None
        self._last = number
        stream = self._streams[number] = Stream(number, self._outflow, self._forget, fields)
        handler = self._handlers.get(fields.get(b":path", b"").decode("latin-1"))
        if handler is None:
            stream.finish(Status.UNIMPLEMENTED, "no such method")
            return None
        stream.begin(handler)
        return stream

    def _reset(self, _flags: int, number: int, payload: bytes) -> None:
        frames.word(payload)
        if number > self._last or number == 0:
            raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "a reset of no stream")
        stream = self._streams.pop(number, None)
        if stream is not None:
            stream.reset()

    def _set(self, flags: int, _number: int, payload: bytes) -> None:
        if flags & frames.ACK:
            return
        # A peer holds us to its old windows until it has the acknowledgement: that goes first.
        self._outflow.put(frames.SETTINGS_ACK)
        self._outflow.adopt(payload, list(self._streams.values()))

    def _ping(self, flags: int, _number: int, payload: bytes) -> None:
        if not flags & frames.ACK:
            self._outflow.put(frames.ping_ack(payload))

    def _grant(self, _flags: int, number: int, payload: bytes) -> None:
        more = frames.word(payload)
        stream = self._streams.get(number)
        if number == 0:
            self._outflow.grant(more)
        elif stream is not None:
            self._outflow.grant_one(stream, more)

    # -- what we owe the peer -----------------------------------------------------------------

    def _let_send(self) -> None:
        if self._owed >= _CONNECTION_WINDOW // 2:
            self._outflow.put(frames.window_update(0, self._owed))
            self._owed = 0

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def _send_away(self, problem: ConnectionProblem) -> None:
        LOG.warning("a peer broke HTTP/2", extra={"why": str(problem), "code": problem.code.name})
        self._outflow.put(frames.goaway(self._last, problem.code, str(problem).encode()))
        self._outflow.flush()
        self._transport.close()


_TAKES: Final[Mapping[int, Callable[[Connection, int, int, bytes], None]]] = {
    frames.HEADERS: Connection._open,
    frames.CONTINUATION: Connection._continue,
    frames.RST_STREAM: Connection._reset,
    frames.SETTINGS: Connection._set,
    frames.PING: Connection._ping,
    frames.WINDOW_UPDATE: Connection._grant,
}
