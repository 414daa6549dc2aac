"""Answers in the three APIs' shapes, whole and as server-sent events.

Model. One token is one chunk. A chat stream begins with a chunk that has only the role; it comes
with the first token, as in vLLM, so the time to the first chunk is the time to the first token. The
last token carries the reason of the end; where the model stopped by itself it has no text. Usage is
in a chunk of its own, before `[DONE]`, where the client asked for it.

Source: vLLM 0.32 entrypoints/openai/{chat_completion,completion}/serving.py,
anthropic/serving.py, message_stream_converter.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-simulated"


@dataclass(slots=True, kw_only=True)
class Usage:
    """Tokens of one HTTP request, over all its prompts."""

    prompt: int
    generated: int = 0
    cached: int = 0

    def as_openai(self) -> dict[str, Any]:
        """Write it as OpenAI clients read it."""
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.generated,
            "completion_tokens": self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def as_anthropic(self, *, begun: bool = False) -> dict[str, Any]:
        """Write it as Anthropic clients read it; at the beginning nothing is known of the cache."""
        if begun:
            return {"input_tokens": self.prompt, "output_tokens": 0}
        return {
            "input_tokens": self.prompt - self.cached,
            "output_tokens": self.generated,
            "cache_read_input_tokens": self.cached,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token of one choice. finished: "stop" or "length", with the last."""

    choice: int
    text: str
    finished: str | None = None


class Stream(Protocol):
    """Writes one response as server-sent events."""

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """Write one token; the first of a choice brings what begins it."""

    def end(self, usage: Usage) -> bytes:
        """Write what follows the last token."""


@dataclass(slots=True, kw_only=True)
class ChatStream:
    """Chunks of a chat completion."""

    id: str
    model: str
    include_usage: bool
    continuous_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))
    begun: set[int] = field(default_factory=set)

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """Write one token's chunk, after the role's where it is the first."""
        head = b""
        if piece.choice not in self.begun:
            self.begun.add(piece.choice)
            role = {"role": "assistant", "content": ""}
            head = self._chunk([self._choice(piece.choice, role, None)], usage)
        choice = self._choice(piece.choice, {"content": piece.text}, piece.finished)
        return head + self._chunk([choice], usage)

    def end(self, usage: Usage) -> bytes:
        """Write the usage, where asked for, and the end."""
        if not self.include_usage:
            return DONE
        return self._chunk([], usage, final=True) + DONE

    def _choice(self, index: int, delta: dict[str, str], finished: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finished}
        return choice | ({"stop_reason": None} if finished else {})

    def _chunk(self, choices: list[dict[str, Any]], usage: Usage, *, final: bool = False) -> bytes:
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if final or self.continuous_usage:
            chunk["usage"] = usage.as_openai()
        return _event(chunk)


@dataclass(slots=True, kw_only=True)
class CompletionStream:
    """Chunks of a plain completion."""

    id: str
    model: str
    include_usage: bool
    continuous_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """Write one token's chunk."""
        choice = {
            "index": piece.choice,
            "text": piece.text,
            "logprobs": None,
            "finish_reason": piece.finished,
            "stop_reason": None,
        }
        return self._chunk([choice], usage if self.continuous_usage else None)

    def end(self, usage: Usage) -> bytes:
        """Write the usage, where asked for, and the end."""
        return (self._chunk([], usage) if self.include_usage else b"") + DONE

    def _chunk(self, choices: list[dict[str, Any]], usage: Usage | None) -> bytes:
        chunk: dict[str, Any] = {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            chunk["usage"] = usage.as_openai()
        return _event(chunk)


@dataclass(slots=True, kw_only=True)
class MessageStream:
    """Named events of a message. The text block begins with the first token that has text."""

    id: str
    model: str
    begun: bool = False
    in_block: bool = False
    reason: str = "end_turn"

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


def whole(api: str, name: str, model: str, pieces: list[Piece], usage: Usage) -> dict[str, Any]:
    """Write a whole response; pieces: one for each choice, with all its text."""
    if api == "messages":
        text = [{"type": "text", "text": pieces[0].text}]
        message = _message(name, model, usage, text)
        reason = _anthropic_reason(pieces[0].finished or "stop")
        return message | {"stop_reason": reason, "usage": usage.as_anthropic()}
    choices: list[dict[str, Any]] = []
    for piece in pieces:
        choice: dict[str, Any] = {
            "index": piece.choice,
            "logprobs": None,
            "finish_reason": piece.finished,
        }
        if api == "chat":
            choice["message"] = {"role": "assistant", "content": piece.text, "tool_calls": []}
        else:
            choice["text"] = piece.text
        choices.append(choice | {"stop_reason": None})
    return {
        "id": name,
        "object": "chat.completion" if api == "chat" else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "system_fingerprint": FINGERPRINT,
        "usage": usage.as_openai(),
    }


def error(api: str, message: str, kind: str, status: int, param: str | None) -> dict[str, Any]:
    """Write an error in the API's shape."""
    if api == "messages":
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


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


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def _named(name: str, **fields: object) -> bytes:
    data = msgspec.json.encode({"type": name} | fields)
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
