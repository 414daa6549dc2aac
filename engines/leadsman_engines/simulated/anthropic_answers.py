"""Answers in the shape of Anthropic's Messages API, whole and as named events.

Source: vLLM 0.32 entrypoints/anthropic/serving.py, message_stream_converter and
messages_full_converter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from leadsman_engines.simulated.answers import Piece, Usage


@dataclass(slots=True, kw_only=True)
class MessageStream:
    """Named events of a message. The text block begins with the first token that has text."""

    id: str
    model: str
    begun: bool = False
    in_block: bool = False
    reason: str = "end_turn"

    def opening(self) -> bytes:
        """Write nothing."""
        return b""

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """Write one token's delta, after what begins the message and its block."""
        return b"".join(self._events(piece, usage))

    def _events(self, piece: Piece, usage: Usage) -> Iterator[bytes]:
        if not self.begun:
            self.begun = True
            yield _named("message_start", message=_message(self.id, self.model, usage, []))
        if piece.finished is not None:
            self.reason = _anthropic_reason(piece.finished)
        if not piece.text:
            return
        if not self.in_block:
            self.in_block = True
            yield _named("content_block_start", index=0, content_block={"type": "text", "text": ""})
        delta = {"type": "text_delta", "text": piece.text}
        yield _named("content_block_delta", index=0, delta=delta)

    def end(self, usage: Usage) -> bytes:
        """Close the block, and say why and at what use it ended."""
        closing = _named("content_block_stop", index=0) if self.in_block else b""
        delta = {"stop_reason": self.reason, "stop_sequence": None}
        ended = _named("message_delta", delta=delta, usage=usage.as_anthropic())
        return closing + ended + _named("message_stop")


def whole_message(name: str, model: str, piece: Piece, usage: Usage) -> dict[str, Any]:
    """Write a whole message; piece: all its text."""
    message = _message(name, model, usage, [{"type": "text", "text": piece.text}])
    reason = _anthropic_reason(piece.finished or "stop")
    return message | {"stop_reason": reason, "usage": usage.as_anthropic()}


def _message(name: str, model: str, usage: Usage, content: list[dict[str, str]]) -> dict[str, Any]:
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "content": content,
        "model": model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage.as_anthropic(begun=True),
    }


def _anthropic_reason(finished: str) -> str:
    return "max_tokens" if finished == "length" else "end_turn"


def _named(name: str, **fields: object) -> bytes:
    data = msgspec.json.encode({"type": name} | fields)
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
