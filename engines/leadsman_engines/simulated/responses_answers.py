"""Answers in the shape of the Responses API, whole and as named, numbered events.

The first events come before the first token: only a delta is content.

Source: vLLM 0.32 entrypoints/openai/responses/{serving,streaming_events,protocol}.py.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from leadsman_engines.simulated.answers import Piece, Usage


@dataclass(slots=True, kw_only=True)
class ResponseStream:
    """Events of one response with one message."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))
    text: str = ""
    finished: str = "stop"
    events: int = 0
    begun: bool = False

    def opening(self) -> bytes:
        """Write what comes at once."""
        begun = self._response("in_progress", [], None)
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event(kind, response=begun) for kind in kinds)

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """Write one token's delta, after what begins its message."""
        del usage
        self.finished = piece.finished or self.finished
        return b"".join(self._piece(piece.text))

    def _piece(self, text: str) -> Iterator[bytes]:
        if not text:
            return
        if not self.begun:
            self.begun = True
            item = {**_message(self.id, None), "status": "in_progress"}
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._event("response.content_part.added", **self._place(), part=_part(""))
        self.text += text
        yield self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def end(self, usage: Usage) -> bytes:
        """Close the message, and give the whole response with its usage."""
        return b"".join(self._end(usage))

    def _end(self, usage: Usage) -> Iterator[bytes]:
        output = [_message(self.id, self.text)]
        if self.begun:
            place, part = self._place(), _part(self.text)
            yield self._event("response.output_text.done", **place, text=self.text, logprobs=[])
            yield self._event("response.content_part.done", **place, part=part)
            yield self._event("response.output_item.done", output_index=0, item=output[0])
        status = "incomplete" if self.finished == "length" else "completed"
        whole = self._response(status, output, usage)
        yield self._event(f"response.{status}", response=whole)

    def whole(self, piece: Piece, usage: Usage) -> dict[str, Any]:
        """Write a whole response; piece: all its text."""
        status = "incomplete" if piece.finished == "length" else "completed"
        return self._response(status, [_message(self.id, piece.text)], usage)

    def _place(self) -> dict[str, Any]:
        return {"item_id": f"msg_{self.id}", "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: object) -> bytes:
        told = {"type": kind, "sequence_number": self.events} | fields
        self.events += 1
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(told) + b"\n\n"

    def _response(
        self, status: str, output: list[dict[str, Any]], usage: Usage | None
    ) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": cut,
            "model": self.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": status,
            "usage": None if usage is None else _usage(usage),
        }


def _message(name: str, text: str | None) -> dict[str, Any]:
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [] if text is None else [_part(text)],
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _usage(usage: Usage) -> dict[str, Any]:
    cached = usage.cached if usage.reports_cache else 0
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": usage.generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.generated,
    }
