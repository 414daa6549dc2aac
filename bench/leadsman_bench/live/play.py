"""Plays tasks at a gateway: each call when those before it are over, each retry by its manners.

The live counterpart of `callers`, with the same manners. A task's session and tenant go along as
headers; a caller that has lost patience closes its connection.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import aiohttp
from leadsman.budget import LONGEST_RETRY_AFTER
from leadsman.units import Seconds

from leadsman_bench.callers import FIRST_BACKOFF, LONGEST_BACKOFF, RETRIES, Manners
from leadsman_bench.player import LINGER, Planned, Played, Tally, send
from leadsman_bench.tasks import Call, Task

SESSION_HEADER, TENANT_HEADER = "x-leadsman-session", "x-leadsman-tenant"


@dataclass(slots=True, kw_only=True)
class Told:
    """One call as its caller saw it: every try of it, in order. began: of the first."""

    task: Task
    place: int
    began: Seconds
    tries: list[Played] = field(default_factory=list)
    gave_up: bool = False

    @property
    def call(self) -> Call:
        """The call."""
        return self.task.calls[self.place]

    @property
    def was_served(self) -> bool:
        """Whether it got its answer, or as much of it as its caller wanted."""
        last = self.tries[-1]
        return last.status == 200 and (self.gave_up or not last.broke)

    @property
    def ttft(self) -> Seconds | None:
        """Seconds from the first try to the first content."""
        first = self.tries[-1].first_at
        return None if first is None else first - self.began


@dataclass(slots=True)
class TaskPlay:
    """One play of tasks; `tally` and `told` may be read while it runs."""

    url: str
    tasks: Sequence[Task]
    manners: Manners
    model: str
    rng: Random
    linger: Seconds = LINGER
    told: list[Told] = field(default_factory=list)
    tally: Tally = field(init=False)
    _now: Callable[[], Seconds] = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(planned=sum(len(task.calls) for task in self.tasks))

    async def run(self) -> list[Told]:
        """Begin each task at its time, and wait until all are over, at most `linger` longer."""
        clock = asyncio.get_running_loop().time
        start = clock()
        self._now = lambda: clock() - start
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            running = []
            for task in sorted(self.tasks, key=lambda one: one.at):
                await asyncio.sleep(task.at - self._now())
                running.append(asyncio.create_task(self._task(session, task)))
            if running:
                _, late = await asyncio.wait(running, timeout=self.linger)
                for one in late:
                    one.cancel()
                await asyncio.gather(*running, return_exceptions=True)
        return self.told

    async def _task(self, session: aiohttp.ClientSession, task: Task) -> None:
        over = [asyncio.Event() for _ in task.calls]
        failed = asyncio.Event()

        async def one(place: int, call: Call) -> None:
            for former in call.after:
                await over[former].wait()
            await asyncio.sleep(max(call.thinks if call.after else 0.0, call.row.at - self._now()))
            if not failed.is_set() and not await self._call(session, task, place):
                failed.set()
            over[place].set()

        await asyncio.gather(*(one(place, call) for place, call in enumerate(task.calls)))

    async def _call(self, session: aiohttp.ClientSession, task: Task, place: int) -> bool:
        """Make one call, with its retries; says whether it was served."""
        call, told = task.calls[place], Told(task=task, place=place, began=self._now())
        self.told.append(told)
        while True:
            planned = Planned(
                id=f"{task.name}.{place}.{len(told.tries)}",
                at=self._now(),
                row=call.row,
                model=self.model,
                max_queue_wait=call.wishes.max_queue_wait,
                max_tokens=call.wishes.max_tokens,
                headers=_headers(task),
                ttft=call.wishes.ttft,
            )
            played = Played(planned=planned, sent_at=self._now())
            told.tries.append(played)
            trying = asyncio.create_task(send(self.url, session, played, self._now, self.tally))
            _, late = await asyncio.wait([trying], timeout=call.hangs_up)
            if late:
                told.gave_up = True
                trying.cancel()
                await asyncio.gather(trying, return_exceptions=True)
                return True
            pause = self._pause(played, len(told.tries))
            if pause is None:
                return told.was_served
            await asyncio.sleep(pause)

    def _pause(self, played: Played, tries: int) -> Seconds | None:
        if played.status == 200 or played.status is None or self.manners == "leave":
            return None
        if tries > RETRIES:
            return None
        if self.manners == "ignore":
            backoff = min(FIRST_BACKOFF * 2.0 ** (tries - 1), LONGEST_BACKOFF)
            return backoff * (1.0 - 0.25 * self.rng.random())
        after = played.retry_after
        honoured = played.should_retry and after is not None and after <= LONGEST_RETRY_AFTER
        return after if honoured else None


def _headers(task: Task) -> dict[str, str]:
    headers = {}
    if task.session is not None:
        headers[SESSION_HEADER] = task.session
    if task.tenant is not None:
        headers[TENANT_HEADER] = task.tenant
    return headers
