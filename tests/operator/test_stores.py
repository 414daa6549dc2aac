"""What a profile says that its pods share, read by an operator."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from leadsman.records import StoreSeen, WorkerSeen
from leadsman_engines.profile import SharedStore
from leadsman_engines.store_reader import StoreReader
from leadsman_fleet.state import FleetState
from leadsman_operator import stores
from leadsman_operator.fleets import Fleets
from leadsman_operator.objects import Key
from leadsman_operator.status import profile_status

from ..engines.coordinator import GOLDEN, Coordinator  # noqa: TID252  # tests are no package
from ..engines.mooncake import PROMPTS, SIZE, Master, objects, publishing  # noqa: TID252
from .objects import pod, pool, profile, world
from .test_collector import PATIENCE, QUICK, ScriptedEngine

CHAT = Key("serving", "chat")
NOW = "2026-01-01T00:00:00Z"


class Stage:
    """An engine, a coordinator, and operators that come one after another."""

    def __init__(self, stack, http, engine, coordinator):
        self.stack, self.http, self.port = stack, http, engine.port
        self.url = str(coordinator.make_url("/")).rstrip("/")
        self.shared = {"lmcache": self.url, "storedAs": "org/m"}
        self.fleets = self.operator()

    def operator(self, past=None):
        fleets = Fleets(
            http=self.http,
            secret=b"",
            clock=time.monotonic,
            timing=QUICK,
            past={} if past is None else {CHAT: past},
        )
        self.stack.push_async_callback(fleets.stop)
        return fleets

    def world(self, *, shares=True, pods=("a",)):
        shared = {"sharedStore": self.shared} if shares else {}
        settings = {"maxNumBatchedTokens": 2048, "maxNumSeqs": 16}
        return world(
            pools=[pool(ports=(self.port,))],
            pods=[pod(name, "127.0.0.1") for name in pods],
            profiles=[profile("p", settings=settings, **shared)],
        )

    @property
    def state(self):
        return self.fleets.states().get(CHAT, FleetState())

    def records(self, kind):
        return [one for one in self.state.snapshot() if isinstance(one, kind)]

    async def condition(self, there):
        """Say what the profile's status says of the store, once something is found of it."""
        views = await self.fleets.read_stores(self.fleets.views())
        [one] = there.profiles.values()
        told = profile_status(one, views, NOW).conditions
        return next((each for each in told if each.type == "StoreReadable"), None)

    async def until(self, is_so):
        async with asyncio.timeout(PATIENCE):
            while not (found := is_so()):  # noqa: ASYNC110  # it tells nobody when it is
                await asyncio.sleep(0.01)
        return found

    async def read(self, there):
        """Follow a world until the store was asked; gives the condition."""
        await self.fleets.become(there)
        await self.until(lambda: self.records(WorkerSeen))
        await self.condition(there)
        await self.until(lambda: self.records(StoreSeen))
        return await self.condition(there)


@pytest.fixture
async def coordinator():
    return Coordinator(GOLDEN["stored"])


@pytest.fixture
async def stage(coordinator):
    engine = ScriptedEngine()
    engine.block_size = 4
    async with AsyncExitStack() as stack:
        servers = [TestServer(engine.app()), TestServer(coordinator.app())]
        servers = [await stack.enter_async_context(one) for one in servers]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        yield Stage(stack, http, *servers)


async def test_what_the_pods_of_a_profile_share_is_told_to_pickers_and_its_status_says_so(stage):
    condition = await stage.read(stage.world())

    [seen] = stage.records(StoreSeen)
    assert seen.worker == SharedStore(lmcache=stage.url, model="m", block_size=4).worker
    assert (seen.chunks, seen.problem) == (7, None)
    assert (condition.status, condition.reason) == ("True", "Readable")


async def test_a_coordinator_that_does_not_answer_is_named_in_the_status(stage, coordinator):
    coordinator.status = 503

    condition = await stage.read(stage.world())

    assert (condition.status, condition.reason) == ("False", "DirectoryUnreadable")
    assert stage.url in condition.message
    assert "503" in condition.message


