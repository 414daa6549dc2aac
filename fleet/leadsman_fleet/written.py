"""Records as the bytes that they are in an envelope, written once however many read them.

An envelope is a head and its records behind it: a message may be cut between any two of its
fields. Nearly all records are KV events, so these are put into bytes here, as protobuf would; the
others it writes itself.

Source: protobuf.dev/programming-guides/encoding; fleet.proto.
"""

from functools import lru_cache
from struct import Struct
from typing import Final

from leadsman.records import KvEvent, KvEvents, Record, Removed, Stored

from leadsman_fleet.codec import encode, pack

_TIMES: Final = Struct("<cdcd").pack
_BYTE: Final = [bytes((value,)) for value in range(256)]


def element(record: Record) -> bytes:
    """Write one record as an element of an envelope's `records`, tag and length included."""
    if isinstance(record, KvEvents):
        return _sized(b"\x32", _sized(b"\x1a", _batch(record)))
    return _sized(b"\x32", encode(record).SerializeToString())


def _batch(record: KvEvents) -> bytes:
    parts = [
        _text(b"\x0a", record.worker),
        b"\x10" + _varint(record.sequence),
        _TIMES(b"\x19", record.engine_time, b"\x21", record.received_at),
    ]
    parts += [_sized(b"\x2a", _event(event)) for event in record.events]
    return b"".join(parts)


def _event(event: KvEvent) -> bytes:
    if isinstance(event, Stored):
        body = _sized(b"\x0a", pack(event.keys)) + _text(b"\x12", event.tier)
        if event.session is not None:
            body += _sized(b"\x1a", event.session.encode())
        return _sized(b"\x0a", body)
    if isinstance(event, Removed):
        return _sized(b"\x12", _sized(b"\x0a", pack(event.keys)) + _text(b"\x12", event.tier))
    return _sized(b"\x1a", b"" if event.tier is None else _text(b"\x0a", event.tier))


@lru_cache(maxsize=4096)
def _text(tag: bytes, text: str) -> bytes:
    """Write what is said again and again: names of workers and tiers."""
    return _sized(tag, text.encode())


def _sized(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    if 0 <= number < 128:
        return _BYTE[number]
    if not 0 <= number < 1 << 64:
        raise ValueError(f"{number} is no unsigned 64-bit number")
    parts = []
    while number >= 128:
        parts.append(_BYTE[number & 127 | 128])
        number >>= 7
    parts.append(_BYTE[number])
    return b"".join(parts)
