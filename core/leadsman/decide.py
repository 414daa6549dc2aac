"""The one decision: where a request goes, or why it goes nowhere. Pure: `now` and `rng` come in.

Routing chooses, a rule keeps the choice or says by what the request is too much. Which rule that
is, the budget says (`gate`); without one it is Leadsman's own (`admit`).

Routing and admission look at the same soundings, so that a request is never refused by one estimate
and sent by another. One that is admitted may be held (`lobby`); it is decided again when a worker
is nearly free, without asking its rule once more.
"""

import math
from collections.abc import Callable
from random import Random
from typing import Literal, TypeAlias

from leadsman.admit import Excess, admit, book, bounds_of, no_endpoint, refuse
from leadsman.budget import Budget
from leadsman.candidates import Candidates, Soundings
from leadsman.lobby import Held, is_nearly_free, missing
from leadsman.prediction import Admitted, Decision, Prediction, Refused
from leadsman.request import Request
from leadsman.route import Choice, route
from leadsman.units import Seconds

Judge: TypeAlias = Callable[[Soundings, Choice, Budget], Choice | Excess]
Holds: TypeAlias = Callable[[Soundings, Choice | Excess, Choice, Budget], Held | Excess | None]
"""Says by its judge's verdict and routing's choice whether a request is held, or refused since too
many are; None: neither, so the verdict stands."""


def decide(  # noqa: PLR0913, PLR0917  # all that a decision is made of
    request: Request,
    candidates: Candidates,
    budget: Budget,
    now: Seconds,
    rng: Random,
    judge: Judge = admit,
    holds: Holds | None = None,
) -> Decision | Held:
    """Admit the request to one worker, hold it, or refuse it.

    Reads the candidates; changes only what their looks cost, their booked returns when it refuses,
    and what the judge remembers. Off, it routes and asks no judge. In shadow mode, and for the
    budget's share of probes, what would be refused is admitted where routing sends it, and the
    refusal goes along.
    """
    ready = candidates.ready()
    if not ready.workers:
        return no_endpoint(request, budget, rng)
    soundings = Soundings(request, ready, budget.confidence, now)
    choice = route(soundings, budget, rng)
    if budget.mode == "off":
        return _admitted(soundings, budget, choice)
    verdict = judge(soundings, choice, budget)
    held = None if holds is None else holds(soundings, verdict, choice, budget)
    if isinstance(held, Held):
        return held
    if held is not None:
        verdict = held
    if isinstance(verdict, Excess):
        return _turned_away(verdict, soundings, budget, choice, rng)
    return _admitted(soundings, budget, verdict)


def place(
    held: Held, candidates: Candidates, now: Seconds, rng: Random, *, insist: bool
) -> Decision | Seconds:
    """Decide on a held request if a worker is nearly free for it, else say for how long none is.

    insist: it is not held any longer: it goes where it keeps its bounds, or is refused.
    """
    ready = candidates.ready()
    if not ready.workers:
        return no_endpoint(held.request, held.budget, rng)
    soundings = Soundings(held.request, ready, held.budget.confidence, now)
    choice = route(soundings, held.budget, rng)
    if not insist:
        prediction = soundings.sound(choice.index)
        wait = begins_in(held, prediction)
        is_in_time = now + wait <= held.latest or prediction.curve == "unmeasured"
        if not (is_in_time and is_nearly_free(prediction)):
            return wait
        return _admitted(soundings, held.budget, choice)
    verdict = admit(soundings, choice, held.budget) if math.isfinite(held.latest) else choice
    if isinstance(verdict, Excess):
        return _turned_away(verdict, soundings, held.budget, choice, rng)
    return _admitted(soundings, held.budget, verdict)


def begins_in(held: Held, prediction: Prediction) -> Seconds:
    """Say how long a held request has to wait for a worker, to be held against its `latest`.

    That was taken with the prefill that was expected when it came. Of an objective for the first
    token a longer prefill leaves less, so it counts as wait.
    """
    price, bounds = prediction.price, bounds_of(held.request, held.budget)
    if math.isinf(bounds.ttft):
        return price.queue_wait
    return max(price.queue_wait, price.ttft - held.work)


def give_up(
    held: Held, wait: Seconds, candidates: Candidates, now: Seconds, rng: Random
) -> Decision:
    """Refuse a held request, since it would wait for so long still."""
    ready = candidates.ready()
    if not ready.workers:
        return no_endpoint(held.request, held.budget, rng)
    soundings = Soundings(held.request, ready, held.budget.confidence, now)
    choice = route(soundings, held.budget, rng)
    wait += held.request.waited_until(now)
    missed = missing(bounds_of(held.request, held.budget), wait, soundings.sound(choice.index))
    if missed is None:  # it is cheaper than it was when it came, and fits after all
        return _admitted(soundings, held.budget, choice)
    return _turned_away(missed, soundings, held.budget, choice, rng)


def _turned_away(
    missed: Excess, soundings: Soundings, budget: Budget, choice: Choice, rng: Random
) -> Decision:
    refused = refuse(missed, soundings, budget, rng)
    if budget.mode == "shadow":
        return _admitted(soundings, budget, choice, refused, "shadow")
    if rng.random() < budget.probes:
        return _admitted(soundings, budget, choice, refused, "probe")
    return book(refused, missed, soundings)


def _admitted(
    soundings: Soundings,
    budget: Budget,
    choice: Choice,
    refusal: Refused | None = None,
    set_aside: Literal["shadow", "probe"] | None = None,
) -> Admitted:
    index = choice.index
    worker = soundings.candidates.workers[index]
    return Admitted(
        request=soundings.request.id,
        worker=worker.worker,
        endpoint=worker.endpoint,
        prediction=soundings.sound(index),
        fallbacks=soundings.fallbacks(index),
        candidates=soundings.predictions(),
        because=set_aside or choice.because,
        refusal=refusal,
        budget=budget,
        survey=soundings.survey(),
    )
