"""Two operators at one real Redis: what one passes on the other takes up, and nobody leaves."""

import asyncio
import contextlib
import time

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from kube.redis_server import RedisServer, needs_redis
from leadsman.records import KvEvents, WorkerGone, WorkerSeen, is_store
from leadsman_fleet.redis_ends import RedisReplica, RedisTiming
from leadsman_fleet.redis_log import Names, RedisLog, connected
from leadsman_fleet.state import FleetState
from leadsman_operator.objects import Key
from leadsman_operator.redis_outlet import RedisOutlet
from leadsman_operator.seats import Shares
from leadsman_operator.shared_fleets import SharedFleets

from ..engines.coordinator import GOLDEN, Coordinator  # noqa: TID252  # tests are no package
from ..engines.mooncake import PROMPTS, SIZE, Master, objects, publishing  # noqa: TID252
from .objects import budget, pod, pool, profile, world
from .test_collector import PATIENCE, QUICK, ScriptedEngine

pytestmark = needs_redis
CHAT = Key("serving", "chat")
STATED = {"maxNumBatchedTokens": 2048, "maxNumSeqs": 16}
PROFILE = profile("p", settings=STATED)
TIMING = RedisTiming(linger=0.0, patience=0.05, lease=0.5)
FIRST, SECOND, NEITHER = Shares(mine=0), Shares(mine=1), Shares()


class Stage:
    """Two operators, one engine, and what a picker hears."""

    def __init__(self, stack, redis, engine, http, port):
        self.stack, self.redis, self.engine, self.http = stack, redis, engine, http
        self.shared = None
        self.port, self.state, self.gone, self.readiness = port, FleetState(), [], {}
        self.one, self.two = self._fleets(), self._fleets()
        self.end = RedisReplica(self._log(str(CHAT)), "me", self._hear, timing=TIMING)

    def _log(self, pool):
        log = RedisLog(redis=connected(self.redis.url), names=Names(pool=pool))
        self.stack.push_async_callback(log.close)
        return log

    def _fleets(self):
        fleets = SharedFleets(
            http=self.http,
            secret=b"",
            clock=time.monotonic,
            timing=QUICK,
            open_log=lambda pool: RedisOutlet(self._log(pool), timing=TIMING),
        )
        self.stack.push_async_callback(fleets.stop)
        return fleets

    def _hear(self, record):
        self.state.apply(record)
        if isinstance(record, WorkerSeen):
            self.readiness[record.worker] = record.ready
        if isinstance(record, WorkerGone):
            self.gone.append(record.worker)
            del self.readiness[record.worker]

    def world(self, *pods, budgets=()):
        there = [pool(ports=(self.port,))]
        stated = profile("p", settings=STATED, sharedStore=self.shared) if self.shared else PROFILE
        return world(pools=there, pods=pods, budgets=budgets, profiles=[stated])

    async def until(self, is_so):
        async with asyncio.timeout(PATIENCE):
            while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
                await asyncio.sleep(0.01)


@pytest.fixture
async def stage(tmp_path):
    redis = RedisServer(tmp_path)
    redis.start()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(redis.stop)
        engine = ScriptedEngine()
        server = await stack.enter_async_context(TestServer(engine.app()))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        stage = Stage(stack, redis, engine, http, server.port)
        following = asyncio.create_task(stage.end.run())
        yield stage
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def troubles(views):
    return [one for view in views.values() for one in view.troubles()]


def found(fleets):
    return [worker.worker for view in fleets.views().values() for worker in view.workers()]


async def test_what_one_passes_on_the_other_takes_up_and_nobody_leaves(stage):
    there = stage.world(pod("a", "127.0.0.1"), budgets=[budget("b")])
    await stage.one.make_way(FIRST)
    for fleets in (stage.one, stage.two):
        await fleets.become(there)
    await stage.until(lambda: stage.readiness)
    worker = f"127.0.0.1:{stage.port}"
    assert found(stage.one) == [worker]
    assert found(stage.two) == []

    await stage.one.make_way(NEITHER)
    assert found(stage.one) == []
    await stage.two.make_way(SECOND)
    await stage.two.become(there)
    stage.engine.is_healthy = False
    await stage.until(lambda: stage.readiness == {worker: False})

    assert found(stage.two) == [worker]
    assert stage.gone == []
    assert [one.budget.name for one in stage.end.declared.budgets] == ["b"]


async def test_while_redis_is_away_the_seat_is_left_in_no_more_time_for_many_pools(stage):
    names = [f"pool-{number}" for number in range(5)]
    there = world(
        pools=[pool(name, ports=(stage.port,)) for name in names],
        pods=[pod("a", "127.0.0.1")],
        profiles=[PROFILE],
    )
    await stage.one.make_way(FIRST)
    await stage.one.become(there)
    await stage.until(lambda: len(found(stage.one)) == len(names))
    waits = []

    async def let_go(_):
        waits.append(sum(len(one) for one in stage.one._collectors.values()))
        await asyncio.sleep(0)

    for log in stage.one._logs.values():
        log.let_go = let_go
    with stage.redis.away():
        await stage.one.make_way(NEITHER)

    assert waits == [0] * len(names)


async def test_an_engine_that_cannot_be_asked_when_it_is_taken_up_is_not_ready(stage):
    there = stage.world(pod("a", "127.0.0.1"))
    await stage.one.make_way(FIRST)
    await stage.one.become(there)
    worker = f"127.0.0.1:{stage.port}"
    await stage.until(lambda: stage.readiness == {worker: True})

    await stage.one.make_way(NEITHER)
    stage.engine.is_reachable = False
    await stage.two.make_way(SECOND)
    await stage.two.become(there)

    await stage.until(lambda: stage.readiness == {worker: False})
    assert stage.gone == []


