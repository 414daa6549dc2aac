"""Long bodies, decoded from where they differ from the last one of the same conversation.

The question: what is new in these 220 KB of JSON. A client sends its whole conversation each time,
and decoding it costs as much as all that is done with it later. Remembered of a body are its bytes
up to its last message, and what they were decoded to. A body that begins with the same bytes is
decoded from there on, as the rest of an array, and the two are put together.

Exact: the same bytes leave a decoder in the same place. That the place is inside `messages`, where
another message may begin, is tried when it is remembered: with `null]}` behind them the bytes must
decode to the same messages and a null. The rest is decoded under a name that no client can know,
so that a later field of any name means what it means in the whole.
"""

import secrets
from typing import Any, Final

import msgspec

from leadsman_extproc.body import JsonObject

LONG: Final = 32 * 1024
"""Bytes below which decoding all is as cheap."""
_WINDOW: Final = 128
_STARTS: Final = (b'{"role"', b'{"content"')
_DECODE: Final = msgspec.json.Decoder(JsonObject).decode


class _Known(msgspec.Struct):
    """A body up to its last message. fields: those up to `messages`, which stands apart."""

    prefix: bytes
    fields: JsonObject
    messages: list[Any]


class BodyMemory:
    """Decodes bodies; remembers up to `max_bytes` of long ones."""

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self.bytes_held = 0
        self._max_bytes = max_bytes
        self._known: dict[bytes, _Known] = {}
        self._rest = secrets.token_hex(16)
        self._open = b'{"%b":[' % self._rest.encode()

    def decode(self, raw: bytes) -> JsonObject:
        """Decode a JSON object. Raises msgspec.DecodeError where it is none."""
        if len(raw) < LONG:
            return _DECODE(raw)
        end = 1 << len(raw).bit_length() - 1
        name = raw[end - _WINDOW : end]
        known = self._known.get(name)
        if known is None or not raw.startswith(known.prefix):
            fields = _DECODE(raw)
            self._remember(name, self._first(raw, fields))
            return fields
        at = len(known.prefix)
        try:
            rest = _DECODE(self._open + raw[at:])
        except msgspec.DecodeError:
            return _DECODE(raw)  # which says where it is broken
        more = rest.pop(self._rest)
        self._remember(name, self._next(raw, known, more))
        return {**known.fields, "messages": [*known.messages, *more], **rest}

    def check(self) -> None:
        """Assert that what is held is what is counted, and within bounds."""
        assert self.bytes_held == sum(len(known.prefix) for known in self._known.values())
        assert self.bytes_held <= self._max_bytes

    def _first(self, raw: bytes, fields: JsonObject) -> _Known | None:
        messages = fields.get("messages")
        at = _last_start(raw, 0)
        if at < 0 or not isinstance(messages, list):
            return None
        found = _tried(raw[:at] + b"null]}")
        if found is None or found.get("messages") != [*messages[:-1], None]:
            return None
        found["messages"] = None  # keeps its place among the fields
        return _Known(raw[:at], found, messages[:-1])

    def _next(self, raw: bytes, known: _Known, more: list[Any]) -> _Known | None:
        begun = len(known.prefix)
        at = _last_start(raw, begun)
        if at <= begun:
            return None
        found = _tried(self._open + raw[begun:at] + b"null]}")
        if found != {self._rest: [*more[:-1], None]}:
            return None
        return _Known(raw[:at], known.fields, [*known.messages, *more[:-1]])

    def _remember(self, name: bytes, known: _Known | None) -> None:
        if known is None or len(known.prefix) > self._max_bytes:
            return
        before = self._known.pop(name, None)
        self.bytes_held += len(known.prefix) - (0 if before is None else len(before.prefix))
        self._known[name] = known
        while self.bytes_held > self._max_bytes:
            self.bytes_held -= len(self._known.pop(next(iter(self._known))).prefix)


def _last_start(raw: bytes, after: int) -> int:
    """Find where the last message seems to begin; -1 where none does."""
    return max(raw.rfind(start, after) for start in _STARTS)


def _tried(raw: bytes) -> JsonObject | None:
    try:
        return _DECODE(raw)
    except msgspec.DecodeError:
        return None
