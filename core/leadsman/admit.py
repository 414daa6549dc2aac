"""Whether a request is admitted: the predicted-wait policy.

A request is refused where no worker is likely to keep its bound: time already waited + the queue
wait's quantile at the budget's confidence, against `max_queue_wait`; time waited + the TTFT's,
against a TTFT objective. The request's own bounds go before the budget's. One without any wait
bound is refused only in severe overload, at the budget's `overload`.

Routing comes first and its choice is kept if it fits; if not, any worker that fits is taken. Two
things do not refuse: an idle worker, whose wait can only be a residual of busier hours, and a
worker with an unmeasured curve, since a default prefill rate that is ten times too slow once
refused 979 of 1,000 requests that could have been served. But an unmeasured worker is no place to
send all that fits nowhere else: one that came back in overload was given 216 requests in three
seconds, for waits of ten minutes. Beside measured workers its prediction counts as theirs once some
requests wait there; where nobody is measured, once it is too long even at a tenth.

Retry-After is the excess: a wait that is x seconds too long is projected to fit in x seconds.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

import numpy as np

from leadsman.budget import LONGEST_RETRY_AFTER, Budget
from leadsman.candidates import Soundings
from leadsman.prediction import Prediction, Price, Reason, Refused
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.units import Seconds

MOST_ALTERNATIVES = 4
"""Replays that are spent on finding a worker that fits where routing's choice does not."""

IDLE_WAIT: Seconds = 0.1
"""Queue wait of a worker with nothing queued: the rest of the step that it is in."""

UNPROVEN = 4
"""Requests that may wait on an unmeasured worker, whatever it predicts: they measure it."""

DOUBT = 10.0
"""How many times too slow a default may be."""

OWN: Final = "predicted_wait"
"""Leadsman's own rule, which this module is."""

