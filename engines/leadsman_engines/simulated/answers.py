"""Answers in OpenAI's shapes, whole and as server-sent events.

Model. One token is one chunk. A chat stream begins with a chunk that has only the role; it comes
with the first token, as in vLLM, so the time to the first chunk is the time to the first token. The
last token carries the reason of the end; where the model stopped by itself it has no text. Usage is
in a chunk of its own, before `[DONE]`, where the client asked for it.

Source: vLLM 0.32 entrypoints/openai/{chat_completion,completion}/serving.py,
entrypoints/scale_out/token_in_token_out/protocol.py and entrypoints/pooling/embed/protocol.py.
"""

import time
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
    reports_cache: bool = True

    def as_openai(self) -> dict[str, Any]:
        """Write it as OpenAI clients read it."""
        details = {"cached_tokens": self.cached} if self.reports_cache else None
        return {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.generated,
            "completion_tokens": self.generated,
            "prompt_tokens_details": details,
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
    """One token of one choice, or all of them. finished: "stop" or "length", with the last."""

    choice: int
    text: str
    ids: tuple[int, ...] = ()
    finished: str | None = None


class Stream(Protocol):
    """Writes one response as server-sent events."""

    def opening(self) -> bytes:
        """Write what comes before the first token."""

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

    def opening(self) -> bytes:
        """Write nothing."""
        return b""

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
        return event(chunk)


@dataclass(slots=True, kw_only=True)
class CompletionStream:
    """Chunks of a plain completion."""

    id: str
    model: str
    include_usage: bool
    continuous_usage: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self) -> bytes:
        """Write nothing."""
        return b""

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
        return event(chunk)


@dataclass(slots=True, kw_only=True)
class TokenStream:
    """Chunks of vLLM's own API: tokens, and no text."""

    id: str
    include_usage: bool

    def opening(self) -> bytes:
        """Write nothing."""
        return b""

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """Write one token's chunk."""
        del usage
        return event({"request_id": self.id, "choices": [_in_tokens(piece)]})

    def end(self, usage: Usage) -> bytes:
        """Write the usage, where asked for, and the end."""
        if not self.include_usage:
            return DONE
        return event({"request_id": self.id, "choices": [], "usage": usage.as_openai()}) + DONE


def whole_tokens(name: str, pieces: list[Piece], usage: Usage) -> dict[str, Any]:
    """Write a whole answer of vLLM's own API."""
    choices = [_in_tokens(piece) for piece in pieces]
    return {"request_id": name, "choices": choices, "usage": usage.as_openai()}


def _in_tokens(piece: Piece) -> dict[str, Any]:
    ids = list(piece.ids)
    return {"index": piece.choice, "token_ids": ids, "finish_reason": piece.finished}


def whole_embeddings(name: str, model: str, count: int, usage: Usage) -> dict[str, Any]:
    """Write embeddings, one a prompt; they are short, and mean nothing."""
    usage.generated = 0
    return {
        "id": name,
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [
            {"index": index, "object": "embedding", "embedding": [0.6, 0.8]}
            for index in range(count)
        ],
        "usage": usage.as_openai(),
    }


def whole(api: str, name: str, model: str, pieces: list[Piece], usage: Usage) -> dict[str, Any]:
    """Write a whole OpenAI response; pieces: one for each choice, with all its text."""
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


def event(chunk: dict[str, Any]) -> bytes:
    """Write one server-sent event without a name."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
