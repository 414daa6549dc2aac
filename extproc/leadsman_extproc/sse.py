"""Reading a response as it goes by: first content, tokens, usage, and refusals told inside it.

The question: when did the first content come, how many tokens have come, what does the engine say
that the request cost, and did it refuse after all. A chunk may end anywhere, also inside a JSON
string or a UTF-8 sequence, so bytes are gathered up to whole events. A stream's first events
often carry no content (a role, an empty string, usage): the first *content* chunk is the one that
brings text, reasoning or a tool call. An overload told inside a 200 stream is a refusal, not an
answer.

An answer to several prompts of SGLang's own API says of each what it cost: that is added up.

Content events stand for tokens: engines send one a step, mostly of one token. Ignored: retry and
id fields, and lone carriage returns as line ends, which no engine sends.

Source: the HTML standard, Server-sent events; vLLM 0.33 entrypoints/{openai,anthropic};
SGLang serving_chat.py, whose full queue is an error event in a 200 stream, and 0.5.23
managers/tokenizer_manager.py, whose own API tells an abort as the reason of the end.
"""

import json
import re
from collections.abc import Collection
from typing import Final

import msgspec
from leadsman.units import Tokens

from leadsman_extproc.grants import Usage
from leadsman_extproc.told import (
    Delta,
    Event,
    Message,
    NativeReport,
    UsageReport,
    decode_event,
)

TAIL: Final = 65536
"""Bytes kept of an answer that is no stream: its usage stands at its end."""
MOST_SAID: Final = 1000
"""Characters of an error that are kept."""
HEAD: Final = 256
"""Bytes kept of its beginning, where a response says its name."""

_REFUSING: Final = frozenset(
    {429, 503, 529, "429", "503", "529"}
    | {"overloaded_error", "rate_limit_error", "rate_limit_exceeded"}
)
_LAST: Final = frozenset(
    {"message_stop", "response.completed", "response.incomplete", "response.failed"}
)


_JSON: Final = json.JSONDecoder()
_USAGE: Final = b'"usage":'
_NATIVE: Final = b'"meta_info":'
_DELTA: Final = ".delta"
_NAMED: Final = re.compile(rb'\s*{\s*"id"\s*:\s*"(resp_[^"\\]+)"')
"""The beginning of an answer of the Responses API."""


