"""One stream of a connection, which is one call.

    open ── the caller's end ──> half closed ── our end ──> closed
      └── our end, which also resets the caller's side ──────┘
      └── reset by the caller, or the connection is lost ────┘

Our end goes out behind everything that was sent before it; until it has, the stream stays, closed
for whoever handles it. Where the peer does not take what is sent to it, it is not let send more
on this stream either: so nothing piles up here but what one window holds.

Source: RFC 9113, section 5.1; the gRPC protocol over HTTP/2, Responses.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from leadsman_extproc.http2 import frames
from leadsman_extproc.http2.calls import Handler, Receiver, Status
from leadsman_extproc.http2.frames import ConnectionProblem, ErrorCode
from leadsman_extproc.http2.headers import ANSWER_HEADERS, written
from leadsman_extproc.http2.messages import PREFIX, CompressedError, MessageReader
from leadsman_extproc.http2.outflow import Outflow, Outlet

LOG: Final = logging.getLogger(__name__)
WINDOW: Final = 16 * 2**20
"""Bytes that a peer may have under way on one stream: a long prompt never waits for a grant."""


class Stream(Outlet):
    """A stream from its first frame to its last; is the `Call` of whoever handles it.

    closed: called with the stream's number when nothing more will be sent on it. fields: the
    headers that it began with.
    """

    __slots__ = (
        "_closed",
        "_is_answered",
        "_is_over",
        "_is_whole",
        "_outflow",
        "_owed",
        "_reader",
        "_receiver",
        "fields",
    )

    def __init__(
        self,
        number: int,
        outflow: Outflow,
        closed: Callable[[int], None],
        fields: Mapping[bytes, bytes],
    ) -> None:
        super().__init__(number, outflow.initial_window)
        self.fields = fields
        self._outflow = outflow
        self._closed = closed
        self._reader = MessageReader()
        self._receiver: Receiver | None = None
        self._is_answered = False
        self._is_whole = False
        self._is_over = False
        self._owed = 0

    # -- as a call ----------------------------------------------------------------------------

    def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, in order."""
        if self._is_over or not messages:
            return
        before = b"" if self._is_answered else self._headers(ANSWER_HEADERS, 0)
        self._is_answered = True
        pieces: list[bytes] = []
        for message in messages:
            pieces += (PREFIX.pack(0, len(message)), message)
        self._outflow.send(self, before, pieces)

    def finish(self, status: Status = Status.OK, why: str = "") -> None:
        """End the call."""
        if self._is_over:
            return
        self._is_over = True
        fields = [(b"grpc-status", b"%d" % status)]
        if why:
            fields.append((b"grpc-message", quote(why).encode()))
        block = written(fields) if self._is_answered else ANSWER_HEADERS + written(fields)
        last = self._headers(block, frames.END_STREAM)
        if not self._is_whole:
            last += frames.rst_stream(self.number, ErrorCode.NO_ERROR)
        self._outflow.end(self, last)
        if not self.waiting:
            self._closed(self.number)
        self._take_leave()

    # -- as a stream --------------------------------------------------------------------------

    def begin(self, handler: Handler) -> None:
        """Give the call to its handler."""
        self._receiver = handler(self)

    def take(self, size: int, data: bytes, start: int, stop: int) -> None:
        """Take the bytes `data[start:stop]` of a frame; `size` counts its padding too."""
        self._owed += size
        if self._owed > WINDOW:
            raise ConnectionProblem(ErrorCode.FLOW_CONTROL_ERROR, "more than a stream may send")
        if not self._is_over:
            try:
                self._hand_over(data, start, stop)
            except CompressedError:
                self.finish(Status.UNIMPLEMENTED, "compressed messages are not read")
        if self._owed >= WINDOW // 2 and not self.waiting:
            self._let_send()

    def end(self) -> None:
        """Take note that the caller has said all."""
        self._is_whole = True
        if self._receiver is not None and not self._is_over:
            self._guarded(self._receiver.whole)

    def reset(self) -> None:
        """Take note that the stream is no more."""
        self._is_over = True
        self._outflow.forget(self)
        self._take_leave()

    def _hand_over(self, data: bytes, start: int, stop: int) -> None:
        receiver = self._receiver
        if receiver is None:
            return
        for message in self._reader.feed(data, start, stop):
            self._guarded(receiver.message, message)
            if self._is_over:
                return

    def _guarded(self, act: Callable[..., None], *given: bytes) -> None:
        try:
            act(*given)
        except Exception:
            LOG.exception("a call failed")
            self.finish(Status.UNKNOWN, "the handler failed")

    def _take_leave(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            self._guarded(receiver.gone)

    def _headers(self, block: bytes, flags: int) -> bytes:
        flags |= frames.END_HEADERS
        return frames.head(len(block), frames.HEADERS, flags, self.number) + block

    def drained(self) -> None:
        """Close what is over; else let the peer send again."""
        if self._is_over:
            self._closed(self.number)
        elif self._owed >= WINDOW // 2:
            self._let_send()

    def _let_send(self) -> None:
        if not self._is_whole:
            self._outflow.put(frames.window_update(self.number, self._owed))
        self._owed = 0
