"""Request bodies: what a client asks for, read from the bytes once.

The question: which of a body's fields decide what a request costs and where it should go. The
JSON is decoded once, untyped, and read by hand: an engine accepts more than any schema of ours
would (pydantic's lax numbers, fields that it adds every month), and a picker must not refuse what
the engine would have served. Hence three outcomes. A `Body` is a request that we can price.
`NotForUs` passes through and is routed by load: unknown paths, no model, no prompt. `BadRequest`
is kept to what no engine can read (not JSON, a prompt of the wrong type) and to our own field,
`max_queue_wait_s`.

Chat prompts stay as the client wrote them: templates read them, see `chat` and `messages_api`.

Source: vLLM 0.33 entrypoints/openai/{chat_completion,completion}/protocol.py and
entrypoints/anthropic/protocol.py.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec
from leadsman.units import Seconds, Tokens

from leadsman_extproc.body import (
    Api,
    BadRequest,
    Body,
    ChatPrompt,
    JsonObject,
    MessagesPrompt,
    NotForUs,
    RawPrompts,
)
from leadsman_extproc.fields import (
    BadFieldError,
    bad_prompt,
    queue_wait_bound,
    text,
    token_ids,
    whole,
)

QUEUE_WAIT_FIELD: Final = "max_queue_wait_s"
COMPLETIONS_DEFAULT_MAX_TOKENS: Final[Tokens] = 16


Decode: TypeAlias = Callable[[bytes], JsonObject]
_DECODE: Final[Decode] = msgspec.json.Decoder(JsonObject).decode


def read_body(path: str, raw: bytes, decode: Decode = _DECODE) -> Body | NotForUs | BadRequest:
    """Read the body of a request to `path`; a prefix of the path and its query do not matter."""
    route = _route(path)
    if route is None:
        return NotForUs(why="unknown path")
    if not raw:
        return NotForUs(why="no body")
    api, read = route
    try:
        return read(_decoded(raw, decode), len(raw))
    except BadFieldError as problem:
        return BadRequest(api=api, message=problem.message, param=problem.param)


def api_of(path: str) -> Api:
    """Say in which shape an error on `path` is told, also where the path is not ours."""
    return Api.ANTHROPIC if "/v1/messages" in path else Api.OPENAI


def _decoded(raw: bytes, decode: Decode) -> JsonObject:
    try:
        return decode(raw)
    except msgspec.ValidationError as problem:
        raise BadFieldError(f"The request body is not a JSON object: {problem}", None) from None
    except msgspec.DecodeError as problem:
        raise BadFieldError(f"The request body is not valid JSON: {problem}", None) from None
    except RecursionError:
        raise BadFieldError("The request body is nested too deeply", None) from None


def _read_chat(fields: JsonObject, size: int) -> Body | NotForUs:
    if (missing := _missing(fields, "messages")) is not None:
        return missing
    limit = whole(fields.get("max_completion_tokens"))
    return Body(
        api=Api.OPENAI,
        prompt=ChatPrompt(messages=_messages(fields), fields=fields),
        max_tokens=limit if limit is not None else whole(fields.get("max_tokens")),
        reads_cache=not _asks_prompt_logprobs(fields, "top_logprobs"),
        **_common(fields, size),
    )


def _read_completion(fields: JsonObject, size: int) -> Body | NotForUs:
    if (missing := _missing(fields, "prompt")) is not None:
        return missing
    default = None if "max_tokens" in fields else COMPLETIONS_DEFAULT_MAX_TOKENS
    limit = whole(fields.get("max_tokens"))
    return Body(
        api=Api.OPENAI,
        prompt=_raw_prompts(fields),
        max_tokens=limit if limit is not None else default,
        reads_cache=not _asks_prompt_logprobs(fields, "logprobs"),
        **_common(fields, size),
    )


def _read_messages(fields: JsonObject, size: int) -> Body | NotForUs:
    if (missing := _missing(fields, "messages")) is not None:
        return missing
    return Body(
        api=Api.ANTHROPIC,
        prompt=MessagesPrompt(messages=_messages(fields), fields=fields),
        max_tokens=whole(fields.get("max_tokens")),
        **_common(fields, size),
    )


_Read: TypeAlias = Callable[[JsonObject, int], Body | NotForUs]
_ROUTES: Final[tuple[tuple[str, Api, _Read], ...]] = (
    ("/v1/chat/completions", Api.OPENAI, _read_chat),
    ("/v1/completions", Api.OPENAI, _read_completion),
    ("/v1/messages", Api.ANTHROPIC, _read_messages),
)


@lru_cache(maxsize=256)
def _route(path: str) -> tuple[Api, _Read] | None:
    bare = path.partition("?")[0].rstrip("/")
    return next(((api, read) for end, api, read in _ROUTES if bare.endswith(end)), None)


def _missing(fields: JsonObject, prompt: str) -> NotForUs | None:
    for name in ("model", prompt):
        if fields.get(name) is None:
            return NotForUs(why=f"no {name}")
    return None


def _common(fields: JsonObject, size: int) -> dict[str, Any]:
    """Read what all three APIs share."""
    model = fields["model"]
    if not isinstance(model, str):
        raise BadFieldError("model must be a string", "model")
    options = fields.get("stream_options")
    metadata = fields.get("metadata")
    bound = _bound(fields)
    return {
        "model": model,
        "size": size,
        "stream": fields.get("stream") is True,
        "include_usage": isinstance(options, dict) and options.get("include_usage") is True,
        "n": max(1, whole(fields.get("n")) or 1),
        "priority": whole(fields.get("priority")) or 0,
        "cache_salt": text(fields, "cache_salt"),
        "truncates": _truncation(fields),
        "max_queue_wait": bound,
        "session": text(fields, "session_id") or text(fields, "prompt_cache_key"),
        "user": text(fields, "user")
        or (text(metadata, "user_id") if isinstance(metadata, dict) else None),
    }


def _bound(fields: JsonObject) -> Seconds | None:
    value = fields.get(QUEUE_WAIT_FIELD)
    if value is None:
        return None
    bound = queue_wait_bound(value)
    if isinstance(bound, str):
        raise BadFieldError(f"{QUEUE_WAIT_FIELD} {bound}", QUEUE_WAIT_FIELD)
    return bound


def _messages(fields: JsonObject) -> list[JsonObject]:
    messages = fields["messages"]
    if not isinstance(messages, list) or not messages:
        raise BadFieldError("messages must be a list of at least one message", "messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            where = f"messages[{index}]"
            raise BadFieldError(f"{where} must be an object with a role", where)
    return messages


def _raw_prompts(fields: JsonObject) -> RawPrompts:
    """Read a prompt in any of its four shapes.

    Source: the OpenAI API reference, completions: string, tokens, array of either.
    """
    prompt = fields["prompt"]
    specials = fields.get("add_special_tokens") is not False
    if isinstance(prompt, str):
        return RawPrompts(texts=(prompt,), specials=specials)
    if isinstance(prompt, list) and prompt:
        if all(type(part) is str for part in prompt):
            return RawPrompts(texts=tuple(prompt), specials=specials)
        if all(type(part) is list for part in prompt):
            return RawPrompts(ids=tuple(token_ids(part) for part in prompt))
        return RawPrompts(ids=(token_ids(prompt),))
    raise bad_prompt()


def _asks_prompt_logprobs(fields: Mapping[str, Any], echoed: str) -> bool:
    """Whether the engine must compute every prompt position, and so reads no cache.

    Source: vLLM 0.33 sampling_params.py, skip_reading_prefix_cache; `echo` asks for them too.
    """
    if fields.get("prompt_logprobs") is not None:
        return True
    return fields.get("echo") is True and bool(fields.get("logprobs")) and bool(fields.get(echoed))


def _truncation(fields: Mapping[str, Any]) -> Tokens | None:
    limit = whole(fields.get("truncate_prompt_tokens"))
    return limit if limit is not None and limit > 0 else None
