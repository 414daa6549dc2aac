"""The operator's live page: every pool, as a picker that decides nothing hears of it.

So each replica of the operator can show it, whoever leads. It costs what such a picker would: the
index of the pool's caches once more, and the mirrors of its workers.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leadsman.fleet import Fleet
from leadsman.records import Record
from leadsman.units import Seconds
from leadsman_fleet.page import server as page
from leadsman_fleet.page.history import History
from leadsman_fleet.page.overheard import Overheard

from leadsman_cli.picker import end_of

LOOK_EVERY: Final[Seconds] = 1.0


@dataclass(frozen=True, slots=True)
class _Followed:
    site: page.Site
    task: asyncio.Task[None]


class Overview:
    """Follows the pools that there are. address: of the stream, or the URL of a Redis."""

    def __init__(self, address: str, pools: Callable[[], Collection[str]]) -> None:
        self._address = address
        self._pools = pools
        self._followed: dict[str, _Followed] = {}

    def sites(self) -> Mapping[str, page.Site]:
        """Give what is shown of each pool."""
        return {name: one.site for name, one in self._followed.items()}

    async def run(self) -> None:
        """Follow whatever pools there are, until cancelled."""
        try:
            while True:
                wanted = set(self._pools())
                await self._leave(self._followed.keys() - wanted)
                for name in sorted(wanted - self._followed.keys()):
                    self._followed[name] = self._follow(name)
                await asyncio.sleep(LOOK_EVERY)
        finally:
            await self._leave(list(self._followed))

    def _follow(self, name: str) -> _Followed:
        fleet, history = Fleet(), History()
        overheard = Overheard(history, lambda: time.time() - time.monotonic())

        def hear(record: Record) -> None:
            fleet.apply(record, time.monotonic())
            overheard.take(record)

        client = end_of(self._address, name, hear, hands_back=False)
        site = page.Site(fleet=fleet, clock=time.monotonic, history=history)
        return _Followed(site, asyncio.create_task(client.run(), name=f"page follows {name}"))

    async def _leave(self, names: Collection[str]) -> None:
        gone = [self._followed.pop(name).task for name in list(names)]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)


async def show(stack: AsyncExitStack, overview: Overview, address: str, token: Path | None) -> int:
    """Serve the page until the stack ends; gives its port. Raises OSError."""
    port = await stack.enter_async_context(page.serving(page.Page(overview.sites, token), address))
    following = asyncio.create_task(overview.run(), name="page")

    async def end() -> None:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    stack.push_async_callback(end)
    return port
