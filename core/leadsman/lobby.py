"""Requests of one model that are held until a worker is nearly free, and who goes next.

What stands in an engine's queue goes nowhere else, and lets nobody by. What is held here can do
both: a worker that comes free first gets it, and a more urgent request passes it. Held are requests
that were admitted already: their rule has judged them when they came, and is not asked again. And
those that Leadsman's own rule doubts: whether they can be in time need not be said yet.

The order: the more important objective; then the less slack, in whole seconds, since requests with
the same bound would else go by their arrival alone; among those the tenant that has had least of
its share; then who came first.

A request that comes is told what it would wait: the wait of the engine that it would go to, and
the prefill of all that are held before it, at the pace at which the line has moved lately. That is
right whatever becomes of the line, since the work is the same wherever it waits. But who will get
through, when many before it give up and later ones pass, nobody can say to within a bound; of those
refused by such forecasts many would have been in time. So a request is refused only when its time
is over, or, as it comes, where the line seems four times too long.

Nothing is held for longer than its budget says, or its picker can: then it is sent where it would
have gone without a lobby.

Ignored: that those who come later may pass, until they do.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Protocol, TypeAlias

from leadsman.admit import UNPROVEN, Bounds, Excess, bounds_of, is_idle
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.prediction import Admitted, Decision, Prediction, Reason, Refused
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.units import BlockKey, RequestId, Seconds

NEARLY: Final[Seconds] = 0.2
"""A worker whose queue lasts no longer is nearly free: a few steps, so that it never runs dry while
the next request is on its way. Chosen."""

GRAIN: Final[Seconds] = 1.0
"""Slacks within a second of each other are the same, and shares decide."""

MOST_ASKED = 8
"""Requests of one turn that are priced; each costs up to eight replays. The rest has its turn
`SOONEST` later."""

SOONEST: Final[Seconds] = 0.01
LATEST: Final[Seconds] = 0.25
"""Between two turns, unless something happens: no less than the one, no more than the other."""

SEVERE: Final = 4.0
"""How many times too long a line must seem to refuse for it. It is no forecast for one request, but
who would come too late by minutes need not wait to hear so. Chosen."""

HALF_LIFE: Final[Seconds] = 20.0
"""In which what was learned of the pace counts half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A request that waits here for a worker.

    at: since when; until: when it is sent on, wherever. latest: by when an engine must have begun
    with it; infinite where it has no bound, or none that may refuse it. work: its own prefill.
    expected: what it was to wait for an engine to begin. number: its place among all that came.
    """

    request: Request
    budget: Budget
    family: BlockKey | None
    at: Seconds
    until: Seconds
    latest: Seconds
    work: Seconds
    expected: Seconds
    number: int


Over: TypeAlias = Callable[[Held], float]
"""How many times its share a held request's tenant has had; 1 where no shares are kept."""


class Places(Protocol):
    """Who places what is held: a fleet."""

    def place(self, held: Held, now: Seconds, rng: Random, *, insist: bool) -> Decision | Seconds:
        """Send it on, or refuse it; or say how long the worker that it would go to has yet to do.

        insist: it is not held any longer.
        """
        ...

    def give_up(self, held: Held, wait: Seconds, now: Seconds, rng: Random) -> Decision:
        """Refuse it, since it would wait for so long still."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of a held request, which has waited by now; decision.held_for says how long."""

    request: Request
    decision: Decision


class Pace:
    """How many seconds go by for each second of prefill that leaves the line."""

    def __init__(self) -> None:
        self._clock = self._work = 0.0
        self._at: Seconds | None = None

    def rest(self) -> None:
        """Forget when the last one left: there is no line any more."""
        self._at = None

    def left(self, work: Seconds, now: Seconds) -> None:
        """Note that so much work leaves the line now."""
        if self._at is not None:
            passed = max(0.0, now - self._at)
            kept = math.exp2(-passed / HALF_LIFE)
            self._clock, self._work = self._clock * kept + passed, self._work * kept + work
        self._at = now

    def of(self, work: Seconds, workers: int) -> Seconds:
        """Say how long so much work takes to leave; unknown, each worker does its part."""
        return work * (self._clock + 1.0 / max(1, workers)) / (self._work + 1.0)


