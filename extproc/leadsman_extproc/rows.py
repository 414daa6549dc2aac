"""Makes the rows of decisions and of outcomes (`columns`) on the request path, so it is compiled.

None of them holds a word of a prompt; who sent it is a keyed hash, unless names are asked for.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec
from leadsman.admit import bounds_of
from leadsman.budget import Budget
from leadsman.prediction import Admitted, Decision, Refused
from leadsman.request import Request
from leadsman.units import Seconds

from leadsman_extproc.columns import Decided, Sent, Served, encoder
from leadsman_extproc.grants import Grant

Names: TypeAlias = Literal["hashed", "plain"]

MOST_NAMES: Final = 10_000
"""Hashes that are remembered: a blake2b costs 1 us, and sessions come again."""
MOST_BUDGETS: Final = 1_000
"""Whose JSON is remembered, some 0.5 KB each."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a request may take still, of queue wait and of TTFT; None: anything."""

    queue_wait: Seconds | None = None
    ttft: Seconds | None = None


ANYTHING: Final = Allowed()
UNTOLD: Final[Mapping[str, float]] = {}


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


@dataclass(slots=True)
class Shared:
    """What many decisions have alike and is made once: hashes of names, and JSON of a budget."""

    hides: Hides = field(default_factory=Hides)
    _encode: Callable[[object], bytes] = field(default_factory=lambda: encoder().encode)
    _budgets: dict[int, tuple[Budget, msgspec.Raw]] = field(default_factory=dict)

    def sent(self, admitted: Admitted) -> Sent:
        """Make of a decision what is written of it."""
        return Sent(
            request=admitted.request,
            worker=admitted.worker,
            endpoint=admitted.endpoint,
            fallbacks=admitted.fallbacks,
            candidates=admitted.candidates,
            because=admitted.because,
            refusal=admitted.refusal,
            budget=None if admitted.budget is None else self.budget(admitted.budget),
            survey=admitted.survey,
            held_for=admitted.held_for,
        )

    def budget(self, budget: Budget) -> msgspec.Raw:
        """Give a budget's JSON. It is kept with it, so none comes to be where another was."""
        found = self._budgets.get(id(budget))
        if found is None:
            if len(self._budgets) >= MOST_BUDGETS:
                self._budgets.clear()
            found = self._budgets[id(budget)] = budget, msgspec.Raw(self._encode(budget))
        return found[1]


def decision_row(  # noqa: PLR0913  # a row's parts
    request: Request,
    decision: Decision,
    at: Seconds,
    shared: Shared,
    *,
    epoch: Seconds = 0.0,
    signals: Mapping[str, float] = UNTOLD,
) -> Decided:
    """Make a decision's row. epoch: when the picker's clock was at 0."""
    may, hides = allowed(request, decision.budget), shared.hides
    admitted = decision if isinstance(decision, Admitted) else None
    return Decided(
        request=request.id,
        at=at,
        time=epoch + at,
        kind="refused" if admitted is None else "admitted",
        worker=None if admitted is None else admitted.worker,
        because=None if admitted is None else admitted.because,
        reason=decision.reason if isinstance(decision, Refused) else None,
        model=request.model,
        prompt_tokens=request.prompt_tokens,
        tokens_are_exact=request.tokens_are_exact,
        blocks={str(size): len(keys) for size, keys in request.keys.items()},
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        priority=request.priority,
        tenant=hides(request.tenant),
        session=hides(request.session),
        objective=request.objective,
        waited=request.waited,
        max_queue_wait=request.max_queue_wait,
        ttft_objective=request.ttft_objective,
        prefers_cache=request.prefers_cache,
        allowed_queue_wait=may.queue_wait,
        allowed_ttft=may.ttft,
        signals=signals,
        decision=decision if admitted is None else shared.sent(admitted),
    )
