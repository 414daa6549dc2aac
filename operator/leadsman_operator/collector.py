"""Collects from one endpoint, for as long as it is in the fleet: settings, cache, load, readiness.

An engine process has lives. Within one, its settings stand, its event stream continues and its
cache persists; a new one begins when the metrics show a new process (an idle engine that lost its
cache sends no event) or other settings. At the start of each life the workers are said anew, what
their caches held is cleared, and the streams are followed from their beginning.

An engine that cannot be reached, sleeps, or says it is unhealthy is not ready, and stays a worker.
While an engine is idle it is asked less often: KV events tell when it is not. Idle engines are
asked together, since most of what waking costs is waking alone; busy ones are spread over the turn
as chance has it, since whoever waits for many pages waits long.

Source: vLLM 0.33 entrypoints/serve/instrumentator/health.py; distributed/kv_events.py.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import aiohttp
from leadsman.records import KvEvents, LoadSample, Trust, TrustChanged, WorkerSeen
from leadsman.units import Seconds, Tokens, WorkerId
from leadsman_engines.block_names import BlockNames
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.discovery import (
    DiscoveredEngine,
    DiscoveredRank,
    UnknownSettingError,
    discover,
)
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.kv_drain import KvDrain
from leadsman_engines.kv_follower import KvSource
from leadsman_engines.kv_stream import KvStream
from leadsman_engines.load_stream import LoadStream
from leadsman_engines.metrics import EngineMetrics

from leadsman_operator.endpoint import Endpoint, Surroundings
from leadsman_operator.roster import Roster
from leadsman_operator.succession import Succession

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Hear: TypeAlias = Callable[[KvEvents | TrustChanged], None]

_TOGETHER = 8
"""Moments of an idle turn at which collectors wake: most of what waking costs is waking alone."""
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)
_NOT_UNDERSTOOD = (UnknownSettingError, EngineProtocolError, *_NO_ANSWER)


class Collector:
    """One endpoint's collector; run it as a task, and `leave` when the endpoint is removed.

    problem: why the engine is not followed now; None while it is, or before it was asked.
    """

    def __init__(self, endpoint: Endpoint, around: Surroundings) -> None:
        self._past = dict(around.before(endpoint.address)) if around.before else {}
        told = {worker: past.seen for worker, past in self._past.items()}
        self.roster = Roster(around.publish, around.clock, told)
        self.problem: str | None = None
        self._endpoint = endpoint
        self._address = endpoint.address
        self._around = around
        self._timing = around.timing
        self._stir = asyncio.Event()
        self._phase = random.random()

    async def run(self) -> None:
        """Collect until cancelled, one life of the engine after another."""
        while True:
            engine, address = await self._discover()
            self.problem = None
            if not engine.is_known:
                fields = {"endpoint": self._endpoint.url, "version": engine.version}
                log.warning("engine is newer than any known: rules of the newest", extra=fields)
            self.roster.call(
                {
                    self._worker(rank): self._seen(rank, address, engine.metrics)
                    for rank in engine.ranks
                }
            )
            streams = [asyncio.create_task(self._follow(rank)) for rank in engine.ranks]
            streams += [asyncio.create_task(self._hear_load(rank)) for rank in engine.ranks]
            try:
                await self._poll(engine)
            finally:
                for stream in streams:
                    stream.cancel()
                await asyncio.gather(*streams, return_exceptions=True)
            log.info("engine starts a new life", extra={"endpoint": self._endpoint.url})

    def leave(self) -> None:
        """Say that the endpoint's workers are gone."""
        self.roster.leave()

    # -- settings ------------------------------------------------------------------------------

    async def _discover(self) -> tuple[DiscoveredEngine, str]:
        """Ask for the settings until they are known; gives the engine and its `ip:port`."""
        pause = 0.25
        while True:
            try:
                return await self._ask(), await self._endpoint.resolve()
            except _NOT_UNDERSTOOD as error:
                self.roster.be_ready(ready=False)
                self.problem = str(error) or repr(error)
                fields = {"endpoint": self._endpoint.url, "error": self.problem}
                log.warning("engine not understood", extra=fields)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, self._timing.retry)

    async def _ask(self) -> DiscoveredEngine:
        return await discover(self._around.http, self._endpoint.url, self._endpoint.profile)

    def _worker(self, rank: DiscoveredRank) -> WorkerId:
        address = self._address
        return WorkerId(address if rank.dp_rank is None else f"{address}#{rank.dp_rank}")

    def _seen(self, rank: DiscoveredRank, address: str, page: EngineMetrics) -> WorkerSeen:
        return WorkerSeen(
            worker=self._worker(rank),
            endpoint=address,
            settings=rank.settings,
            ready=page.is_awake,
            dp_rank=rank.dp_rank,
        )

    # -- cache ---------------------------------------------------------------------------------

    async def _follow(self, rank: DiscoveredRank) -> None:
        """Follow one rank's KV events; a stream that breaks is begun anew."""
        worker = self._worker(rank)
        if rank.events is None:
            self.roster.trust(worker, Trust.BLIND, "engine publishes no KV events")
            return
        source = KvSource(
            worker=worker,
            events=rank.events.events,
            replay=rank.events.replay,
            topic=rank.events.topic,
        )
        before = self._held_before(worker)
        while True:
            blocks = EngineBlocks(
                secret=self._around.secret,
                model=rank.settings.model,
                block_size=rank.settings.block_size,
                names=self._names(rank.settings.model),
            )
            say: Hear = self._around.publish
            if before is not None:
                seen = self.roster.workers[worker]
                say, before = Succession(seen, before, blocks, self._around.publish).hear, None
            try:
                await self._events(source, blocks, self._hearing(say), rank.settings.block_size)
            except Exception:
                log.exception("KV event stream broke", extra={"worker": worker})
            self.roster.clear(worker, "KV event stream broke")
            await asyncio.sleep(self._timing.retry)

    def _names(self, model: str) -> BlockNames | None:
        """Give where names of the engine's blocks are remembered; None where nobody reads them."""
        return self._around.names[model] if self._endpoint.keeps_names else None

    async def _events(
        self, source: KvSource, blocks: EngineBlocks, hear: Hear, size: Tokens
    ) -> None:
        """Follow events that are published, or drain a page of them."""
        clock = self._around.clock
        if source.events.startswith(("http://", "https://")):
            await KvDrain(source, blocks, hear, clock, block_size=size).run(self._around.http)
        else:
            await KvStream(source, blocks, hear, clock).run()

    def _held_before(self, worker: WorkerId) -> KvEvents | None:
        """Give what the log knows of a cache when this begins; None: the log begins here too."""
        if self._around.before is None:
            return None
        past = self._past.pop(worker, None)
        return past.held if past else self.roster.nothing(worker)

    def _hearing(self, say: Hear) -> Hear:
        def hear(record: KvEvents | TrustChanged) -> None:
            self._stir.set()
            say(record)

        return hear

    # -- load and readiness --------------------------------------------------------------------

    async def _hear_load(self, rank: DiscoveredRank) -> None:
        """Follow what a rank pushes of its load, if it does; it is asked for as well."""
        if rank.load is None:
            return
        source = (rank.load.endpoint, rank.load.topic)
        await LoadStream(self._worker(rank), source, self._tell_pushed, self._around.clock).run()

    def _tell_pushed(self, sample: LoadSample) -> None:
        if sample.running + sample.waiting > 0:
            self._stir.set()
        self.roster.load(sample)

    async def _poll(self, engine: DiscoveredEngine) -> None:
        """Ask for the load again and again; return when the engine's life is over."""
        before = engine.metrics
        healthy_at = checked_at = self._around.clock()
        while True:
            asked_at = self._around.clock()
            page = await self._answer(self._load_page(engine))
            if page is None:
                self.problem = f"no answer from {engine.load_page}"
                self.roster.be_ready(ready=False)
                healthy_at = asked_at - self._timing.health
                await asyncio.sleep(self._timing.poll)
                continue
            if page.is_of_another_life_than(before):
                return
            if before.is_awake and not page.is_awake:
                for rank in engine.ranks:
                    self.roster.empty(self._worker(rank))
            before = page
            is_busy = self._tell_load(engine, page, asked_at)
            if asked_at - healthy_at >= self._timing.health or not page.is_awake:
                healthy_at = asked_at
                self.problem = await self._complaint(page)
                self.roster.be_ready(ready=self.problem is None)
            if asked_at - checked_at >= self._timing.recheck:
                checked_at = asked_at
                if await self._has_changed(engine):
                    return
            await self._rest(asked_at, is_busy=is_busy)

    async def _rest(self, asked_at: Seconds, *, is_busy: bool) -> None:
        """Wait for the next turn: soon while the engine works, or as soon as it does again."""
        if not is_busy:
            self._stir.clear()
            idle = self._timing.idle_poll
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(idle - self._around.clock() % (idle / _TOGETHER)):
                    await self._stir.wait()
        due = busy_turn(asked_at, self._timing.poll, self._phase)
        await asyncio.sleep(due - self._around.clock())

    def _tell_load(self, engine: DiscoveredEngine, page: EngineMetrics, at: Seconds) -> bool:
        """Say each rank's load; True while there is work."""
        is_busy = False
        for rank in engine.ranks:
            sample = page.load(rank.index, self._worker(rank), at)
            if sample is not None:
                self.roster.load(sample)
                is_busy |= sample.running + sample.waiting > 0
        return is_busy

    async def _load_page(self, engine: DiscoveredEngine) -> EngineMetrics:
        async with self._around.http.get(self._base + engine.load_page) as response:
            response.raise_for_status()
            return engine.read(await response.read())

    async def _complaint(self, page: EngineMetrics) -> str | None:
        if not page.is_awake:
            return "the engine sleeps"
        is_healthy = await self._answer(self._health())
        return None if is_healthy else "/health does not say that the engine is well"

    async def _health(self) -> bool:
        async with self._around.http.get(f"{self._base}/health") as response:
            return response.status == 200

    @property
    def _base(self) -> str:
        return self._endpoint.url.rstrip("/")

    async def _has_changed(self, engine: DiscoveredEngine) -> bool:
        try:
            now = await self._ask()
        except _NOT_UNDERSTOOD:
            return False
        started = now.metrics.started_at
        return now.ranks != engine.ranks or started != engine.metrics.started_at

    async def _answer(self, asked: Awaitable[Answer]) -> Answer | None:
        try:
            return await asked
        except (ValueError, *_NO_ANSWER) as error:
            fields = {"endpoint": self._endpoint.url, "error": str(error) or repr(error)}
            log.debug("engine did not answer", extra=fields)
            return None


def busy_turn(asked_at: Seconds, poll: Seconds, phase: float) -> Seconds:
    """Give when a busy engine is asked next: at a phase of the turn, after half a turn or more.

    phase: which part of each turn is over then, in [0, 1).
    """
    soonest = asked_at + poll / 2
    return soonest + (phase * poll - soonest) % poll
