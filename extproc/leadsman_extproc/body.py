"""What is known of one request before any token is counted, and what may be instead of it.

The vocabulary between the bytes of a request and everything that reads them: a `Body` can be
priced, `NotForUs` passes through, `BadRequest` is answered. A chat prompt stays as the client
wrote it, since only a model's template can say what it becomes.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """An OpenAI chat as sent: `fields` is the whole body, `messages` are objects."""

    messages: list[JsonObject]
    fields: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesPrompt:
    """An Anthropic conversation as sent: `fields` is the whole body, `messages` are objects."""

    messages: list[JsonObject]
    fields: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPrompts:
    """Prompts of /v1/completions: texts or token ids; each is a request of its own in the engine.

    specials: whether the engine adds its begin and end tokens to a text.
    """

    texts: tuple[str, ...] = ()
    ids: tuple[TokenIds, ...] = ()
    specials: bool = True


Prompt: TypeAlias = ChatPrompt | MessagesPrompt | RawPrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One request that can be priced.

    size: bytes of the body. reads_cache: False where the engine skips its prefix cache.
    truncates: the engine will cut the prompt to this many tokens.
    """

    api: Api
    model: str
    prompt: Prompt
    size: int
    max_tokens: Tokens | None = None
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
