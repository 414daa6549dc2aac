"""The operator: watches the cluster, follows its engines, serves the fleet stream, says how it is.

Every replica watches, so that whoever comes to lead knows the cluster already. By gRPC only the
leader collects, serves and writes: its port is open until another leads, so a picker that is given
the addresses of all replicas finds it by trying. It opens only once the engines have been asked: a
picker that is told less than it knew would refuse what it could still serve.

Where the log is elsewhere (`open_log`) each replica collects from its share, and nobody listens;
one of them writes statuses (docs/adr/0024-operators-share-by-seats.md).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from leadsman.units import Seconds
from leadsman_fleet.recall import Recall
from leadsman_fleet.server import listen
from leadsman_fleet.state import FleetState

from leadsman_operator.fleets import Fleets
from leadsman_operator.kube import Api
from leadsman_operator.lease import Candidate, Election
from leadsman_operator.lessons import Lessons
from leadsman_operator.objects import Key
from leadsman_operator.outlets import SharedOutlet
from leadsman_operator.reporter import Reporter
from leadsman_operator.settings import OperatorSettings
from leadsman_operator.sharing import ENGINE_TIMEOUT, Sharing, book_of, keep, reconcile
from leadsman_operator.standby import Standby
from leadsman_operator.watching import Watching

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Operator:
    """One replica. on_listen: told the port of the fleet stream whenever it opens.

    open_log: gives the log of a pool that several replicas write; None: the leader has it.
    """

    api: Api
    settings: OperatorSettings
    open_log: Callable[[str], SharedOutlet] | None = None
    on_listen: Callable[[int], None] = lambda _port: None
    clock: Callable[[], Seconds] = time.monotonic
    watching: Watching = field(init=False)
    _standby: Standby = field(init=False)
    _leads: bool = False
    _may_write: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        self._standby = Standby(peers=self.settings.peers or "", name=self.settings.name)
        self.watching = Watching(
            api=self.api,
            namespaces=self.settings.namespaces,
            timing=self.settings.timing.watch,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        async with AsyncExitStack() as stack:
            if self.settings.health is not None:
                await stack.enter_async_context(self._health(self.settings.health))
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.watching.run(), name="watching")
                if self.open_log is None:
                    tasks.create_task(self._stand(), name="election")
                    tasks.create_task(self._follow(), name="standby")
                else:
                    tasks.create_task(self._sharing(self.open_log).run(), name="sharing")

    def _sharing(self, open_log: Callable[[str], SharedOutlet]) -> Sharing:
        return Sharing(
            api=self.api,
            settings=self.settings,
            watching=self.watching,
            open_log=open_log,
            clock=self.clock,
        )

    async def _stand(self) -> None:
        if self.settings.lease is None:
            await self._lead()
            return
        candidate = Candidate(name=self.settings.name, timing=self.settings.timing.lease)
        election = Election(
            api=self.api, lease=self.settings.lease, candidate=candidate, clock=self.clock
        )
        self._may_write = election.leads
        await election.run(self._lead)

    async def _follow(self) -> None:
        """Hear what the leader says, whenever that is another."""
        while self.settings.peers is not None:
            if not self._leads:
                self._standby.follow(self.watching.world().pools)
            await asyncio.sleep(self.settings.timing.status)

    def _lead_no_more(self) -> None:
        self._leads = False

    async def _lead(self) -> None:
        """Collect and serve, and write while the Lease is held, until cancelled."""
        await self.watching.synced()
        async with AsyncExitStack() as stack:
            self._leads = True
            stack.callback(self._lead_no_more)
            http = await stack.enter_async_context(aiohttp.ClientSession(timeout=ENGINE_TIMEOUT))
            book = book_of(self.api, self.settings)
            fleets = Fleets(
                http=http,
                secret=self.settings.secret,
                clock=self.clock,
                timing=self.settings.timing.collect,
                lessons=await book.load() if book else Lessons(),
                past=await self._standby.take() or await self._recalled(),
            )
            stack.push_async_callback(fleets.stop)
            stack.callback(lambda: self._standby.remember(fleets.states()))
            await fleets.become(self.watching.world())
            await self._settle(fleets)
            server, [port] = await listen(fleets.pools, self.settings.listen)
            stack.push_async_callback(server.stop, None)
            log.info("fleet stream open", extra={"port": port})
            self.on_listen(port)
            timing = self.settings.timing
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reconcile(fleets, self.watching, timing.gather), name="reconcile")
                tasks.create_task(self._report(fleets), name="report")
                if book is not None:
                    kept = keep(book, fleets, self._may_write, timing.learn)
                    tasks.create_task(kept, name="lessons")

    async def _recalled(self) -> dict[Key, FleetState]:
        """Ask pickers what they were told of the pools, for nobody else knows."""
        pools = {str(key): key for key in self.watching.world().pools}
        if not pools:
            return {}
        recall = Recall(pools, self.clock)
        server, _ = await listen(recall, self.settings.listen)
        try:
            found = await recall.gather(self.settings.timing.recall)
        finally:
            await server.stop(None)
        return {pools[name]: state for name, state in found.items()}

    async def _settle(self, fleets: Fleets) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.timing.settle):
                while not fleets.is_settled():  # noqa: ASYNC110  # it tells nobody when it is
                    await asyncio.sleep(0.02)

    async def _report(self, fleets: Fleets) -> None:
        reporter = Reporter(api=self.api, instance=self.settings.name)
        while True:
            await asyncio.sleep(self.settings.timing.status)
            views = await fleets.read_stores(fleets.views())
            if self._may_write():
                await reporter.tell(self.watching.world(), views)

    @asynccontextmanager
    async def _health(self, address: str) -> AsyncIterator[None]:
        async def alive(_: web.Request) -> web.Response:
            return _said(is_so=self.watching.is_alive(self.clock()))

        async def ready(_: web.Request) -> web.Response:
            return _said(is_so=self.watching.is_synced())

        app = web.Application()
        app.add_routes([web.get("/healthz", alive), web.get("/readyz", ready)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        host, _, port = address.rpartition(":")
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
            yield
        finally:
            with contextlib.suppress(Exception):
                await runner.cleanup()


def _said(*, is_so: bool) -> web.Response:
    return web.Response(status=200 if is_so else 503, text="yes" if is_so else "no")
