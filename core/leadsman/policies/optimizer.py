"""A QLM-like fleet optimizer: every few seconds, all workers' queues are planned together.

Requests are grouped by their deadline, rounded up to a class. A plan orders each worker's queue by
class (the optimum of the paper's linear program for one server where groups share a model), and
says of every worker and class how long a newcomer of that class waits there: the prompt tokens that
are ahead of it and have no first token yet, at the rate at which the worker's queue has drained. A
request is admitted where the plan keeps its deadline, and adds its tokens to it until the next.

A plan is made in the background from a snapshot of what is in flight, and counts only once it is
there: `latency` later where time is virtual. It is O(requests + workers * classes), and cut off at
`most_requests`, so its time is bounded. Until the first plan all is admitted.

What of QLM is not here: swapping models, and moving requests that are at an engine already.
Source: QLM, SoCC 2024, arXiv 2407.00047: waiting times from the tokens ahead and a throughput. The
paper's counts output tokens; a drain rate in prompt tokens has waits for slots in it as well.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Candidate, Soundings
from leadsman.policies.deadlines import deadline_of
from leadsman.policy import Policy, first_fitting, parameter, positive
from leadsman.prediction import Reason
from leadsman.records import Ended, Record, TokensSeen, WorkerGone
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.units import RequestId, Seconds, Tokens, WorkerId

CLASSES: tuple[Seconds, ...] = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, math.inf)
FIRST_RATE = 1000.0
"""Tokens a second of a queue that nothing has left yet: a default, replaced within a minute."""

_MEMORY: Seconds = 60.0

Ahead: TypeAlias = dict[tuple[WorkerId, int], Tokens]
"""Tokens ahead of a newcomer, by worker and place of its class."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A request that was sent and has no first token yet. place: its deadline's class."""

    worker: WorkerId
    tokens: Tokens
    place: int


@dataclass(slots=True)
class Drain:
    """Tokens a second at which a worker's queue drains while there is one, forgetting."""

    tokens: float = 0.0
    busy: Seconds = 0.0
    at: Seconds = 0.0
    queued: int = 0

    def move(self, now: Seconds, by: int) -> None:
        """Let time pass, and `by` requests join the queue or leave it."""
        passed = max(0.0, now - self.at)
        kept = math.exp(-passed / _MEMORY)
        self.tokens, self.busy = self.tokens * kept, self.busy * kept
        self.busy += passed if self.queued else 0.0
        self.at, self.queued = max(self.at, now), max(0, self.queued + by)

    @property
    def per_s(self) -> float:
        """The rate; a default until a second of queueing was seen."""
        return self.tokens / self.busy if self.busy > 1 and self.tokens > 0 else FIRST_RATE


@dataclass(kw_only=True)
class FleetOptimizer(Policy):
    """Admits by the last plan of all queues."""

    name: ClassVar[str] = "fleet_optimizer"
    source: ClassVar[str] = "QLM, SoCC 2024, arXiv 2407.00047"
    watches: ClassVar[bool] = True

    every: Seconds = parameter(5.0, source="borrowed: QLM takes about 5 s a decision")
    most_requests: int = parameter(20_000, source="default: 20 ms of planning, chosen")
    _queued: dict[RequestId, Queued] = field(default_factory=dict, init=False, repr=False)
    _drains: dict[WorkerId, Drain] = field(default_factory=dict, init=False, repr=False)
    _ahead: Ahead | None = field(default=None, init=False, repr=False)
    _as_of: Seconds = field(default=0.0, init=False, repr=False)
    _due: Seconds = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        positive(every=self.every, most_requests=self.most_requests)

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Take the first worker where the plan keeps the request's deadline."""
        now, plan = soundings.now, self._ahead
        deadline = deadline_of(soundings.request, budget, now)
        if plan is None:
            return choice
        place, own = _place(deadline), soundings.candidates.own_floors

        def missed(worker: Candidate, index: int) -> Excess | None:
            prefill = float(own[index])
            ttft = self._wait(plan, worker.worker, place, now) + prefill
            if ttft <= deadline:
                return None
            return Excess(
                reason=Reason.WOULD_MISS_TTFT,
                own_prefill=prefill,
                bound=deadline,
                predicted=ttft,
                ever_fits=prefill <= deadline,
            )

        return first_fitting(soundings, choice, missed)

    def _wait(self, plan: Ahead, worker: WorkerId, place: int, now: Seconds) -> Seconds:
        """Seconds of queue by the plan, less those that have passed since its snapshot."""
        ahead = plan.get((worker, place), 0) / self._drain(worker).per_s
        return max(0.0, ahead - (now - self._as_of))

    def sent(self, request: Request, worker: WorkerId, now: Seconds) -> None:
        """Queue an admitted request by what it says itself of its deadline."""
        wanted = request.ttft_objective or request.max_queue_wait
        one = Queued(worker, request.prompt_tokens, _place(math.inf if wanted is None else wanted))
        self._queued[request.id] = one
        self._drain(worker).move(now, 1)
        if self._ahead is not None:
            _add(self._ahead, one)

    def saw(self, record: Record, now: Seconds) -> None:
        """Let a request leave the queue, with its first token or without."""
        if isinstance(record, WorkerGone):
            self._drains.pop(record.worker, None)
            gone = [name for name, one in self._queued.items() if one.worker == record.worker]
            for name in gone:
                del self._queued[name]
        elif isinstance(record, TokensSeen | Ended):
            one = self._queued.pop(record.request, None)
            if one is not None:
                drain = self._drain(one.worker)
                drain.move(now, -1)
                drain.tokens += one.tokens if isinstance(record, TokensSeen) else 0

    def plan(self, now: Seconds) -> Callable[[], Callable[[], None]] | None:
        """Take a snapshot, where a plan is due."""
        if now < self._due:
            return None
        self._due = now + self.every
        snapshot = tuple(self._queued.values())[-self.most_requests :]

        def work() -> Callable[[], None]:
            found = planned(snapshot)

            def install() -> None:
                self._ahead, self._as_of = found, now

            return install

        return work

    def _drain(self, worker: WorkerId) -> Drain:
        return self._drains.setdefault(worker, Drain())


def planned(snapshot: tuple[Queued, ...]) -> Ahead:
    """Sum for each worker and class what goes before a newcomer: its own class and all sooner."""
    ahead: Ahead = {}
    for one in snapshot:
        _add(ahead, one)
    return ahead


def _add(ahead: Ahead, one: Queued) -> None:
    for later in range(one.place, len(CLASSES)):
        ahead[one.worker, later] = ahead.get((one.worker, later), 0) + one.tokens


def _place(deadline: Seconds) -> int:
    return bisect_left(CLASSES, deadline)
