"""gRPC's framing: a flag, four bytes of length, the message.

Source: the gRPC protocol over HTTP/2, Length-Prefixed-Message.
"""

import struct
from typing import Final

PREFIX: Final = struct.Struct(">BI")


class CompressedError(Exception):
    """A message is compressed, which we never offered to read."""


class MessageReader:
    """Puts messages together from pieces, which may end anywhere.

    Most messages come in one piece and are copied once. A long one is held as views of the pieces
    that it came in, without its prefix, so that joining them is its only copy.
    """

    __slots__ = ("_held", "_is_prefix", "_missing")

    def __init__(self) -> None:
        self._held: list[bytes | memoryview] = []
        self._is_prefix = False
        self._missing = 0

    def feed(self, data: bytes, start: int, stop: int) -> list[bytes]:
        """Take `data[start:stop]`; return the messages that it completes."""
        messages: list[bytes] = []
        if self._held:
            if stop - start < self._missing:
                self._hold(data, start, stop)
                return messages
            end = start + self._missing
            self._held.append(memoryview(data)[start:end])
            whole, self._held = b"".join(self._held), []
            if self._is_prefix:
                data, start, stop = whole + data[end:stop], 0, len(whole) + stop - end
            else:
                messages.append(whole)
                start = end
        while stop - start >= PREFIX.size:
            flag, length = PREFIX.unpack_from(data, start)
            if flag:
                raise CompressedError
            body = start + PREFIX.size
            if body + length > stop:
                self._is_prefix, self._missing = False, length
                self._hold(data, body, stop)
                return messages
            start = body + length
            messages.append(data[body:start])
        if start < stop:
            self._is_prefix, self._missing = True, PREFIX.size
            self._hold(data, start, stop)
        return messages

    def _hold(self, data: bytes, start: int, stop: int) -> None:
        self._held.append(memoryview(data)[start:stop])
        self._missing -= stop - start
