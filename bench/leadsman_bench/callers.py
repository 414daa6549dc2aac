"""Callers that act on what they got, in virtual time: next calls, retries, and giving up.

How a refused caller behaves is half of what a refusal is worth, so it is an argument (`Manners`):

- leave: goes elsewhere at once, and does not come back.
- obey: waits as long as Retry-After says, if it is told to come back and the wait is one that the
  SDKs honour; RETRIES times, as both SDK families do by default. Then it gives up.
- ignore: comes back by the SDKs' own backoff (0.5 s, doubled each time, up to 8 s, up to a quarter
  less by chance), whatever it was told.

A task whose call is given up, or breaks, is over, and so are its calls that were never made.
Source: openai 3.57 and anthropic 2.14, _base_client.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Literal, Protocol, TypeAlias

from leadsman.budget import LONGEST_RETRY_AFTER
from leadsman.prediction import Refused
from leadsman.records import Outcome
from leadsman.units import RequestId, Seconds

from leadsman_bench.tasks import Call, Task
from leadsman_bench.virtual import HangUp, Offer, Stream

Manners = Literal["leave", "obey", "ignore"]
RETRIES = 2
FIRST_BACKOFF: Seconds = 0.5
LONGEST_BACKOFF: Seconds = 8.0

Maker: TypeAlias = Callable[[Task, Call, RequestId], Offer]
"""Makes the offer of a call; `arrived_at` is set by who sends it."""


@dataclass(slots=True)
class Fate:
    """What became of one call. began: its first try. stream: of the try that was let in.

    refused: the last refusal. gave_up: its caller went away while it was held.
    """

    task: Task
    place: int
    began: Seconds
    tries: int = 0
    stream: Stream | None = None
    refused: Refused | None = None
    gave_up: bool = False

    @property
    def call(self) -> Call:
        """The call."""
        return self.task.calls[self.place]

    @property
    def was_served(self) -> bool:
        """Whether it got its answer, or as much of it as its caller wanted."""
        if self.stream is None or self.stream.outcome is None:
            return self.gave_up
        gave_up = self.stream.outcome is Outcome.CLIENT_GONE and self.call.hangs_up is not None
        return gave_up or self.stream.outcome is Outcome.FINISHED

    @property
    def ttft(self) -> Seconds | None:
        """Seconds from the caller's first try to its first token; None where none came."""
        first = None if self.stream is None else self.stream.first_at
        return None if first is None else first - self.began


@dataclass(slots=True)
class Progress:
    """A task under way: its calls that are over, and whether it has failed."""

    task: Task
    over: set[int] = field(default_factory=set)
    ended_at: dict[int, Seconds] = field(default_factory=dict)
    failed: bool = False

    @property
    def finished(self) -> bool:
        """Whether all of its calls were served."""
        return len(self.over) == len(self.task.calls)


class Observer(Protocol):
    """Who is told of every try, as any keeper of a run."""

    def ended(self, stream: Stream) -> None:
        """See how a stream ended."""
        ...

    def refused(self, offer: Offer, refused: Refused) -> None:
        """See a refusal."""
        ...