class Lobby:
    """All held requests of one model. Times are on the fleet's clock.

    longest: for which anybody may be held, whatever a budget says.
    """

    def __init__(self, longest: Seconds = math.inf) -> None:
        self._longest = longest
        self._held: dict[RequestId, Held] = {}
        self._pace = Pace()
        self._number = 0
        self._turned_at: Seconds = -math.inf
        self._is_stirred = False
        self.next_turn: Seconds = math.inf

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._held

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held.values())

    def enter(  # noqa: PLR0913  # who comes, what is predicted of it, and beside whom
        self,
        soundings: Soundings,
        choice: Choice,
        budget: Budget,
        family: BlockKey | None,
        over: Over,
        *,
        binds: bool,
    ) -> Held | Excess | None:
        """Say whether a newcomer is held, refused, or goes on at once (None). Takes nobody in.

        choice: where it would go. binds: whether its bounds may refuse it.
        """
        request, now, prediction = soundings.request, soundings.now, soundings.sound(choice.index)
        held = self._held_of(request, budget, family, prediction, now, binds=binds)
        mine = order(held, over)
        before = [one for one in self._held.values() if order(one, over) < mine]
        if not before and is_nearly_free(prediction):
            return None
        line = self._pace.of(sum(one.work for one in before), len(soundings.candidates.workers))
        wait = prediction.price.queue_wait + line
        if prediction.curve != "unmeasured" and now + wait / SEVERE > held.latest:
            told = wait + request.waited_until(now)
            return missing(bounds_of(request, budget), told, prediction)
        return replace(held, expected=wait)

    def _held_of(  # noqa: PLR0913  # all that is held of one
        self,
        request: Request,
        budget: Budget,
        family: BlockKey | None,
        prediction: Prediction,
        now: Seconds,
        *,
        binds: bool,
    ) -> Held:
        assert budget.hold is not None, "only who may be held comes here"
        self._number += 1
        bounds, own = bounds_of(request, budget), prediction.price.own_prefill
        bound = min(bounds.wait, bounds.ttft - own)
        return Held(
            request=request,
            budget=budget,
            family=family,
            at=now,
            until=now + min(budget.hold, self._longest),
            latest=request.arrived_at - request.waited + bound if binds else math.inf,
            work=own,
            expected=0.0,
            number=self._number,
        )

    def hold(self, held: Held) -> None:
        """Take a request in."""
        assert held.request.id not in self._held, f"{held.request.id} is held already"
        self._held[held.request.id] = held
        soon = held.at + min(max(held.expected - NEARLY, SOONEST), LATEST)
        self.next_turn = min(self.next_turn, soon, held.until, held.latest)

    def drop(self, request: RequestId) -> Held | None:
        """Let a request go, as its client is gone; None where it is not held."""
        held = self._held.pop(request, None)
        if not self._held:
            self._rest()
        return held

    def stir(self, now: Seconds) -> None:
        """Note that something has happened by which a worker may have come free."""
        if self._held:
            self._is_stirred = True
            self.next_turn = min(self.next_turn, max(now, self._turned_at + SOONEST))

    def turn(  # noqa: PLR0913  # who places, by what order, and what of the fleet is known
        self,
        places: Places,
        over: Over,
        *,
        now: Seconds,
        rng: Random,
        frees_in: Seconds,
        workers: int,
        everyone: bool = False,
    ) -> list[Settled]:
        """Place whom a worker is nearly free for, in their order, and refuse whom none will be.

        frees_in: a time in which no worker comes free by itself. everyone: nobody may be held any
        longer.
        """
        may_go = self._is_stirred or frees_in <= NEARLY
        self._is_stirred = False
        settled: list[Settled] = []
        waits: list[Seconds] = []
        asked, ahead = 0, 0.0
        for held in sorted(self._held.values(), key=lambda one: order(one, over)):
            insist = everyone or now >= held.until
            answer: Decision | Seconds = min(waits, default=frees_in)
            if everyone or ((insist or may_go) and asked < MOST_ASKED):
                asked += 1
                answer = places.place(held, now, rng, insist=insist)
            if not isinstance(answer, Admitted | Refused):
                waits.append(answer)
                if now < held.latest:
                    ahead += held.work
                    continue
                wait = max(answer, SOONEST) + self._pace.of(ahead, workers)
                answer = places.give_up(held, wait, now, rng)
            settled.append(self._settle(held, answer, now))
        self._turned_at = now
        self._set_next(now, min(waits, default=frees_in))
        return settled

    def _settle(self, held: Held, decision: Decision, now: Seconds) -> Settled:
        del self._held[held.request.id]
        if isinstance(decision, Admitted) and decision.prediction is not None:
            self._pace.left(held.work, now)
        request = waiting(held, now).request
        return Settled(request=request, decision=replace(decision, held_for=now - held.at))

    def _set_next(self, now: Seconds, soonest: Seconds) -> None:
        if not self._held:
            self._rest()
            return
        later = now + min(max(soonest - NEARLY, SOONEST), LATEST)
        due = min(min(one.until, one.latest) for one in self._held.values())
        self.next_turn = min(later, max(due, now + SOONEST))

    def _rest(self) -> None:
        self._pace.rest()
        self.next_turn = math.inf


def waiting(held: Held, now: Seconds) -> Held:
    """Put a held request as it is now: what it has been held for, its caller has waited."""
    request = held.request
    waited = request.waited_until(now)
    return replace(held, request=replace(request, waited=waited, arrived_at=now))


def order(held: Held, over: Over) -> tuple[int, float, float, int]:
    """Give what decides who goes first: less goes before more."""
    slack = math.floor(held.latest / GRAIN) if math.isfinite(held.latest) else math.inf
    return (-held.request.importance, slack, over(held), held.number)


def is_nearly_free(prediction: Prediction) -> bool:
    """Say whether a worker would soon begin with a request; of an unmeasured one, if none waits."""
    price = prediction.price
    if prediction.curve == "unmeasured":
        return price.queued_requests < UNPROVEN
    return price.queue_wait <= NEARLY or is_idle(price)


def missing(bounds: Bounds, wait: Seconds, prediction: Prediction) -> Excess | None:
    """Say by what a wait of so long misses the bounds; None where it keeps them."""
    own = prediction.price.own_prefill
    if wait > bounds.wait:
        return Excess(
            reason=bounds.wait_reason, bound=bounds.wait, predicted=wait, own_prefill=own, by=BY
        )
    rest = max(own, prediction.ttft_bound - prediction.queue_wait_bound)
    if wait + rest > bounds.ttft:
        return Excess(
            reason=Reason.WOULD_MISS_TTFT,
            bound=bounds.ttft,
            predicted=wait + rest,
            own_prefill=own,
            ever_fits=own <= bounds.ttft,
            by=BY,
        )
    return None


BY: Final = "hold"
"""Whose refusal it is where the line is too long."""
