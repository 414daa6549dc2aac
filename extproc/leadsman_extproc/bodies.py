"""Request bodies: what a client asks for, read from the bytes once.

The question: which of a body's fields decide what a request costs and where it should go. The
JSON is decoded once, untyped, and read by hand: an engine accepts more than any schema of ours
would (pydantic's lax numbers, fields that it adds every month), and a picker must not refuse what
the engine would have served. Hence three outcomes. A `Body` is a request that we can price.
`NotForUs` passes through and is routed by load: unknown paths, no model, no prompt. `BadRequest`
is kept to what no engine can read (not JSON, a prompt of the wrong type) and to our own field,
`max_queue_wait_s`.

Chat prompts stay as the client wrote them: templates read them, see `chat`, `messages_api` and
`responses_api`. The engines' own APIs are read by `native_bodies`.

Source: vLLM 0.33 entrypoints/openai/{chat_completion,completion,responses}/protocol.py,
entrypoints/pooling/embed/protocol.py and entrypoints/anthropic/protocol.py.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec
from leadsman.units import Tokens

from leadsman_extproc.body import (
    Api,
    BadRequest,
    Body,
    ChatPrompt,
    JsonObject,
    MessagesPrompt,
    NotForUs,
    RawPrompts,
    ResponsesPrompt,
)
from leadsman_extproc.fields import (
    BadFieldError,
    common,
    messages_of,
    missing,
    raw_prompts,
    whole,
)
from leadsman_extproc.native_bodies import read_sglang_generate, read_vllm_generate

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
    if (absent := missing(fields, "model", "messages")) is not None:
        return absent
    limit = whole(fields.get("max_completion_tokens"))
    return Body(
        api=Api.OPENAI,
        prompt=ChatPrompt(messages=messages_of(fields["messages"], "messages"), fields=fields),
        max_tokens=limit if limit is not None else whole(fields.get("max_tokens")),
        reads_cache=not _asks_prompt_logprobs(fields, "top_logprobs"),
        renders="/v1/chat/completions",
        **common(fields, size),
    )


def _read_completion(fields: JsonObject, size: int) -> Body | NotForUs:
    if (absent := missing(fields, "model", "prompt")) is not None:
        return absent
    default = None if "max_tokens" in fields else COMPLETIONS_DEFAULT_MAX_TOKENS
    limit = whole(fields.get("max_tokens"))
    return Body(
        api=Api.OPENAI,
        prompt=raw_prompts(fields, "prompt"),
        max_tokens=limit if limit is not None else default,
        reads_cache=not _asks_prompt_logprobs(fields, "logprobs"),
        renders="/v1/completions",
        **common(fields, size),
    )


def _read_messages(fields: JsonObject, size: int) -> Body | NotForUs:
    if (absent := missing(fields, "model", "messages")) is not None:
        return absent
    return Body(
        api=Api.ANTHROPIC,
        prompt=MessagesPrompt(messages=messages_of(fields["messages"], "messages"), fields=fields),
        max_tokens=whole(fields.get("max_tokens")),
        renders="/v1/messages",
        **common(fields, size),
    )


def _read_responses(fields: JsonObject, size: int) -> Body | NotForUs:
    if (absent := missing(fields, "model", "input")) is not None:
        return absent
    given = fields["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise BadFieldError("input must be a string or a list of items", "input")
    earlier = ("previous_response_id", "previous_input_messages", "conversation")
    return Body(
        api=Api.OPENAI,
        prompt=ResponsesPrompt(
            items=items,
            fields=fields,
            goes_on=any(fields.get(name) is not None for name in earlier),
        ),
        max_tokens=whole(fields.get("max_output_tokens")),
        renders="/v1/responses",
        **common(fields, size),
    )


def _read_embeddings(fields: JsonObject, size: int) -> Body | NotForUs:
    """Read what ends with its prefill: to the engine's scheduler it is a request of one token."""
    chat = fields.get("messages")
    if (absent := missing(fields, "model", "input" if chat is None else "messages")) is not None:
        return absent
    prompt: ChatPrompt | RawPrompts
    if chat is None:
        prompt = raw_prompts(fields, "input")
    else:
        asked = fields if "add_generation_prompt" in fields else fields | _NOTHING_TO_SAY
        prompt = ChatPrompt(messages=messages_of(chat, "messages"), fields=asked)
    return Body(api=Api.OPENAI, prompt=prompt, max_tokens=1, **common(fields, size))


_NOTHING_TO_SAY: Final[JsonObject] = {"add_generation_prompt": False}
_Read: TypeAlias = Callable[[JsonObject, int], Body | NotForUs]
_ROUTES: Final[tuple[tuple[str, Api, _Read], ...]] = (
    ("/v1/chat/completions", Api.OPENAI, _read_chat),
    ("/v1/completions", Api.OPENAI, _read_completion),
    ("/v1/messages", Api.ANTHROPIC, _read_messages),
    ("/v1/responses", Api.OPENAI, _read_responses),
    ("/v1/embeddings", Api.OPENAI, _read_embeddings),
    ("/inference/v1/generate", Api.OPENAI, read_vllm_generate),
    ("/generate", Api.OPENAI, read_sglang_generate),
)


@lru_cache(maxsize=256)
def _route(path: str) -> tuple[Api, _Read] | None:
    bare = path.partition("?")[0].rstrip("/")
    return next(((api, read) for end, api, read in _ROUTES if bare.endswith(end)), None)


def _asks_prompt_logprobs(fields: Mapping[str, Any], echoed: str) -> bool:
    """Whether the engine must compute every prompt position, and so reads no cache.

    Source: vLLM 0.33 sampling_params.py, skip_reading_prefix_cache; `echo` asks for them too.
    """
    if fields.get("prompt_logprobs") is not None:
        return True
    return fields.get("echo") is True and bool(fields.get("logprobs")) and bool(fields.get(echoed))