NO_ENDPOINT_RETRY: Seconds = 5.0
"""A worker that is loading takes longer; one whose readiness flapped is back by then. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a request may take on any worker; `wait_reason` says whose wish the wait bound is."""

    wait: Seconds
    wait_reason: Reason
    ttft: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """By what a request is too much. `ever_fits`: False where it would be, even on an idle worker.

    bound, predicted: of a wait, or of a TTFT. later: in how long it is projected to fit, where the
    rule predicts no wait; one of the two says it. by: whose rule it is. read: what the rule read,
    and its limits, by name.
    """

    reason: Reason
    own_prefill: Seconds
    bound: Seconds | None = None
    predicted: Seconds | None = None
    later: Seconds | None = None
    ever_fits: bool = True
    by: str = OWN
    read: Mapping[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> Seconds:
        """In how long it is projected to fit: a wait that is x too long fits in x."""
        if self.later is not None:
            return self.later
        assert self.predicted is not None
        assert self.bound is not None
        return self.predicted - self.bound

    @property
    def rank(self) -> tuple[bool, Seconds]:
        """Order of hope: what will fit sooner is less."""
        return not self.ever_fits, self.seconds


def bounds_of(request: Request, budget: Budget) -> Bounds:
    """Take the request's own bounds, else its budget's; infinite where there is none."""
    ttft = budget.ttft if request.ttft_objective is None else request.ttft_objective
    wait, reason = request.max_queue_wait, Reason.WOULD_WAIT_TOO_LONG
    if wait is None:
        wait = budget.max_queue_wait
        if budget.overload is not None and (wait is None or budget.overload < wait):
            wait, reason = budget.overload, Reason.OVERLOADED
    return Bounds(
        wait=math.inf if wait is None else wait,
        wait_reason=reason,
        ttft=math.inf if ttft is None else ttft,
    )


def excess(
    prediction: Prediction, waited: Seconds, bounds: Bounds, *, is_alone: bool = True
) -> Excess | None:
    """Say by what a worker would miss the request's bounds; None where it is to be admitted.

    waited: how long its caller has waited by now. is_alone: nobody who could serve it is measured.
    """
    price, doubt = prediction.price, 1.0
    if prediction.curve == "unmeasured":
        if price.queued_requests < UNPROVEN:
            return None
        doubt = DOUBT if is_alone else 1.0
    wait = waited + prediction.queue_wait_bound / doubt
    if wait > bounds.wait and not is_idle(price):
        return Excess(
            reason=bounds.wait_reason,
            bound=bounds.wait,
            predicted=wait,
            own_prefill=price.own_prefill,
        )
    ttft = waited + prediction.ttft_bound / doubt
    if ttft > bounds.ttft:
        return Excess(
            reason=Reason.WOULD_MISS_TTFT,
            bound=bounds.ttft,
            predicted=ttft,
            own_prefill=price.own_prefill,
            ever_fits=price.own_prefill <= bounds.ttft,
        )
    return None


def is_idle(price: Price) -> bool:
    """Say whether the worker would begin with the request at once."""
    return not price.queued_requests and not price.queued_tokens and price.queue_wait <= IDLE_WAIT


def admit(soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
    """Keep routing's choice if it fits, else take a worker that does, else say what is missed."""
    bounds = bounds_of(soundings.request, budget)
    least: Excess | None = None
    is_alone = not bool(soundings.candidates.measured.any())
    waited = soundings.request.waited_until(soundings.now)
    for index in _to_try(soundings, choice.index, bounds, waited):
        missed = excess(soundings.sound(index), waited, bounds, is_alone=is_alone)
        if missed is None:
            return choice if index == choice.index else Choice(index=index, because="cheapest")
        if least is None or missed.rank < least.rank:
            least = missed
    assert least is not None, "routing's choice is always tried"
    return least


def refuse(missed: Excess, soundings: Soundings, budget: Budget, rng: Random) -> Refused:
    """Refuse for the least that was missed; books nothing."""
    retry_after = max(1.0, missed.seconds) + spread(missed, budget) * rng.random()
    can_return = missed.ever_fits and retry_after <= LONGEST_RETRY_AFTER
    return Refused(
        request=soundings.request.id,
        reason=missed.reason,
        status=budget.status(missed.reason),
        retry_after=retry_after,
        should_retry=budget.should_retry and can_return,
        bound=missed.bound,
        predicted_wait=missed.predicted,
        candidates=soundings.predictions(),
        budget=budget,
        survey=soundings.survey(),
        policy=missed.by,
        read=missed.read,
    )


def book(refused: Refused, missed: Excess, soundings: Soundings) -> Refused:
    """Book the refused caller's return, and put it off while earlier ones fill the room."""
    if not refused.should_retry:
        return refused
    now, candidates = soundings.now, soundings.candidates
    earliest = now + max(1.0, missed.seconds)
    back = candidates.returns.book(
        now, earliest, work=missed.own_prefill, workers=len(candidates.workers)
    )
    retry_after = refused.retry_after + back - earliest
    return replace(
        refused, retry_after=retry_after, should_retry=retry_after <= LONGEST_RETRY_AFTER
    )


def spread(missed: Excess, budget: Budget) -> Seconds:
    """Over how long callers who were told the same moment come back."""
    return max(1.0, budget.retry_jitter * missed.seconds)


def no_endpoint(request: Request, budget: Budget, rng: Random) -> Refused:
    """Refuse because nobody could serve the request: 503 always, never a 429."""
    return Refused(
        request=request.id,
        reason=Reason.NO_ENDPOINT,
        status=budget.status(Reason.NO_ENDPOINT),
        retry_after=NO_ENDPOINT_RETRY * (1.0 + rng.random()),
        should_retry=budget.should_retry,
        budget=budget,
    )


def _to_try(soundings: Soundings, chosen: int, bounds: Bounds, waited: Seconds) -> Iterator[int]:
    """Walk the choice, what is predicted already, who else may fit, then who will fit soonest."""
    yield chosen
    yield from (index for index in soundings.by_ttft() if index != chosen)
    candidates = soundings.candidates
    waits = candidates.wait_floors
    hopeful = (waited + waits <= bounds.wait) & (waited + soundings.floors <= bounds.ttft)
    places = np.flatnonzero(hopeful | ~candidates.measured)
    order = places[np.argsort(waits[places])].tolist()
    yield from [index for index in order if index not in soundings][:MOST_ALTERNATIVES]
    able = np.flatnonzero(candidates.own_floors <= bounds.ttft)
    if len(able):
        yield int(able[np.argmin(waits[able])])
