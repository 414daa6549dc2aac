"""What is known of one request before any token is counted, and what may be instead of it.

The vocabulary between the bytes of a request and everything that reads them: a `Body` can be
priced, `NotForUs` passes through, `BadRequest` is answered. A chat prompt stays as the client
wrote it, since only a model's template can say what it becomes.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
from leadsman.keys import MultimodalItem
from leadsman.units import Seconds, TokenIds, Tokens

JsonObject: TypeAlias = dict[str, Any]


class Api(StrEnum):
    """Whose error shape and whose stream the client expects."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotForUs:
    """Traffic that cannot be priced: it passes through, routed by load."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRequest:
    """What the client must change; `param` names the field or header."""

    api: Api
    message: str
    param: str | None = None
    status: int = 400


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAI chat as sent: `fields` is the whole body, `messages` are objects."""

    messages: list[JsonObject]
    fields: JsonObject


class MessagesPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """An Anthropic conversation as sent: `fields` is the whole body, `messages` are objects."""

    messages: list[JsonObject]
    fields: JsonObject


class ResponsesPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAI Responses request as sent: `fields` is the whole body, `items` are objects.

    goes_on: whether it follows an earlier response, whose conversation its engine alone has kept.
    """

    items: list[JsonObject]
    fields: JsonObject
    goes_on: bool


class RawPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that no template shapes: texts or token ids; each is a request of its own to the
    engine.

    specials: whether the engine adds its begin and end tokens to a text. items: what stands in
    ids' places beside the text, of a single prompt. media: items whose places nobody has said.
    """

    texts: tuple[str, ...] = ()
    ids: tuple[TokenIds, ...] = ()
    specials: bool = True
    items: tuple[MultimodalItem, ...] = ()
    media: int = 0


Prompt: TypeAlias = ChatPrompt | MessagesPrompt | ResponsesPrompt | RawPrompts


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """One request that can be priced.

    model: None where the API needs none, and the only one is meant. size: bytes of the body.
    min_tokens, ignores_eos: what keeps its answer from ending early, and from ending by itself.
    reads_cache: False where the engine skips its prefix cache. truncates: the engine will cut the
    prompt to this many tokens. renders: the path below which an engine says its tokens, where the
    body can be sent there as it is.
    """

    api: Api
    model: str | None
    prompt: Prompt
    size: int
    max_tokens: Tokens | None = None
    min_tokens: Tokens = 0
    ignores_eos: bool = False
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    priority: int = 0
    cache_salt: str | None = None
    reads_cache: bool = True
    truncates: Tokens | None = None
    max_queue_wait: Seconds | None = None
    session: str | None = None
    user: str | None = None
    renders: str | None = None
