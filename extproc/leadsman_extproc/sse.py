"""Reading a response as it goes by: first content, tokens, usage, and refusals told inside it.

The question: when did the first content come, how many tokens have come, what does the engine say
that the request cost, and did it refuse after all. A chunk may end anywhere, also inside a JSON
string or a UTF-8 sequence, so bytes are gathered up to whole events. A stream's first events
often carry no content (a role, an empty string, usage): the first *content* chunk is the one that
brings text, reasoning or a tool call. An overload told inside a 200 stream is a refusal, not an
answer.

Tokens: engines send one event per step, mostly of one token; where an event reports usage so far,
that counts instead. Ignored: retry and id fields, and lone carriage returns as line ends, which no
engine sends.

Source: the HTML standard, Server-sent events; vLLM 0.33 entrypoints/{openai,anthropic};
SGLang serving_chat.py, whose full queue is an error event in a 200 stream.
"""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from leadsman.units import Tokens

JSON_CAP: Final = 16 * 2**20
"""Bytes of an answer that is no stream, above which its usage is not read."""

_REFUSING_TYPES: Final = frozenset({"overloaded_error", "rate_limit_error"})
_REFUSING_CODES: Final = frozenset({429, 503, 529})


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Delta(msgspec.Struct):
    content: str | list[msgspec.Raw] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    """One event of any of the APIs, or a whole answer: only what is read of it."""

    type: str | None = None
    choices: list[_Choice] = msgspec.field(default_factory=list)
    delta: _Delta | None = None
    usage: _Usage | None = None
    message: _Message | str | None = None
    error: Any = None
    object: str | None = None
    code: Any = None


_DECODE: Final = msgspec.json.Decoder(_Event).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamError:
    """An error that the engine told inside a response."""

    kind: str | None
    message: str
    code: int | None

    @property
    def refuses(self) -> bool:
        """Whether the engine refused the request rather than failed at it."""
        return self.kind in _REFUSING_TYPES or self.code in _REFUSING_CODES


@dataclass(slots=True)
class ResponseScan:
    """What one response has shown so far. Give it each chunk, then `finish`.

    is_stream: whether the response is an event stream (its content type says so).
    has_content: the first content has come (never before the end where it is no stream).
    content_events: events that brought content.
    """

    is_stream: bool
    has_content: bool = False
    content_events: int = 0
    prompt_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    is_done: bool = False
    error: StreamError | None = None
    unread_events: int = 0
    _tail: bytearray = field(default_factory=bytearray)
    _data: list[bytes] = field(default_factory=list)

    @property
    def tokens_seen(self) -> Tokens:
        """Output tokens that have come, as well as is known."""
        return max(self.content_events, self.completion_tokens or 0)

    def feed(self, chunk: bytes) -> bool:
        """Read the next bytes; say whether they brought content."""
        if not self.is_stream:
            if len(self._tail) <= JSON_CAP:
                self._tail += chunk
            return False
        before = self.content_events
        first, *lines = chunk.split(b"\n")
        self._tail += first
        if lines:
            self._line(bytes(self._tail))
            self._tail[:] = lines.pop()
            for line in lines:
                self._line(line)
        return self.content_events > before

    def finish(self) -> None:
        """Read what is left when the response has ended: an event without its blank line too."""
        rest = bytes(self._tail)
        self._tail.clear()
        if self.is_stream:
            self._line(rest)
            self._dispatch()
        elif rest.strip() and len(rest) <= JSON_CAP:
            self._event(rest)
            self.is_done = True
            self.has_content = self.has_content or self.error is None

    def _line(self, line: bytes) -> None:
        line = line.removesuffix(b"\r")
        if line.startswith(b"data:"):
            self._data.append(line[5:])
        elif not line:
            self._dispatch()

    def _dispatch(self) -> None:
        if not self._data:
            return
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        if data.strip() == b"[DONE]":
            self.is_done = True
        else:
            self._event(data)

    def _event(self, data: bytes) -> None:
        try:
            event = _DECODE(data)
        except (msgspec.DecodeError, RecursionError):
            self.unread_events += 1
            return
        if _brings_content(event):
            self.content_events += 1
            self.has_content = True
        if event.usage is not None:
            self._usage(event.usage)
        if event.error is not None or event.object == "error":
            self.error = _error(event)
        if event.type is not None:
            self._anthropic(event)

    def _anthropic(self, event: _Event) -> None:
        if event.type == "message_stop":
            self.is_done = True
        elif isinstance(event.message, _Message) and event.message.usage is not None:
            self._usage(event.message.usage)

    def _usage(self, usage: _Usage) -> None:
        """Take a report of usage; a later one overrides, and what it leaves out stays."""
        details = usage.prompt_tokens_details
        cached = usage.cache_read_input_tokens if details is None else details.cached_tokens
        prompt = usage.prompt_tokens
        if prompt is None and usage.input_tokens is not None:
            prompt = usage.input_tokens + (cached or 0) + (usage.cache_creation_input_tokens or 0)
        completion = usage.completion_tokens
        completion = usage.output_tokens if completion is None else completion
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        self.cached_tokens = self.cached_tokens if cached is None else cached
        self.completion_tokens = self.completion_tokens if completion is None else completion


def _brings_content(event: _Event) -> bool:
    for choice in event.choices:
        if choice.text or (choice.delta is not None and _says(choice.delta)):
            return True
    return event.type == "content_block_delta" and event.delta is not None and _says(event.delta)


def _says(delta: _Delta) -> bool:
    return bool(
        delta.content
        or delta.text
        or delta.reasoning
        or delta.reasoning_content
        or delta.thinking
        or delta.partial_json
        or delta.tool_calls
    )


def _error(event: _Event) -> StreamError:
    told = event.error if isinstance(event.error, dict) else {}
    message = told.get("message", event.error if isinstance(event.error, str) else event.message)
    kind, code = told.get("type", event.type), told.get("code", event.code)
    return StreamError(
        kind=kind if isinstance(kind, str) else None,
        message=message if isinstance(message, str) else "",
        code=code if isinstance(code, int) else None,
    )
