"""HTTP/2 frames as bytes: nine bytes of head, then the payload.

Source: RFC 9113, sections 4.1, 6 and 7.
"""

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_SIZE: Final = 9
MAX_FRAME: Final = 16384
"""The most bytes that a peer may send in one frame unless told otherwise, and we tell nobody."""
FIRST_WINDOW: Final = 65535
MAX_WINDOW: Final = 2**31 - 1

DATA: Final = 0x0
HEADERS: Final = 0x1
PRIORITY: Final = 0x2
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 0x1
INITIAL_WINDOW_SIZE: Final = 0x4
MAX_FRAME_SIZE: Final = 0x5

HEAD: Final = struct.Struct(">IBI")
"""Length and type in one word, flags, stream."""
_SETTING: Final = struct.Struct(">HI")
_WORD: Final = struct.Struct(">I")
_TWO_WORDS: Final = struct.Struct(">II")


class ErrorCode(IntEnum):
    """Why a stream or a connection ends. Source: RFC 9113, section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ConnectionProblem(Exception):  # noqa: N818  (the peer's mistake, not an error of ours)
    """The peer broke the protocol in a way that ends the connection."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """Write the head of a frame."""
    return HEAD.pack(length << 8 | kind, flags, stream)


def settings(values: dict[int, int]) -> bytes:
    """Say our settings."""
    payload = b"".join(_SETTING.pack(name, value) for name, value in values.items())
    return head(len(payload), SETTINGS, 0, 0) + payload


SETTINGS_ACK: Final = head(0, SETTINGS, ACK, 0)


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Read a peer's settings, in order. Raises ConnectionProblem where the length is wrong."""
    if len(payload) % _SETTING.size:
        raise ConnectionProblem(ErrorCode.FRAME_SIZE_ERROR, "settings of a wrong length")
    return list(_SETTING.iter_unpack(payload))


def window_update(stream: int, more: int) -> bytes:
    """Let the peer send so many bytes more."""
    return head(4, WINDOW_UPDATE, 0, stream) + _WORD.pack(more)


def rst_stream(stream: int, code: ErrorCode) -> bytes:
    """End a stream at once."""
    return head(4, RST_STREAM, 0, stream) + _WORD.pack(code)


def goaway(last: int, code: ErrorCode, why: bytes = b"") -> bytes:
    """Say that no stream above `last` is served."""
    return head(8 + len(why), GOAWAY, 0, 0) + _TWO_WORDS.pack(last, code) + why


def ping_ack(payload: bytes) -> bytes:
    """Answer a ping."""
    return head(8, PING, ACK, 0) + payload


def word(payload: bytes) -> int:
    """Read a payload of one number. Raises ConnectionProblem where the length is wrong."""
    if len(payload) != 4:
        raise ConnectionProblem(ErrorCode.FRAME_SIZE_ERROR, "a number of a wrong length")
    return int.from_bytes(payload) & MAX_WINDOW


def unpadded(flags: int, payload: bytes) -> bytes:
    """Take a payload out of its padding. Raises ConnectionProblem where there is too much."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionProblem(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[1 : len(payload) - payload[0]]
