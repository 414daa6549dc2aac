import asyncio
import contextlib
import logging

import pytest
from leadsman.budget import Budget
from leadsman.declared import Declared, ScopedBudget
from leadsman.records import Learned, LoadSample, WorkerSeen
from leadsman_fleet.client import ClientTiming, FleetClient, Target
from leadsman_fleet.log import FleetLog
from leadsman_fleet.pools import Pools
from leadsman_fleet.server import FleetService, ServerTiming, listen

from tests.settings import SETTINGS

PATIENCE = 20.0


def make(pool):
    timing = ServerTiming(linger=0.0, heartbeat=0.05)
    return FleetService(FleetLog(epoch=pool), pool=pool, timing=timing)


def declaring(name):
    return Declared(budgets=(ScopedBudget(budget=Budget(name=name)),))


def seen(worker):
    return WorkerSeen(worker=worker, endpoint=worker, settings=SETTINGS)


@pytest.fixture
async def stage(tmp_path):
    pools, tasks = Pools(make), []
    server, _ = await listen(pools, address := f"unix:{tmp_path / 's'}")

    def follow(pool):
        heard = asyncio.Queue()
        target = Target(address=address, replica=str(len(tasks)), pool=pool)
        timing = ClientTiming(linger=0.0, retry=0.05)
        client = FleetClient(target, heard.put_nowait, timing=timing)
        tasks.append(asyncio.create_task(client.run()))
        return client, heard

    yield pools, follow
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await server.stop(None)


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
            await asyncio.sleep(0.01)


async def heard_of(heard):
    async with asyncio.timeout(PATIENCE):
        return await heard.get()


async def test_a_follower_hears_of_its_own_pool_only(stage):
    pools, follow = stage
    for pool in ("a", "b"):
        pools.of(pool).publish(seen(f"worker of {pool}"))

    _, heard = follow("b")

    assert (await heard_of(heard)).worker == "worker of b"


async def test_what_a_replica_reports_goes_to_its_pool(stage):
    pools, follow = stage
    for pool in ("a", "b"):
        pools.of(pool).publish(seen("w"))
    (reporter, _), (_, here), (_, there) = follow("a"), follow("a"), follow("b")

    reporter.report(sample := learned("w"))

    assert await said(here, type(sample)) == sample
    pools.of("b").publish(LoadSample(worker="w", at=1.0, running=1, waiting=0))
    assert not isinstance(await said(there, (type(sample), LoadSample)), type(sample))


async def test_what_is_declared_is_told_to_who_comes_and_again_when_it_changes(stage):
    pools, follow = stage
    pools.of("a").declare(declaring("first"))
    client, _ = follow("a")
    await until(lambda: client.declared == declaring("first"))

    pools.of("a").declare(declaring("second"))

    await until(lambda: client.declared == declaring("second"))


async def test_where_nothing_is_declared_nothing_is_told(stage):
    pools, follow = stage
    pools.of("a").publish(seen("w"))

    client, heard = follow("a")

    await heard_of(heard)
    assert client.declared is None


async def test_a_pool_that_never_was_is_named_with_those_that_are(stage, caplog):
    pools, follow = stage
    pools.of("there")
    caplog.set_level(logging.WARNING)

    follow("misspelt")

    await until(lambda: caplog.records)
    assert "no pool 'misspelt' here; there are: there" in caplog.records[0].error


async def said(heard, kinds):
    while not isinstance(record := await heard_of(heard), kinds):
        pass
    return record


def learned(worker):
    return Learned(worker=worker, fingerprint="f", samples=((10, 0.5),))
