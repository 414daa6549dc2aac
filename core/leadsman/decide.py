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
from leadsman.prediction import Admitted, Decision, Refused
from leadsman.request import Request
from leadsman.route import Choice, route
from leadsman.units import Seconds

Judge: TypeAlias = Callable[[Soundings, Choice, Budget], Choice | Excess]
Holds: TypeAlias = Callable[[Soundings, Choice, Budget], Held | Excess | None]
"""Says whether who is admitted is held, or refused since too many are; None: neither."""


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
    held = None
    if holds is not None and not isinstance(verdict, Excess):
        held = holds(soundings, verdict, budget)
    if isinstance(held, Held):
        return held
    if held is not None:
        return _turned_away(held, soundings, budget, choice, rng)
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
    prediction = soundings.sound(choice.index)
    if not insist and not is_nearly_free(prediction):
        return prediction.price.queue_wait
    verdict = admit(soundings, choice, held.budget) if math.isfinite(held.latest) else choice
    if isinstance(verdict, Excess):
        return _turned_away(verdict, soundings, held.budget, choice, rng)
    return _admitted(soundings, held.budget, verdict)


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
