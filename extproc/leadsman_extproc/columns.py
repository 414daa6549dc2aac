"""The rows that are written of decisions and of outcomes, as values, and their columns.

A decision's row has all that it was made of: the request's size and wishes, the budget, every
prediction that was made with the speed it rests on, and what was known of the other candidates. An
outcome's row has what is needed to grade it, so that grading reads those alone. `request` joins the
two; `time` is in seconds since 1970, all other times on the picker's own clock.

`DECISIONS` and `OUTCOMES` say each column's type in DuckDB's words, for whoever reads the rows or
writes them as Parquet. What makes the rows is `rows`, which is compiled: a struct cannot be.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from leadsman.prediction import Prediction
from leadsman.records import Outcome
from leadsman.units import RequestId, Seconds, Tokens, WorkerId

Columns: TypeAlias = Mapping[str, str]

DECISIONS: Final[Columns] = MappingProxyType(
    {
        "request": "VARCHAR",
        "at": "DOUBLE",
        "time": "DOUBLE",
        "kind": "VARCHAR",
        "worker": "VARCHAR",
        "because": "VARCHAR",
        "reason": "VARCHAR",
        "model": "VARCHAR",
        "prompt_tokens": "BIGINT",
        "tokens_are_exact": "BOOLEAN",
        "blocks": "JSON",
        "max_tokens": "BIGINT",
        "min_tokens": "BIGINT",
        "priority": "BIGINT",
        "tenant": "VARCHAR",
        "session": "VARCHAR",
        "objective": "VARCHAR",
        "waited": "DOUBLE",
        "max_queue_wait": "DOUBLE",
        "ttft_objective": "DOUBLE",
        "prefers_cache": "BOOLEAN",
        "allowed_queue_wait": "DOUBLE",
        "allowed_ttft": "DOUBLE",
        "signals": "JSON",
        "decision": "JSON",
    }
)
OUTCOMES: Final[Columns] = MappingProxyType(
    {
        "request": "VARCHAR",
        "worker": "VARCHAR",
        "model": "VARCHAR",
        "prompt_tokens": "BIGINT",
        "sent_at": "DOUBLE",
        "ended_at": "DOUBLE",
        "time": "DOUBLE",
        "weight": "DOUBLE",
        "outcome": "VARCHAR",
        "because": "VARCHAR",
        "set_aside": "VARCHAR",
        "budget": "VARCHAR",
        "curve": "VARCHAR",
        "trust": "VARCHAR",
        "state_age": "DOUBLE",
        "max_queue_wait": "DOUBLE",
        "allowed_queue_wait": "DOUBLE",
        "allowed_ttft": "DOUBLE",
        "confidence": "DOUBLE",
        "predicted_ttft": "DOUBLE",
        "ttft_bound": "DOUBLE",
        "predicted_queue_wait": "DOUBLE",
        "queue_wait_bound": "DOUBLE",
        "queued_tokens": "BIGINT",
        "queued_requests": "BIGINT",
        "ttft": "DOUBLE",
        "block_size": "BIGINT",
        "held": "BIGINT",
        "predicted_cached": "BIGINT",
        "predicted_loaded": "BIGINT",
        "cached_tokens": "BIGINT",
        "completion_tokens": "BIGINT",
        "engine_said": "VARCHAR",
    }
)


class Served(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One granted request: what was predicted, and what it really was; None is not known.

    time: when it ended. weight: how many requests it stands for. set_aside: what it would have been
    refused for, in shadow mode or but for a probe. allowed_queue_wait, allowed_ttft: what it could
    take still when it was sent. ttft_bound, queue_wait_bound: what the real ones were not to
    exceed, at `confidence`. held: the most prompt tokens that any candidate held at the decision;
    predicted_cached: what its worker was to find, predicted_loaded of it below the GPU;
    cached_tokens: what it found.
    """

    request: RequestId
    worker: WorkerId
    model: str
    prompt_tokens: Tokens
    sent_at: Seconds
    ended_at: Seconds
    time: Seconds
    weight: float
    outcome: Outcome
    because: str
    set_aside: str | None
    budget: str | None
    curve: str | None
    trust: str | None
    state_age: Seconds | None
    max_queue_wait: Seconds | None
    allowed_queue_wait: Seconds | None
    allowed_ttft: Seconds | None
    confidence: float | None
    predicted_ttft: Seconds | None
    ttft_bound: Seconds | None
    predicted_queue_wait: Seconds | None
    queue_wait_bound: Seconds | None
    queued_tokens: Tokens | None
    queued_requests: int | None
    ttft: Seconds | None
    block_size: Tokens | None
    held: Tokens | None
    predicted_cached: Tokens | None
    predicted_loaded: Tokens | None
    cached_tokens: Tokens | None
    completion_tokens: Tokens | None
    engine_said: str | None


class Sent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`leadsman.prediction.Admitted`, whose prediction is that of the candidate that is its worker.

    Its budget is JSON already.
    """

    request: RequestId
    worker: WorkerId
    endpoint: str
    fallbacks: Sequence[str]
    candidates: Sequence[Prediction]
    because: str
    refusal: object
    budget: msgspec.Raw | None
    survey: object
    held_for: Seconds | None


class Decided(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One decision; None is not known. decision: all of it, as it was made.

    signals: what its worker had told last of what policies read; of a refusal, the worker that it
    came closest with. What that did not tell is absent.
    """

    request: RequestId
    at: Seconds
    time: Seconds
    kind: str
    worker: WorkerId | None
    because: str | None
    reason: str | None
    model: str
    prompt_tokens: Tokens
    tokens_are_exact: bool
    blocks: Mapping[str, int]
    max_tokens: Tokens | None
    min_tokens: Tokens
    priority: int
    tenant: str | None
    session: str | None
    objective: str | None
    waited: Seconds
    max_queue_wait: Seconds | None
    ttft_objective: Seconds | None
    prefers_cache: bool
    allowed_queue_wait: Seconds | None
    allowed_ttft: Seconds | None
    signals: Mapping[str, float]
    decision: object


def encoder() -> msgspec.json.Encoder:
    """Make what writes rows as JSON."""
    return msgspec.json.Encoder(enc_hook=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"a record cannot hold a {type(value).__name__}")
