"""What is written of a decision, and of what became of it: rows of plain values, and their columns.

A decision's row has all that it was made of: the request's size and wishes, the budget, every
prediction that was made with the speed it rests on, and what was known of the other candidates. An
outcome's row has what is needed to grade it, so that grading reads those alone. `request` joins the
two; `time` is in seconds since 1970, all other times on the picker's own clock. None of them holds
a word of a prompt; who sent it is a keyed hash, unless names are asked for.

`DECISIONS` and `OUTCOMES` say each column's type in DuckDB's words, for whoever reads the rows or
writes them as Parquet.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec
from leadsman.admit import bounds_of
from leadsman.budget import Budget
from leadsman.prediction import Admitted, Decision
from leadsman.records import Outcome
from leadsman.request import Request
from leadsman.units import RequestId, Seconds, Tokens, WorkerId

from leadsman_extproc.grants import Grant

Names: TypeAlias = Literal["hashed", "plain"]
Row: TypeAlias = Mapping[str, object]
Columns: TypeAlias = Mapping[str, str]

MOST_NAMES: Final = 10_000
"""Hashes that are remembered: a blake2b costs 1 us, and sessions come again."""

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


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a request may take still, of queue wait and of TTFT; None: anything."""

    queue_wait: Seconds | None = None
    ttft: Seconds | None = None


ANYTHING: Final = Allowed()


def allowed(request: Request, budget: Budget | None) -> Allowed:
    """Give what is left of a request's bounds once it has waited what it has."""
    if budget is None:
        return ANYTHING
    if request.max_queue_wait is None and request.ttft_objective is None and not budget.is_bounded:
        return ANYTHING
    bounds = bounds_of(request, budget)
    return Allowed(_left(bounds.wait, request.waited), _left(bounds.ttft, request.waited))


def _left(bound: Seconds, waited: Seconds) -> Seconds | None:
    return bound - waited if math.isfinite(bound) else None


def served(grant: Grant, *, weight: float = 1.0, epoch: Seconds = 0.0) -> Served:
    """Put a grant that is over beside its prediction; one that was moved has none any more.

    epoch: when the picker's clock was at 0.
    """
    request, admitted = grant.request, grant.admitted
    prediction = admitted.prediction if grant.worker == admitted.worker else None
    price = prediction.price if prediction is not None else None
    survey, refusal, may = admitted.survey, admitted.refusal, allowed(request, admitted.budget)
    assert grant.outcome is not None
    assert grant.ended_at is not None
    return Served(
        request=request.id,
        worker=grant.worker,
        model=request.model,
        prompt_tokens=request.prompt_tokens,
        sent_at=grant.sent_at,
        ended_at=grant.ended_at,
        time=epoch + grant.ended_at,
        weight=weight,
        outcome=grant.outcome,
        because=admitted.because,
        set_aside=refusal.reason if refusal is not None else None,
        budget=admitted.budget.name if admitted.budget is not None else None,
        curve=prediction.curve if prediction is not None else None,
        trust=prediction.trust if prediction is not None else None,
        state_age=prediction.state_age if prediction is not None else None,
        max_queue_wait=request.max_queue_wait,
        allowed_queue_wait=may.queue_wait,
        allowed_ttft=may.ttft,
        confidence=prediction.confidence if prediction is not None else None,
        predicted_ttft=price.ttft if price is not None else None,
        ttft_bound=prediction.ttft_bound if prediction is not None else None,
        predicted_queue_wait=price.queue_wait if price is not None else None,
        queue_wait_bound=prediction.queue_wait_bound if prediction is not None else None,
        queued_tokens=price.queued_tokens if price is not None else None,
        queued_requests=price.queued_requests if price is not None else None,
        ttft=grant.ttft,
        block_size=prediction.block_size if prediction is not None else None,
        held=survey.held if survey is not None else None,
        predicted_cached=price.cached_tokens if price is not None else None,
        predicted_loaded=price.loaded_tokens if price is not None else None,
        cached_tokens=grant.usage.cached_tokens,
        completion_tokens=grant.usage.completion_tokens,
        engine_said=grant.engine_said,
    )


@dataclass(slots=True)
class Hides:
    """Writes names as they are, or as a hash that only whoever has the key can try names for."""

    names: Names = "hashed"
    key: bytes = b""
    _known: dict[str, str] = field(default_factory=dict)

    def __call__(self, name: str | None) -> str | None:
        """Give what is written of a name."""
        if name is None or self.names == "plain":
            return name
        hidden = self._known.get(name)
        if hidden is None:
            if len(self._known) >= MOST_NAMES:
                self._known.clear()
            key = hashlib.blake2b(self.key).digest()
            hidden = hashlib.blake2b(name.encode(), key=key, digest_size=8).hexdigest()
            self._known[name] = hidden
        return hidden


def decision_row(
    request: Request, decision: Decision, at: Seconds, hides: Hides, *, epoch: Seconds = 0.0
) -> Row:
    """Make a decision's row. epoch: when the picker's clock was at 0."""
    may, is_admitted = allowed(request, decision.budget), isinstance(decision, Admitted)
    return {
        "request": request.id,
        "at": at,
        "time": epoch + at,
        "kind": "admitted" if is_admitted else "refused",
        "worker": decision.worker if isinstance(decision, Admitted) else None,
        "because": decision.because if isinstance(decision, Admitted) else None,
        "reason": None if isinstance(decision, Admitted) else decision.reason,
        "model": request.model,
        "prompt_tokens": request.prompt_tokens,
        "tokens_are_exact": request.tokens_are_exact,
        "blocks": {str(size): len(keys) for size, keys in request.keys.items()},
        "max_tokens": request.max_tokens,
        "priority": request.priority,
        "tenant": hides(request.tenant),
        "session": hides(request.session),
        "objective": request.objective,
        "waited": request.waited,
        "max_queue_wait": request.max_queue_wait,
        "ttft_objective": request.ttft_objective,
        "prefers_cache": request.prefers_cache,
        "allowed_queue_wait": may.queue_wait,
        "allowed_ttft": may.ttft,
        "decision": decision,
    }


def encoder() -> msgspec.json.Encoder:
    """Make what writes rows as JSON."""
    return msgspec.json.Encoder(enc_hook=_plain)


def _plain(value: object) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise TypeError(f"a record cannot hold a {type(value).__name__}")
