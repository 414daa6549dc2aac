"""Single values of a request body, read as leniently as the engines read them.

The question: what does this JSON value mean to the engine. Engines read bodies with pydantic in
its lax mode: "16" and 16.0 are whole numbers, true is not. What they would refuse by themselves
reads as absent here, so that the refusal stays theirs; only what makes a prompt unreadable, and
our own bound, is an error.

Source: pydantic's conversion table; vLLM 0.33 entrypoints/openai/completion/protocol.py.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from leadsman.units import Seconds, TokenIds

MIN_QUEUE_WAIT: Final[Seconds] = 5.0
MAX_QUEUE_WAIT: Final[Seconds] = 300.0


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


def token_ids(ids: list[Any]) -> TokenIds:
    """Take token ids as an array: whole numbers that fit 32 bits, at least one."""
    try:
        given = np.array(ids)
    except (ValueError, OverflowError):
        raise bad_prompt() from None
    if given.ndim != 1 or given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= 2**32:
        raise bad_prompt()
    return given.astype(np.uint32)


def bad_prompt() -> BadFieldError:
    """Say which shapes a prompt may have."""
    return BadFieldError(
        "prompt must be a string, a list of token ids, a list of strings or a list of lists of"
        " token ids, and not be empty",
        "prompt",
    )


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
