"""A standby that comes to lead: its log begins with what the leader before it had said."""

import asyncio
import time

import aiohttp
import numpy as np
import pytest
from aiohttp.test_utils import TestServer
from leadsman.records import Granted, KvEvents, Stored, Trust, TrustChanged, WorkerSeen
from leadsman_fleet.server import listen
from leadsman_fleet.state import FleetState
from leadsman_operator.fleets import Fleets
from leadsman_operator.objects import Key
from leadsman_operator.standby import Standby

from .objects import pod, pool, profile, world
from .test_collector import PATIENCE, QUICK, ScriptedEngine

CHAT = Key("serving", "chat")
STATED = profile("p", settings={"maxNumBatchedTokens": 2048, "maxNumSeqs": 16})


def said(fleets, kind):
    log = fleets.pools.of(str(CHAT))._log
    return [record for record in log.snapshot() if isinstance(record, kind)]


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
            await asyncio.sleep(0.01)


def granted(request, *, worker):
    return Granted(
        worker=worker,
        request=request,
        at=1.0,
        prompt_tokens=9,
        keys=np.arange(3, dtype=np.uint64),
        max_tokens=None,
        priority=0,
        predicted_ttft=None,
    )


@pytest.fixture
async def engine():
    engine = ScriptedEngine()
    async with TestServer(engine.app()) as server:
        engine.port = server.port
        yield engine


async def test_who_comes_to_lead_begins_with_what_the_leader_knew(engine, tmp_path):
    there = world(
        pools=[pool(ports=(engine.port,))], pods=[pod("a", "127.0.0.1")], profiles=[STATED]
    )
    address, worker = f"unix:{tmp_path / 's'}", f"127.0.0.1:{engine.port}"
    async with aiohttp.ClientSession() as http:
        leader = Fleets(http=http, secret=b"", clock=time.monotonic, timing=QUICK)
        await leader.become(there)
        await until(lambda: said(leader, WorkerSeen))
        keys = np.array([1, 2, 3], dtype=np.uint64)
        service = leader.pools.of(str(CHAT))
        service.publish(TrustChanged(worker=worker, trust=Trust.LIVE, reason="test"))
        service.publish(
            KvEvents(
                worker=worker,
                sequence=7,
                engine_time=1.0,
                received_at=1.0,
                events=(Stored(keys=keys),),
            )
        )
        service.take("picker", [granted("r", worker=worker)])
        server, _ = await listen(leader.pools, address)
        standby = Standby(peers=address, name="next")
        standby.follow([CHAT])
        await until(standby._followers[CHAT].state.workers)
        await leader.stop()
        await server.stop(None)
        engine.is_reachable = False

        heard = await standby.take()
        after = Fleets(http=http, secret=b"", clock=time.monotonic, timing=QUICK, past=heard)
        await after.become(there)

        [held] = said(after, KvEvents)
        assert [seen.ready for seen in said(after, WorkerSeen)] == [True]
        assert said(after, Granted) == []
        assert [one.keys.tolist() for one in held.events if isinstance(one, Stored)] == [[1, 2, 3]]
        await until(lambda: [seen.ready for seen in said(after, WorkerSeen)] == [False])
        await after.become(world())
        assert said(after, WorkerSeen) == []
        await after.stop()


async def test_who_comes_to_lead_waits_for_no_engine_that_the_leader_did_not_know_either():
    there = world(pools=[pool(ports=(1,))], pods=[pod("mute", "127.0.0.1")], profiles=[STATED])
    async with aiohttp.ClientSession() as http:
        first, next_ = (
            Fleets(http=http, secret=b"", clock=time.monotonic, timing=QUICK, past=past)
            for past in ({}, {CHAT: FleetState()})
        )
        for fleets in (first, next_):
            await fleets.become(there)

        assert not first.is_settled()
        assert next_.is_settled()
        await first.stop()
        await next_.stop()


async def test_who_led_before_and_heard_of_nobody_begins_with_what_it_knew(tmp_path):
    standby = Standby(peers=f"unix:{tmp_path / 'nobody'}", name="me")
    own = FleetState()
    standby.remember({CHAT: own})
    standby.follow([CHAT])

    taken = await standby.take()

    assert taken == {CHAT: own}
    assert await standby.take() == {}
