"""A recorded decision as a value again: read from its line or its row, for whoever asks of it."""

from typing import Any

import msgspec
from leadsman.budget import Budget
from leadsman.prediction import Prediction
from leadsman.request import Request
from leadsman.steptime import StepWeights
from leadsman.units import RequestId, Seconds, Tokens


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """`leadsman.survey.Survey`, as it was written."""

    workers: list[str]
    cached: list[Tokens]
    own_floors: list[Seconds]
    wait_floors: list[Seconds]
    measured: list[bool]
    ready: int
    held: Tokens
    holder: str
    home: str | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, as it was written. Of a budget of another version what is known here is kept."""

    candidates: list[Prediction] = []
    budget: dict[str, Any] | None = None
    survey: Survey | None = None
    worker: str | None = None
    because: str | None = None
    refusal: dict[str, Any] | None = None
    reason: str | None = None
    status: int | None = None
    retry_after: Seconds | None = None
    should_retry: bool | None = None
    bound: Seconds | None = None
    predicted_wait: Seconds | None = None
    held_for: Seconds | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `decisions`."""

    request: str
    at: Seconds
    time: Seconds | None
    kind: str
    worker: str | None
    because: str | None
    reason: str | None
    model: str
    prompt_tokens: Tokens
    tokens_are_exact: bool | None
    max_tokens: Tokens | None
    min_tokens: Tokens | None
    priority: int | None
    tenant: str | None
    session: str | None
    objective: str | None
    waited: Seconds | None
    max_queue_wait: Seconds | None
    ttft_objective: Seconds | None
    prefers_cache: bool | None
    decision: Told

    @property
    def was_admitted(self) -> bool:
        """Whether it was sent on."""
        return self.kind == "admitted"

    def as_request(self) -> Request:
        """Give the request, without its blocks: nobody is asked what he holds again."""
        return Request(
            id=RequestId(self.request),
            model=self.model,
            prompt_tokens=self.prompt_tokens,
            arrived_at=self.at,
            tokens_are_exact=self.tokens_are_exact is not False,
            waited=self.waited or 0.0,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens or 0,
            priority=self.priority or 0,
            tenant=self.tenant,
            session=self.session,
            objective=self.objective,
            max_queue_wait=self.max_queue_wait,
            ttft_objective=self.ttft_objective,
            prefers_cache=bool(self.prefers_cache),
        )

    def as_budget(self) -> Budget:
        """Give the budget that it was decided under. Raises BudgetError."""
        return msgspec.convert(self.decision.budget or {}, Budget)


def weights_of(prediction: Prediction) -> StepWeights | None:
    """Give the speed that a prediction rests on."""
    return None if prediction.weights is None else StepWeights(*prediction.weights)
