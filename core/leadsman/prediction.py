"""A prediction, and the decision that is made from it: values that every layer reads.

A prediction is a distribution, not a point: `expected` is the replay's own answer, and
`quantile` adds the worker's recent residuals to it (conformal: no shape is assumed).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeAlias

from leadsman.records import Trust
from leadsman.steptime import StepWeights
from leadsman.survey import Survey
from leadsman.units import RequestId, Seconds, Tokens, WorkerId

if TYPE_CHECKING:
    from leadsman.budget import Budget

Provenance = Literal["own", "borrowed", "unmeasured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What the replay of one worker says of one request, as points.

    queue_wait: from now until the engine first schedules it; own_prefill: from there to the
    first token; cached_tokens: what the engine will find in its cache at that moment;
    loaded_tokens: those of them that a lower tier brings, in `load` seconds of the prefill.
    """

    worker: WorkerId
    queue_wait: Seconds
    own_prefill: Seconds
    cached_tokens: Tokens
    queued_tokens: Tokens
    queued_requests: int
    loaded_tokens: Tokens = 0
    load: Seconds = 0.0

    @property
    def ttft(self) -> Seconds:
        """Seconds from now to the first token."""
        return self.queue_wait + self.own_prefill


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A price with its uncertainty and everything that went into it.

    queue_wait_bound / ttft_bound: the quantile at the budget's confidence. weights: the speed that
    it was priced with; block_size: of the worker; None where whoever predicts has no such thing.
    """

    price: Price
    confidence: float
    queue_wait_bound: Seconds
    ttft_bound: Seconds
    curve: Provenance
    trust: Trust
    trust_reason: str
    state_age: Seconds | None
    weights: StepWeights | None = None
    block_size: Tokens | None = None

    @property
    def worker(self) -> WorkerId:
        """The worker that this prediction is for."""
        return self.price.worker


class Reason(StrEnum):
    """Why a request was refused: a closed list, from which status and headers derive."""

    WOULD_WAIT_TOO_LONG = "would_wait_too_long"
    WOULD_MISS_TTFT = "would_miss_ttft"
    OVER_SHARE = "over_share"
    OVERLOADED = "overloaded"
    BURST_DEFERRED = "burst_deferred"
    NO_ENDPOINT = "no_endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Send the request to `worker`; `fallbacks` are the next best, best first.

    refusal: what shadow mode or a probe set aside to admit the request nevertheless.
    budget, survey: what it was decided by, for its record; None where nothing was weighed.
    held_for: how long it was held before; None: it was not.
    """

    request: RequestId
    worker: WorkerId
    endpoint: str
    prediction: Prediction | None
    fallbacks: tuple[str, ...] = ()
    candidates: tuple[Prediction, ...] = ()
    because: Literal["cheapest", "home", "cache", "look", "least_loaded", "shadow", "probe"] = (
        "cheapest"
    )
    refusal: "Refused | None" = None
    budget: "Budget | None" = None
    survey: Survey | None = None
    held_for: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Refuse the request now. `retry_after`: when the wait is projected to fit, jitter included.

    budget, survey: what it was decided by, for its record; None where nothing was weighed.
    policy: whose refusal it is. read: what the rule read and its limits, by name; for a tenant, its
    own share and use. held_for: how long it was held before; None: it was not.
    """

    request: RequestId
    reason: Reason
    status: int
    retry_after: Seconds
    should_retry: bool
    bound: Seconds | None = None
    predicted_wait: Seconds | None = None
    candidates: tuple[Prediction, ...] = ()
    budget: "Budget | None" = None
    survey: Survey | None = None
    policy: str = "predicted_wait"
    read: Mapping[str, float] = field(default_factory=dict)
    held_for: Seconds | None = None


Decision: TypeAlias = Admitted | Refused