class ResponseScan:
    """What one response has shown so far: give it the pieces of the body, in order.

    content_type: the response's; only an event stream shows its content as it comes.
    content_events: events that brought content. unread_events: events that were no JSON.
    response: how a next request names this answer; None where it cannot, or its name was not seen.
    """

    __slots__ = (
        "_data",
        "_head",
        "_is_stream",
        "_of_prompts",
        "_tail",
        "_usage",
        "content_events",
        "error",
        "is_done",
        "refuses",
        "response",
        "unread_events",
    )

    def __init__(self, content_type: str) -> None:
        self.content_events = 0
        self.unread_events = 0
        self.is_done = False
        self.error: str | None = None
        self.refuses = False
        self.response: str | None = None
        self._head = bytearray()
        self._is_stream = content_type.startswith("text/event-stream")
        self._tail = bytearray()
        self._data: list[bytes] = []
        self._usage = Usage()
        self._of_prompts: dict[int, NativeReport] = {}

    @property
    def has_content(self) -> bool:
        """Whether the first content has been seen."""
        return self.content_events > 0

    @property
    def usage(self) -> Usage:
        """What the engine has reported so far; of an answer that is no stream, its end tells."""
        if not self._is_stream:
            self._usage_at_end(self._tail)
        return self._usage

    def feed(self, piece: bytes) -> Tokens:
        """Read the next bytes; return how many content events they completed."""
        if not self._is_stream:
            self._head += piece[: max(0, HEAD - len(self._head))]
            self._tail += piece
            del self._tail[:-TAIL]
            return 0
        before = self.content_events
        first, *lines = piece.split(b"\n")
        self._tail += first
        if lines:
            self._line(bytes(self._tail))
            self._tail[:] = lines.pop()
            for line in lines:
                self._line(line)
        return self.content_events - before

    def resume(self, tail: bytes) -> None:
        """Read on behind a gap, in the midst of an event: a response's last one may be long."""
        self._usage_at_end(tail.partition(b"\n")[0])
        self.feed(b"\n\n" + tail)

    def finish(self) -> None:
        """Take what a stream left without its blank line; of other answers, how they begin."""
        if not self._is_stream and (named := _NAMED.match(self._head)):
            self.response = named[1].decode()
        if self._is_stream:
            self._line(bytes(self._tail))
            self._tail.clear()
            self._dispatch()

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
            event = decode_event(data)
        except (msgspec.DecodeError, RecursionError):
            self.unread_events += 1
            return
        if _brings_content(event):
            self.content_events += 1
        if event.usage is not None:
            self._report(event.usage)
        if isinstance(event.message, Message) and event.message.usage is not None:
            self._report(event.message.usage)
        if event.response is not None:
            self.response = event.response.id or self.response
            if event.response.usage is not None:
                self._report(event.response.usage)
        if event.meta_info is not None:
            self._of_prompts[event.index or 0] = event.meta_info
            self._usage = _summed(self._of_prompts.values())
        told = _told_error(event)
        if told is not None:
            self.error, self.refuses = _error(told)
        self.is_done = self.is_done or event.type in _LAST

    def _usage_at_end(self, tail: bytes | bytearray) -> None:
        """Find the usage in the end of JSON whose beginning may not have been kept.

        A quote inside a text is escaped, so the search never finds a text that speaks of usage.
        """
        name = _NATIVE if tail.rfind(_NATIVE) > tail.rfind(_USAGE) else _USAGE
        at = tail.rfind(name)
        is_of_many = name is _NATIVE and tail.rstrip().endswith(b"]")
        if at < 0 or is_of_many:  # of many only the end may have been kept
            return
        try:
            told, _ = _JSON.raw_decode(tail[at + len(name) :].decode().lstrip())
            if told is None:
                return
            if name is _NATIVE:
                self._usage = _summed([msgspec.convert(told, NativeReport)])
            else:
                self._report(msgspec.convert(told, UsageReport))
        except (ValueError, msgspec.ValidationError):
            self.unread_events += 1

    def _report(self, told: UsageReport) -> None:
        """Take a report of usage; a later one overrides, and what it leaves out stays."""
        details = told.prompt_tokens_details or told.input_tokens_details
        cached = told.cache_read_input_tokens if details is None else details.cached_tokens
        prompt = told.prompt_tokens
        if prompt is None and told.input_tokens_details is not None:
            prompt = told.input_tokens
        elif prompt is None and told.input_tokens is not None:
            prompt = told.input_tokens + (cached or 0) + (told.cache_creation_input_tokens or 0)
        output = told.completion_tokens if told.output_tokens is None else told.output_tokens
        before = self._usage
        self._usage = Usage(
            prompt_tokens=before.prompt_tokens if prompt is None else prompt,
            completion_tokens=before.completion_tokens if output is None else output,
            cached_tokens=before.cached_tokens if cached is None else cached,
        )


def _summed(reports: Collection[NativeReport]) -> Usage:
    return Usage(
        prompt_tokens=_sum([report.prompt_tokens for report in reports]),
        completion_tokens=_sum([report.completion_tokens for report in reports]),
        cached_tokens=_sum([report.cached_tokens for report in reports]),
    )


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _brings_content(event: Event) -> bool:
    for choice in event.choices:
        if choice.text or choice.token_ids or (choice.delta is not None and _says(choice.delta)):
            return True
    if event.meta_info is not None:
        return bool(event.text or event.output_ids)
    if isinstance(event.delta, str):
        return bool(event.delta) and event.type is not None and event.type.endswith(_DELTA)
    return event.type == "content_block_delta" and event.delta is not None and _says(event.delta)


def _says(delta: Delta) -> bool:
    return bool(
        delta.content
        or delta.text
        or delta.reasoning
        or delta.reasoning_content
        or delta.thinking
        or delta.partial_json
        or delta.tool_calls
    )


def _told_error(event: Event) -> object:
    """Find what an event says of an error: its own, its response's, or its end's; None: nothing."""
    if event.error is not None:
        return event.error
    if event.object == "error" or event.type == "error":
        return {"message": event.message, "type": event.type, "code": event.code}
    if event.response is not None and event.response.error is not None:
        return event.response.error
    reason = None if event.meta_info is None else event.meta_info.finish_reason
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return {"message": reason.get("message"), "code": reason.get("status_code")}
    return None


def _error(told: object) -> tuple[str, bool]:
    """Read what an error says, and whether it refuses for want of room."""
    fields = told if isinstance(told, dict) else {"message": told}
    message, kind, code = fields.get("message"), fields.get("type"), fields.get("code")
    refuses = any(one in _REFUSING for one in (kind, code) if isinstance(one, int | str))
    said = message if isinstance(message, str) and message else "error"
    return said[:MOST_SAID], refuses