class Callers:
    """A source of offers, and the keeper that is told what became of them.

    tasks: by the time at which they begin. make: makes a call's offer. observer: is told as well.
    """

    heeds = True

    def __init__(
        self,
        tasks: Iterable[Task],
        make: Maker,
        manners: Manners,
        *,
        rng: Random,
        observer: Observer | None = None,
    ) -> None:
        self.fates: list[Fate] = []
        self.progress: dict[str, Progress] = {}
        self._tasks = iter(tasks)
        self._make, self._manners, self._rng = make, manners, rng
        self._observer = observer
        self._order = count()
        self._due: list[tuple[Seconds, int, Fate | RequestId]] = []
        self._sent: dict[RequestId, Fate] = {}
        self._coming = next(self._tasks, None)

    def due(self) -> Seconds | None:
        """Say when the next call, or the next hang-up, is due."""
        self._start()
        return self._due[0][0] if self._due else None

    def _start(self) -> None:
        """Let tasks begin that do so before anything else is due."""
        while self._coming is not None and (not self._due or self._coming.at <= self._due[0][0]):
            task, self._coming = self._coming, next(self._tasks, None)
            self.progress[task.name] = Progress(task)
            for place, call in enumerate(task.calls):
                if not call.after:
                    self._plan(Fate(task, place, call.row.at), call.row.at)

    def _plan(self, what: Fate | RequestId, at: Seconds) -> None:
        heappush(self._due, (at, next(self._order), what))

    def take(self, now: Seconds) -> Offer | HangUp:
        """Send the call that is due, or let its caller go away."""
        _, _, what = heappop(self._due)
        if not isinstance(what, Fate):
            return HangUp(what)
        name = RequestId(f"{what.task.name}/{what.place}/{what.tries}")
        if not what.tries:
            what.began = now
            self.fates.append(what)
        what.tries += 1
        offer = self._make(what.task, what.call, name)
        request = replace(
            offer.request,
            arrived_at=now,
            session=what.task.session,
            tenant=what.task.tenant,
            priority=what.call.priority,
        )
        self._sent[name] = what
        if what.call.hangs_up is not None:
            self._plan(name, now + what.call.hangs_up)
        return replace(offer, request=request)

    def ended(self, stream: Stream) -> None:
        """Note a call that is over; those that follow it come once their callers have thought."""
        if self._observer is not None:
            self._observer.ended(stream)
        fate = self._sent.pop(stream.offer.request.id)
        fate.stream = stream
        assert stream.ended_at is not None
        if fate.was_served:
            self._follow(fate, stream.ended_at)
        else:
            self._fail(fate.task)

    def refused(self, offer: Offer, refused: Refused) -> None:
        """Come back as the caller's manners are, or give the task up."""
        if self._observer is not None:
            self._observer.refused(offer, refused)
        fate = self._sent.pop(offer.request.id)
        fate.refused = refused
        pause = self._pause(refused, fate.tries)
        if pause is None:
            self._fail(fate.task)
        else:
            self._plan(fate, offer.request.arrived_at + (refused.held_for or 0.0) + pause)

    def gone(self, offer: Offer, now: Seconds) -> None:
        """Note a caller that went away while its call was held: it has no more use for it."""
        fate = self._sent.pop(offer.request.id)
        fate.gave_up = True
        self._follow(fate, now)

    def _pause(self, refused: Refused, tries: int) -> Seconds | None:
        if self._manners == "leave" or tries > RETRIES:
            return None
        if self._manners == "ignore":
            backoff = min(FIRST_BACKOFF * 2.0 ** (tries - 1), LONGEST_BACKOFF)
            return backoff * (1.0 - 0.25 * self._rng.random())
        honoured = refused.should_retry and refused.retry_after <= LONGEST_RETRY_AFTER
        return refused.retry_after if honoured else None

    def _follow(self, fate: Fate, at: Seconds) -> None:
        progress = self.progress[fate.task.name]
        progress.over.add(fate.place)
        progress.ended_at[fate.place] = at
        if progress.failed:
            return
        for place, call in enumerate(fate.task.calls):
            if fate.place in call.after and progress.over.issuperset(call.after):
                ready = max(progress.ended_at[one] for one in call.after)
                begins = max(ready + call.thinks, call.row.at)
                self._plan(Fate(fate.task, place, begins), begins)

    def _fail(self, task: Task) -> None:
        """Give a task up; calls of it that run are answered, and nobody follows them."""
        self.progress[task.name].failed = True

    def is_over(self, name: str) -> bool:
        """Whether a task has finished or failed."""
        progress = self.progress.get(name)
        return progress is not None and (progress.failed or progress.finished)

    def finished(self, names: Sequence[str]) -> int:
        """Count those of these tasks that got all of their calls answered."""
        return sum(name in self.progress and self.progress[name].finished for name in names)
