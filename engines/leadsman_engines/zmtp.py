"""ZMTP: the bytes between a ZeroMQ publisher, or router, and the one of us who listens to it.

libzmq takes a thread of its own to read: three system calls a message there, three more to hand it
over, 20 us in all where a message is understood in ten. Its messages come in order, on a connection
that is ours alone; nothing else of it is needed. So this reads the protocol itself: a greeting, a
handshake without security, then messages of frames. No socket is in here.

A greeting says version 3.0, which all libzmq 4.x and what is like it speak; there a subscription is
a message. A ping is answered, though 3.0 knows none: a publisher that is told to ping does.

Source: RFC 23/ZMTP 3.0 and 37/ZMTP 3.1 (rfc.zeromq.org); libzmq 4.3 src/zmtp_engine.cpp.
"""

from typing import Final

_GREETING: Final = 64
_HELLO: Final = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MORE: Final = 1
_LONG: Final = 2
_COMMAND: Final = 4
_LIMIT: Final = 1 << 30
"""Bytes of a frame: no batch of events has as many, and who says so says nonsense."""


class ZmtpError(Exception):
    """The peer does not speak the protocol, or not with us."""


def frame(body: bytes, *, more: bool = False, command: bool = False) -> bytes:
    """Write one frame."""
    flags = (_MORE if more else 0) | (_COMMAND if command else 0)
    if len(body) < 256:
        return bytes((flags, len(body))) + body
    return bytes((flags | _LONG,)) + len(body).to_bytes(8) + body


def message(*frames: bytes) -> bytes:
    """Write a message."""
    *first, last = frames
    return b"".join([frame(one, more=True) for one in first]) + frame(last)


def subscription(topic: str) -> bytes:
    """Ask a publisher for all messages whose first frame begins with a topic."""
    return message(b"\x01" + topic.encode())


class Zmtp:
    """One connection, from its first byte.

    kind: the socket type that we are, as `SUB`. outgoing: bytes to be sent to the peer, which the
    caller takes away. is_ready: whether the handshake is over.
    """

    def __init__(self, kind: str) -> None:
        self.outgoing = _HELLO
        self.is_ready = False
        self._kind = kind.encode()
        self._is_greeted = False
        self._rest = b""
        self._later: list[bytes] = []
        self._kept = 0
        self._needed = 1
        self._frames: list[bytes] = []

    def take(self, data: bytes) -> list[list[bytes]]:
        """Take what has come; gives the messages that are whole now. ZmtpError: hang up."""
        if self._rest:
            self._later.append(data)
            self._kept += len(data)
            if self._kept < self._needed:
                return []
            data = self._rest + b"".join(self._later)
            self._later.clear()
        messages: list[list[bytes]] = []
        at = self._read(data, messages)
        self._rest = data[at:]
        self._kept = len(self._rest)
        return messages

    def _read(self, data: bytes, messages: list[list[bytes]]) -> int:
        """Read whole frames; returns where the first that is not whole begins."""
        at, have = 0, len(data)
        if not self._is_greeted:
            if have < _GREETING:
                self._needed = _GREETING
                return 0
            self._greet(data)
            at = _GREETING
        while have - at >= 2:
            flags = data[at]
            if flags & _LONG:
                if have - at < 9:
                    self._needed = 9
                    return at
                size, begin = int.from_bytes(data[at + 1 : at + 9]), at + 9
                if size > _LIMIT:
                    raise ZmtpError(f"a frame of {size} bytes")
            else:
                size, begin = data[at + 1], at + 2
            end = begin + size
            if end > have:
                self._needed = end - at
                return at
            body = data[begin:end]
            at = end
            if flags & _COMMAND:
                self._obey(body)
            elif flags & _MORE:
                self._frames.append(body)
            else:
                self._frames.append(body)
                messages.append(self._frames)
                self._frames = []
        self._needed = 2
        return at

    def _greet(self, data: bytes) -> None:
        if data[0] != 0xFF or data[9] != 0x7F or data[10] < 3:
            raise ZmtpError("no ZeroMQ of version 4 or newer")
        mechanism = data[12:32].rstrip(b"\0")
        if mechanism != b"NULL":
            raise ZmtpError(f"it wants to be spoken to by {mechanism.decode(errors='replace')}")
        self._is_greeted = True
        properties = _property(b"Socket-Type", self._kind)
        if self._kind == b"DEALER":
            properties += _property(b"Identity", b"")
        self.outgoing += frame(b"\x05READY" + properties, command=True)

    def _obey(self, body: bytes) -> None:
        name = body[1 : 1 + body[0]] if body else b""
        if name == b"READY":
            self.is_ready = True
        elif name == b"ERROR":
            raise ZmtpError(f"it refuses: {body[7:].decode(errors='replace')}")
        elif name == b"PING":
            self.outgoing += frame(b"\x04PONG" + body[7:], command=True)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4) + value