async def test_what_pods_keep_in_a_mooncake_is_known_by_what_their_events_named(monkeypatch):
    monkeypatch.setattr(StoreReader.run, "__defaults__", (0.05,))
    engine, told = ScriptedEngine(), PROMPTS[0]
    engine.block_size = SIZE
    async with AsyncExitStack() as stack:
        servers = [TestServer(engine.app()), TestServer(Master(objects(told)).app())]
        servers = [await stack.enter_async_context(one) for one in servers]
        http = await stack.enter_async_context(aiohttp.ClientSession())
        stack.enter_context(publishing(engine, told))
        stage = Stage(stack, http, *servers)
        stage.shared = {"mooncake": stage.url, "storedAs": "llama-8b"}

        condition = await stage.read(stage.world())
        await stage.until(lambda: stage.records(StoreSeen)[0].chunks)

        [seen] = stage.records(StoreSeen)
    assert (condition.status, condition.reason) == ("True", "Readable")
    assert (seen.chunks, seen.unused) == (6, {"unnamed": 0, "partial": 0})


async def test_before_an_engine_was_found_nothing_is_asked(stage):
    there = stage.world(pods=())
    await stage.fleets.become(there)

    condition = await stage.condition(there)

    assert condition.reason == "Pending"
    assert stage.state.stores() == []


async def test_a_profile_that_names_no_store_says_nothing_of_one(stage):
    there = stage.world(shares=False)
    await stage.fleets.become(there)
    await stage.until(lambda: stage.records(WorkerSeen))

    assert await stage.condition(there) is None


@pytest.mark.parametrize("left", ["no store", "no pods", "no pool"])
async def test_a_store_that_nobody_shares_any_more_is_gone(stage, left):
    await stage.read(stage.world())
    there = {
        "no store": stage.world(shares=False),
        "no pods": stage.world(pods=()),
        "no pool": world(),
    }[left]

    await stage.fleets.become(there)
    await stage.fleets.read_stores(stage.fleets.views())

    assert stage.fleets.pools.of(str(CHAT)).stores() == []


async def test_the_operator_after_it_goes_on_with_what_was_known(stage, coordinator):
    await stage.read(stage.world())
    past = stage.state
    before = past.snapshot()[-1]
    await stage.fleets.stop()
    coordinator.status = 503
    stage.fleets = stage.operator(past)
    away = await stage.read(stage.world())
    kept = stage.state.snapshot()[-1]
    coordinator.status = 200
    await stage.fleets.stop()
    stage.fleets = stage.operator(stage.state)

    back = await stage.read(stage.world())
    await stage.until(lambda: not stage.records(StoreSeen)[0].problem)
    after = stage.state.snapshot()[-1]

    assert (away.status, kept.events[1].keys.tolist()) == ("False", before.events[1].keys.tolist())
    assert back is not None
    assert sorted(after.events[1].keys.tolist()) == sorted(before.events[1].keys.tolist())
    assert len(after.events) == len(before.events) == 2


async def test_a_store_that_was_known_and_is_meant_by_nobody_is_gone(stage):
    await stage.read(stage.world())
    past = stage.state
    await stage.fleets.stop()
    stage.fleets = stage.operator(past)

    there = stage.world(shares=False)
    await stage.fleets.become(there)
    before = stage.state.stores()
    await stage.until(stage.fleets.is_settled)
    await stage.fleets.read_stores(stage.fleets.views())

    assert len(before) == 1
    assert stage.state.stores() == []


async def test_without_the_extra_the_status_says_what_is_missing(stage, monkeypatch):
    monkeypatch.setattr(stores, "find_spec", lambda _: None)
    there = stage.world()
    await stage.fleets.become(there)
    await stage.until(lambda: stage.records(WorkerSeen))

    condition = await stage.condition(there)

    assert "leadsman[lmcache]" in condition.message
    assert replace(stage.fleets.views()[CHAT]).stores == {}
