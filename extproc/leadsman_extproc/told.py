"""What engines tell in a response, as JSON: only what is read of it.

Source: vLLM 0.33 entrypoints/{openai,anthropic}; the OpenAI and the Anthropic API references.
"""

from typing import Any, Final

import msgspec


class Details(msgspec.Struct):
    """What the prompt was made up of."""

    cached_tokens: int | None = None


class UsageReport(msgspec.Struct):
    """What a request cost, in the words of either API."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None
    input_tokens: int | None = None
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
    """One of the answers, of a chat or of a completion."""

    delta: Delta | None = None
    text: str | None = None


class Message(msgspec.Struct):
    """The beginning of an answer of the Messages API."""

    usage: UsageReport | None = None


class Event(msgspec.Struct):
    """One event of any of the APIs, or a whole answer: only what is read of it."""

    type: str | None = None
    choices: list[Choice] = msgspec.field(default_factory=list)
    delta: Delta | None = None
    usage: UsageReport | None = None
    message: Message | str | None = None
    error: Any = None
    object: str | None = None
    code: Any = None


decode_event: Final = msgspec.json.Decoder(Event).decode
"""Reads one event. Raises msgspec.DecodeError, RecursionError."""
