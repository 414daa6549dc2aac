"""One of several operators that share the collecting, and the parts that it has with a lone leader.

Every replica collects from its share, whatever its seat; what is written once, one of them writes.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

import aiohttp
from leadsman.units import Seconds

from leadsman_operator.fleets import Fleets
from leadsman_operator.kube import Api
from leadsman_operator.lessons import LessonBook, Lessons
from leadsman_operator.outlets import SharedOutlet
from leadsman_operator.reporter import Reporter
from leadsman_operator.seats import Shares, Sitter
from leadsman_operator.settings import OperatorSettings
from leadsman_operator.shared_fleets import SharedFleets
from leadsman_operator.table import Table
from leadsman_operator.watching import Watching

ENGINE_TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
_LAST_WORDS: Final[Seconds] = 2.0
"""How long an operator that ends waits for the API server to keep what was learned."""

_RETAIN_EVERY: Final = 4
"""Turns of reporting between two looks for workers that are nobody's."""


async def reconcile(fleets: Fleets, watching: Watching, gather: Seconds) -> None:
    """Make the fleets fit the world whenever it changes, for ever."""
    while True:
        await watching.changed.wait()
        await asyncio.sleep(gather)
        watching.changed.clear()
        await fleets.become(watching.world())


def book_of(api: Api, settings: OperatorSettings) -> LessonBook | None:
    """Give where lessons are kept; None where they are not."""
    return None if settings.lessons is None else LessonBook(api=api, place=settings.lessons)


async def keep(
    book: LessonBook, fleets: Fleets, may_write: Callable[[], bool], every: Seconds
) -> None:
    """Keep what is learned from time to time, and once more in the end.

    Whoever comes to write goes on from what others kept.
    """
    is_unsaved = has_written = False

    async def save() -> None:
        nonlocal is_unsaved, has_written
        if may_write() and not has_written:
            fleets.lessons = await book.load()
        has_written = may_write()
        is_unsaved |= fleets.learn()
        if is_unsaved and has_written and await book.save(fleets.lessons):
            is_unsaved = False

    try:
        while True:
            await asyncio.sleep(every)
            await save()
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                await save()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """One replica. open_log: gives a pool's log, which all of them write."""

    api: Api
    settings: OperatorSettings
    watching: Watching
    open_log: Callable[[str], SharedOutlet]
    clock: Callable[[], Seconds]

    async def run(self) -> None:
        """Collect from this replica's share, and write while it leads, until cancelled."""
        await self.watching.synced()
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(aiohttp.ClientSession(timeout=ENGINE_TIMEOUT))
            book = book_of(self.api, self.settings)
            timing = self.settings.timing
            fleets = SharedFleets(
                http=http,
                secret=self.settings.secret,
                clock=self.clock,
                timing=timing.collect,
                lessons=await book.load() if book else Lessons(),
                open_log=self.open_log,
            )
            stack.push_async_callback(fleets.stop)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._sit(fleets), name="seat")
                tasks.create_task(reconcile(fleets, self.watching, timing.gather), name="reconcile")
                tasks.create_task(self._report(fleets), name="report")
                if book is not None:
                    kept = keep(book, fleets, lambda: fleets.leads, timing.learn)
                    tasks.create_task(kept, name="lessons")

    async def _sit(self, fleets: SharedFleets) -> None:
        async def make_way(shares: Shares) -> None:
            await fleets.make_way(shares)
            self.watching.changed.set()

        lease = self.settings.lease
        if lease is None:
            await make_way(Shares(mine=0))
            return
        sitter = Sitter(name=self.settings.name, timing=self.settings.timing.lease)
        await Table(api=self.api, lease=lease, sitter=sitter).run(make_way)

    async def _report(self, fleets: SharedFleets) -> None:
        reporter = Reporter(api=self.api, instance=self.settings.name)
        for turn in itertools.count(1):
            await asyncio.sleep(self.settings.timing.status)
            await fleets.tell()
            if fleets.leads:
                views = await fleets.read_stores(await fleets.whole_views())
                await reporter.tell(self.watching.world(), views)
                if turn % _RETAIN_EVERY == 0:
                    await fleets.retain()
