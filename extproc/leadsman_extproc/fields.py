"""Single values of a request body, read as leniently as the engines read them.

The question: what does this JSON value mean to the engine. Engines read bodies with pydantic in
its lax mode: "16" and 16.0 are whole numbers, true is not. What they would refuse by themselves
reads as absent here, so that the refusal stays theirs; only what makes a prompt unreadable, and
our own bound, is an error. What all APIs share is read by `common`.

Source: pydantic's conversion table; vLLM 0.33 entrypoints/openai/completion/protocol.py.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from leadsman.units import Seconds, TokenIds, Tokens

from leadsman_extproc.body import JsonObject, NotForUs, RawPrompts

QUEUE_WAIT_FIELD: Final = "max_queue_wait_s"
MIN_QUEUE_WAIT: Final[Seconds] = 5.0
MAX_QUEUE_WAIT: Final[Seconds] = 300.0


_STOPS: Final = ("stop", "stop_token_ids", "stop_regex")


class BadFieldError(Exception):
    """A field that no engine can read."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def queue_wait_bound(value: object) -> Seconds | str:
    """Read a bound on the queue wait; where it is none, say what is wrong with it."""
    wants = f"must be a number of seconds from {MIN_QUEUE_WAIT:g} to {MAX_QUEUE_WAIT:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{wants}, not {value!r:.40}"
    if not MIN_QUEUE_WAIT <= value <= MAX_QUEUE_WAIT:
        return f"{wants}, not {value!r:.40}"
    return float(value)


def missing(fields: JsonObject, *names: str) -> NotForUs | None:
    """Say which of the fields is not there, without which nothing can be priced."""
    for name in names:
        if fields.get(name) is None:
            return NotForUs(why=f"no {name}")
    return None


def common(fields: JsonObject, size: int) -> dict[str, Any]:
    """Read what all APIs share."""
    model = fields.get("model")
    if not isinstance(model, str | None):
        raise BadFieldError("model must be a string", "model")
    options = fields.get("stream_options")
    metadata = fields.get("metadata")
    return {
        "model": model or None,
        "size": size,
        "stream": fields.get("stream") is True,
        "include_usage": isinstance(options, dict) and options.get("include_usage") is True,
        **endings(fields),
        "n": max(1, whole(fields.get("n")) or 1),
        "priority": whole(fields.get("priority")) or 0,
        "cache_salt": text(fields, "cache_salt"),
        "truncates": _truncation(fields),
        "max_queue_wait": _bound(fields),
        "session": text(fields, "session_id") or text(fields, "prompt_cache_key"),
        "user": text(fields, "user")
        or (text(metadata, "user_id") if isinstance(metadata, dict) else None),
    }


def endings(sampling: JsonObject, least: str = "min_tokens") -> dict[str, Any]:
    """Read what keeps an answer going; what else may stop it makes ignoring its end say nothing.

    Source: vLLM 0.33 sampling_params.py; SGLang 0.5.23 sampling/sampling_params.py.
    """
    stops = any(sampling.get(name) for name in _STOPS)
    return {
        "min_tokens": max(0, whole(sampling.get(least)) or 0),
        "ignores_eos": sampling.get("ignore_eos") is True and not stops,
    }


def _bound(fields: JsonObject) -> Seconds | None:
    value = fields.get(QUEUE_WAIT_FIELD)
    if value is None:
        return None
    bound = queue_wait_bound(value)
    if isinstance(bound, str):
        raise BadFieldError(f"{QUEUE_WAIT_FIELD} {bound}", QUEUE_WAIT_FIELD)
    return bound


def _truncation(fields: Mapping[str, Any]) -> Tokens | None:
    limit = whole(fields.get("truncate_prompt_tokens"))
    return limit if limit is not None and limit > 0 else None


def raw_prompts(fields: JsonObject, name: str) -> RawPrompts:
    """Read prompts in any of their four shapes: a string, tokens, a list of either.

    Source: the OpenAI API reference, completions and embeddings.
    """
    prompt = fields[name]
    specials = fields.get("add_special_tokens") is not False
    if isinstance(prompt, str):
        return RawPrompts(texts=(prompt,), specials=specials)
    if isinstance(prompt, list) and prompt:
        if all(type(part) is str for part in prompt):
            return RawPrompts(texts=tuple(prompt), specials=specials)
        if all(type(part) is list for part in prompt):
            return RawPrompts(ids=tuple(token_ids(part, name) for part in prompt))
        return RawPrompts(ids=(token_ids(prompt, name),))
    raise _bad_prompt(name)


def token_ids(ids: object, name: str) -> TokenIds:
    """Take token ids as an array: whole numbers that fit 32 bits, at least one."""
    try:
        given = np.array(ids)
    except (ValueError, OverflowError):
        raise _bad_prompt(name) from None
    if given.ndim != 1 or given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= 2**32:
        raise _bad_prompt(name)
    return given.astype(np.uint32)


def _bad_prompt(name: str) -> BadFieldError:
    return BadFieldError(
        f"{name} must be a string, a list of token ids, a list of strings or a list of lists of"
        " token ids, and not be empty",
        name,
    )


def messages_of(value: object, name: str) -> list[JsonObject]:
    """Take a conversation: objects with a role, at least one."""
    if not isinstance(value, list) or not value:
        raise BadFieldError(f"{name} must be a list of at least one message", name)
    for index, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            where = f"{name}[{index}]"
            raise BadFieldError(f"{where} must be an object with a role", where)
    return value


def whole(value: object) -> int | None:
    """Read a whole number as leniently as the engines' pydantic does; None where it is none."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str):
        digits = value.strip()
        return int(digits) if digits.removeprefix("-").isdecimal() and len(digits) < 20 else None
    return None


def text(fields: Mapping[str, Any], name: str) -> str | None:
    """Read a string that is not empty."""
    value = fields.get(name)
    return value if isinstance(value, str) and value else None
