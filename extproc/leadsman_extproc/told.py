"""What engines tell in a response, as JSON: only what is read of it.

Source: vLLM 0.33 entrypoints/{openai,anthropic,scale_out}; SGLang 0.5.23
managers/tokenizer_manager.py; the OpenAI and the Anthropic API references.
"""

from typing import Any, Final

import msgspec


class Details(msgspec.Struct):
    """What the prompt was made up of."""

    cached_tokens: int | None = None


class UsageReport(msgspec.Struct):
    """What a request cost, in the words of any API; Responses counts what was cached as input."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens: int | None = None
    input_tokens_details: Details | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Delta(msgspec.Struct):
    """What an event adds to the answer."""

    content: str | list[msgspec.Raw] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class Choice(msgspec.Struct):
    """One of the answers, of a chat, of a completion, or in tokens."""

    delta: Delta | None = None
    text: str | None = None
    token_ids: list[msgspec.Raw] | None = None


class NativeReport(msgspec.Struct):
    """What SGLang's own API says of a request with each piece of its answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: Any = None


class Response(msgspec.Struct):
    """A whole answer of the Responses API, as its first and its last event have it."""

    id: str | None = None
    usage: UsageReport | None = None
    error: Any = None


class Message(msgspec.Struct):
    """The beginning of an answer of the Messages API."""

    usage: UsageReport | None = None


class Event(msgspec.Struct):
    """One event of any of the APIs, or a whole answer: only what is read of it.

    delta: a text in the Responses API. text, output_ids, meta_info, index: SGLang's own.
    """

    type: str | None = None
    choices: list[Choice] = msgspec.field(default_factory=list)
    delta: Delta | str | None = None
    response: Response | None = None
    text: Any = None
    output_ids: Any = None
    meta_info: NativeReport | None = None
    index: int | None = None
    usage: UsageReport | None = None
    message: Message | str | None = None
    error: Any = None
    object: str | None = None
    code: Any = None


decode_event: Final = msgspec.json.Decoder(Event).decode
"""Reads one event. Raises msgspec.DecodeError, RecursionError."""