async def test_a_pod_that_goes_when_it_is_taken_up_is_gone(stage):
    await stage.one.make_way(FIRST)
    await stage.one.become(stage.world(pod("a", "127.0.0.1")))
    await stage.until(lambda: stage.readiness)
    await stage.one.make_way(NEITHER)
    await stage.two.make_way(SECOND)
    await stage.two.become(stage.world(pod("a", "127.0.0.1")))

    await stage.two.become(stage.world())

    await stage.until(lambda: stage.gone)
    assert stage.readiness == {}


async def test_a_worker_that_left_while_nobody_looked_is_said_gone_by_the_leader(stage):
    await stage.one.make_way(FIRST)
    await stage.one.become(stage.world(pod("a", "127.0.0.1")))
    await stage.until(lambda: stage.readiness)
    await stage.one.make_way(NEITHER)

    await stage.two.make_way(SECOND)
    await stage.two.become(stage.world())
    async with asyncio.timeout(PATIENCE):
        while not stage.gone:
            await stage.two.retain()
            await asyncio.sleep(0.05)

    assert stage.readiness == {}


async def test_a_worker_that_another_collects_from_is_not_said_gone(stage):
    await stage.one.make_way(FIRST)
    await stage.one.become(stage.world(pod("a", "127.0.0.1")))
    await stage.until(lambda: stage.readiness)
    await stage.one.tell()
    [outlet] = stage.one._logs.values()
    await outlet.lead(leads=False)
    await stage.two.make_way(SECOND)
    await stage.two.become(stage.world())
    [outlet] = stage.two._logs.values()
    await stage.until(outlet._keeper.workers)

    for _ in range(3):
        await stage.two.retain()
    await asyncio.sleep(0.2)

    assert stage.gone == []


async def test_the_leader_knows_what_the_others_found(stage):
    stage.engine.is_reachable = False
    there = stage.world(pod("a", "127.0.0.1"))
    await stage.one.make_way(FIRST)
    await stage.one.become(there)
    await stage.until(lambda: troubles(stage.one.views()))
    await stage.one.tell()
    await stage.two.become(there)

    [trouble] = troubles(await stage.two.whole_views())

    assert trouble.pod.metadata.name == "a"
    assert trouble.problem == troubles(stage.one.views())[0].problem


async def test_who_leads_reads_what_engines_share_and_its_heir_tells_it_once_more(stage):
    coordinator = Coordinator(GOLDEN["stored"])
    server = await stage.stack.enter_async_context(TestServer(coordinator.app()))
    stage.shared = {"lmcache": str(server.make_url("/")), "storedAs": "org/m"}
    stage.engine.block_size = 4
    there = stage.world(pod("a", "127.0.0.1"))

    async def lead(fleets, shares):
        await fleets.make_way(shares)
        await fleets.become(there)
        await stage.until(lambda: found(fleets))
        await fleets.read_stores(await fleets.whole_views())
        [stores] = fleets._stores.values()
        await stage.until(stores.problems)
        return stores

    first = await lead(stage.one, FIRST)
    await stage.until(lambda: store_of(stage.state))
    before = store_of(stage.state)
    coordinator.told = GOLDEN["deleted"]
    await stage.one.make_way(NEITHER)
    await stage.one.read_stores(await stage.one.whole_views())
    await lead(stage.two, SECOND)
    await stage.until(lambda: store_of(stage.state) != before)

    assert first.all == set()
    assert (len(before), len(store_of(stage.state))) == (14, 12)


async def test_who_reads_a_mooncake_knows_blocks_that_only_others_were_told_of(stage):
    told = PROMPTS[0]
    server = await stage.stack.enter_async_context(TestServer(Master(objects(told)).app()))
    stage.shared = {"mooncake": str(server.make_url("/")), "storedAs": "llama-8b"}
    stage.engine.block_size = SIZE
    await stage.one.make_way(FIRST)
    with publishing(stage.engine, told):
        await stage.one.become(stage.world(pod("a", "127.0.0.1")))
        await stage.until(lambda: len(stage.one._shared_names[CHAT]["m"]) == 6)
    await stage.one.tell()
    stage.engine.is_reachable = False

    await stage.two.become(stage.world(pod("a", "127.0.0.1")))
    stage.two.shares = SECOND
    await stage.two._logs[CHAT].lead(leads=True)
    await stage.two.read_stores(await stage.two.whole_views())
    await stage.until(lambda: store_of(stage.state))

    assert len(set(store_of(stage.state))) == 6


def store_of(state):
    """List the blocks that a picker was told of a store, each as often as it was stored."""
    told = [one for one in state.snapshot() if isinstance(one, KvEvents) and is_store(one.worker)]
    return [key for one in told for event in one.events[1:] for key in event.keys.tolist()]


async def test_a_new_pod_at_an_old_address_inherits_nothing(stage):
    await stage.one.make_way(FIRST)
    await stage.one.become(stage.world(pod("a", "127.0.0.1", uid="1")))
    await stage.until(lambda: stage.readiness)

    await stage.one.become(stage.world(pod("a", "127.0.0.1", uid="2")))

    await stage.until(lambda: stage.gone and stage.readiness)
    assert len(stage.gone) == 1
