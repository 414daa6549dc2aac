"""The one decision: where a request goes, or why it goes nowhere. Pure: `now` and `rng` come in.

Routing chooses, a rule keeps the choice or says by what the request is too much. Which rule that
is, the budget says (`gate`); without one it is Leadsman's own (`admit`).

Routing and admission look at the same soundings, so that a request is never refused by one estimate
and sent by another.
"""

from collections.abc import Callable
from random import Random
from typing import Literal, TypeAlias

from leadsman.admit import Excess, admit, book, no_endpoint, refuse
from leadsman.budget import Budget
from leadsman.candidates import Candidates, Soundings
from leadsman.prediction import Admitted, Decision, Refused
from leadsman.request import Request
from leadsman.route import Choice, route
from leadsman.units import Seconds

Judge: TypeAlias = Callable[[Soundings, Choice, Budget], Choice | Excess]


def decide(  # noqa: PLR0913, PLR0917  # all that a decision is made of
    request: Request,
    candidates: Candidates,
    budget: Budget,
    now: Seconds,
    rng: Random,
    judge: Judge = admit,
) -> Decision:
    """Admit the request to one worker, or refuse it.

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
    if not isinstance(verdict, Excess):
        return _admitted(soundings, budget, verdict)
    refused = refuse(verdict, soundings, budget, rng)
    if budget.mode == "shadow":
        return _admitted(soundings, budget, choice, refused, "shadow")
    if rng.random() < budget.probes:
        return _admitted(soundings, budget, choice, refused, "probe")
    return book(refused, verdict, soundings)


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
