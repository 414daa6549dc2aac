"""Rules that compute whether a request can still meet its deadline, from a model fitted offline.

Both take the worker's step weights for the constants that their papers fit offline, which is better
than they ask for. The deadline is the request's TTFT objective, else its bound on the wait, else
the budget's; a request without any is admitted, as neither paper has such.

Chronos bounds the worst case. With p = ceil(l / B) chunks, a prefill takes at most
C = p * (alpha * B + gamma); with rho = lambda * E[C], lambda being the peak sub-window rate of the
last minute, the response takes at most rho * D / (1 - rho) + C. Three checks in order: rho >= 1;
that bound against D; decoding tasks against (s - gamma) / beta, s being the time between tokens.
Note that rho * D / (1 - rho) <= D needs rho <= 0.5. lambda here is what was offered to the pool,
over its workers, since a fleet has no one queue.

Mooncake's Algorithm 1 takes the worker with the least T_queue + T_prefill, T_queue being the sum of
the predicted prefills of all that is queued there, and refuses where that, or the time between
tokens, would miss. Its transfers between prefill instances have no counterpart here.

Source: Chronos, Frontiers in Computer Science 8, 2026; Mooncake, FAST'25, Algorithm 1.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from leadsman.admit import Excess, bounds_of
from leadsman.budget import Budget
from leadsman.candidates import Candidate, Soundings
from leadsman.policy import Policy, first_fitting, parameter, positive, read
from leadsman.prediction import Reason
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.signals import Signal
from leadsman.units import Seconds, Tokens

_MEAN_STEP = 0.05
"""Weight of one request in the mean of E[C]: some twenty requests back."""


def deadline_of(request: Request, budget: Budget, now: Seconds) -> Seconds:
    """Seconds that are left until the first token is due; infinite where nothing says so."""
    bounds = bounds_of(request, budget)
    allowed = bounds.ttft if math.isfinite(bounds.ttft) else bounds.wait
    return allowed - request.waited_until(now)


@dataclass(kw_only=True)
class Chronos(Policy):
    """A formal bound on the response, against the deadline."""

    name: ClassVar[str] = "chronos"
    source: ClassVar[str] = "Chronos, Frontiers in Computer Science 8, 2026"
    needs: ClassVar[frozenset[Signal]] = frozenset({Signal.RUNNING, Signal.STEP_TOKENS})

    window: Seconds = parameter(60.0, source="borrowed: Chronos")
    sub_window: Seconds = parameter(5.0, source="default: a twelfth of the window, chosen")
    safety: float = parameter(1.0, source="borrowed: Chronos; its reproduction tried 2")
    time_between_tokens: Seconds = parameter(
        2.0, source="borrowed: the reproduction on an A10G, SLO 0.5/2/30 s"
    )
    _arrivals: deque[Seconds] = field(default_factory=deque, init=False, repr=False)
    _mean: Seconds | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        positive(window=self.window, sub_window=self.sub_window, safety=self.safety)
        positive(time_between_tokens=self.time_between_tokens)

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Take the first worker on which the bound keeps the deadline."""
        request, now = soundings.request, soundings.now
        peak = self._peak_rate(now) / len(soundings.candidates.workers)
        own = self._worst(soundings.candidates.workers[choice.index], request.prompt_tokens, now)
        self._mean = own if self._mean is None else self._mean + _MEAN_STEP * (own - self._mean)
        load, deadline = self.safety * peak * self._mean, deadline_of(request, budget, now)
        if math.isinf(deadline):
            return choice

        def missed(worker: Candidate, _index: int) -> Excess | None:
            worst = self._worst(worker, request.prompt_tokens, now)
            if load >= 1:
                return self._excess(Reason.OVERLOADED, worst, rho=load)
            bound = load * deadline / (1 - load) + worst
            if bound > deadline:
                return Excess(
                    reason=Reason.WOULD_MISS_TTFT,
                    own_prefill=worst,
                    bound=deadline,
                    predicted=bound,
                    ever_fits=worst <= deadline,
                    read={"rho": load},
                )
            weights = worker.weights
            running, most = read(worker, Signal.RUNNING, now), math.inf
            if weights.t_d > 0:
                most = max(0.0, self.time_between_tokens - weights.t0) / weights.t_d
            if running > most:
                return self._excess(Reason.OVERLOADED, worst, running=running, limit=most)
            return None

        return first_fitting(soundings, choice, missed)

    def _excess(self, reason: Reason, worst: Seconds, **told: float) -> Excess:
        return Excess(reason=reason, own_prefill=worst, later=self.sub_window, read=told)

    def _peak_rate(self, now: Seconds) -> float:
        """Requests a second in the busiest sub-window of the last window, this one counted in."""
        arrivals = self._arrivals
        arrivals.append(now)
        while arrivals[0] <= now - self.window:
            arrivals.popleft()
        counts: dict[int, int] = {}
        for at in arrivals:
            slot = math.floor(at / self.sub_window)
            counts[slot] = counts.get(slot, 0) + 1
        return max(counts.values()) / self.sub_window

    def _worst(self, worker: Candidate, prompt: Tokens, now: Seconds) -> Seconds:
        step, weights = read(worker, Signal.STEP_TOKENS, now), worker.weights
        return math.ceil(prompt / step) * (weights.a * step + weights.t0 + weights.s)


@dataclass(kw_only=True)
class Mooncake(Policy):
    """The worker with the least queue + prefill, refused where that misses the deadline."""

    name: ClassVar[str] = "mooncake"
    source: ClassVar[str] = "Mooncake, FAST'25, Algorithm 1"
    needs: ClassVar[frozenset[Signal]] = frozenset({Signal.QUEUED_TOKENS, Signal.RUNNING})

    time_between_tokens: Seconds = parameter(
        0.2, source="borrowed: Mooncake's evaluation bounds TBT by 0.2 s"
    )

    def __post_init__(self) -> None:
        positive(time_between_tokens=self.time_between_tokens)

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Choose anew by its own estimate, and refuse where that misses."""
        now, workers = soundings.now, soundings.candidates.workers
        own = soundings.candidates.own_floors
        queues = [
            read(one, Signal.QUEUED_TOKENS, now) * one.weights.a + float(own[index])
            for index, one in enumerate(workers)
        ]
        best = min(range(len(workers)), key=lambda index: queues[index])
        deadline = deadline_of(soundings.request, budget, now)
        weights, prefill = workers[best].weights, float(own[best])
        between = weights.t0 + weights.t_d * (read(workers[best], Signal.RUNNING, now) + 1)
        if queues[best] <= deadline and (between <= self.time_between_tokens or not weights.t_d):
            return choice if best == choice.index else Choice(index=best, because="cheapest")
        if queues[best] <= deadline:
            return Excess(
                reason=Reason.OVERLOADED,
                own_prefill=prefill,
                later=prefill,
                read={"time_between_tokens": between, "limit": self.time_between_tokens},
            )
        return Excess(
            reason=Reason.WOULD_MISS_TTFT,
            own_prefill=prefill,
            bound=deadline,
            predicted=queues[best],
            ever_fits=prefill <= deadline,
        )
