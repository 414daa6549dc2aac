import asyncio
import time

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from leadsman.curve import fingerprint
from leadsman.records import Learned, WorkerSeen
from leadsman_operator.fleets import Fleets
from leadsman_operator.objects import Key

from .objects import budget, pod, pool, profile, world
from .test_collector import PATIENCE, QUICK, ScriptedEngine

CHAT = Key("serving", "chat")
STATED = profile("p", settings={"maxNumBatchedTokens": 2048, "maxNumSeqs": 16})


class Stage:
    def __init__(self, fleets, port):
        self.fleets = fleets
        self.port = port

    def world(self, *pods, budgets=()):
        there = [pool(ports=(self.port,))]
        return world(pools=there, pods=pods, budgets=budgets, profiles=[STATED])

    def records(self, kind):
        log = self.fleets.pools.of(str(CHAT))._log
        return [record for record in log.snapshot() if isinstance(record, kind)]

    async def until(self, is_so):
        async with asyncio.timeout(PATIENCE):
            while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
                await asyncio.sleep(0.01)


@pytest.fixture
async def stage():
    async with TestServer(ScriptedEngine().app()) as server, aiohttp.ClientSession() as http:
        fleets = Fleets(http=http, secret=b"", clock=time.monotonic, timing=QUICK)
        yield Stage(fleets, server.port)
        await fleets.stop()


async def test_a_pod_is_a_worker_of_its_pools_log(stage):
    await stage.fleets.become(stage.world(pod("a", "127.0.0.1")))
    await stage.until(lambda: stage.records(WorkerSeen))

    [seen] = stage.records(WorkerSeen)
    view = stage.fleets.views()[CHAT]
    assert seen.endpoint == f"127.0.0.1:{stage.port}"
    assert [worker.worker for worker in view.workers()] == [seen.worker]
    assert stage.fleets.is_settled()


async def test_a_pool_that_is_gone_has_no_workers_and_no_budgets(stage):
    await stage.fleets.become(stage.world(pod("a", "127.0.0.1"), budgets=[budget("b")]))
    await stage.until(lambda: stage.records(WorkerSeen))

    await stage.fleets.become(world())

    assert stage.records(WorkerSeen) == []
    assert stage.fleets.pools.of(str(CHAT))._declared.budgets == ()
    assert stage.fleets.views() == {}


async def test_a_fleet_is_not_settled_before_its_engines_were_asked(stage):
    await stage.fleets.become(stage.world(pod("a", "127.0.0.1"), pod("b", "127.0.0.1")))
    before = stage.fleets.is_settled()

    await stage.until(stage.fleets.is_settled)

    assert not before
    assert len(stage.fleets.views()[CHAT].found) == 2


async def test_a_pod_that_is_not_ready_does_not_keep_a_fleet_from_being_settled(stage):
    await stage.fleets.become(stage.world(pod("a", "127.0.0.1", ready=False)))

    assert stage.fleets.is_settled()


async def test_a_worker_that_appears_is_taught_what_is_known_of_its_like(stage):
    await stage.fleets.become(stage.world(pod("a", "127.0.0.1", uid="1")))
    await stage.until(lambda: stage.records(WorkerSeen))
    [seen] = stage.records(WorkerSeen)
    lesson = Learned(
        worker=seen.worker, fingerprint=fingerprint(seen.settings), samples=((10, 0.5),)
    )
    stage.fleets.pools.of(str(CHAT)).take("picker", [lesson])
    assert stage.fleets.learn()

    await stage.fleets.become(stage.world())
    assert stage.records(Learned) == []
    await stage.fleets.become(stage.world(pod("a", "127.0.0.1", uid="2")))

    await stage.until(lambda: stage.records(Learned))
    assert stage.records(Learned) == [lesson]
