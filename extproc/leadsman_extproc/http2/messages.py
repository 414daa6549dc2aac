"""gRPC's framing: a flag, four bytes of length, the message.

Source: the gRPC protocol over HTTP/2, Length-Prefixed-Message.
"""

import struct
from typing import Final

PREFIX: Final = struct.Struct(">BI")
PREFIX_SIZE: Final = PREFIX.size


class CompressedError(Exception):
    """A message is compressed, which we never offered to read."""


class MessageReader:
    """Puts messages together from pieces, which may end anywhere."""

    __slots__ = ("_held", "_size", "_wanted")

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0
        self._wanted = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Take the next bytes; return the messages that they complete."""
        if self._held:
            self._held.append(piece)
            self._size += len(piece)
            if self._size < self._wanted:
                return []
            piece = b"".join(self._held)
            self._held = []
        messages = []
        start, stop = 0, len(piece)
        while stop - start >= PREFIX_SIZE:
            flag, length = PREFIX.unpack_from(piece, start)
            if flag:
                raise CompressedError
            end = start + PREFIX_SIZE + length
            if end > stop:
                self._wanted = end - start
                break
            messages.append(piece[start + PREFIX_SIZE : end])
            start = end
        else:
            self._wanted = PREFIX_SIZE
        if start < stop:
            self._held.append(piece[start:])
            self._size = stop - start
        return messages
