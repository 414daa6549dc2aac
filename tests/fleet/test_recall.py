"""An operator that knows nothing is told by pickers what the one before had said."""

import asyncio
import contextlib
import time

import numpy as np
import pytest
from leadsman.records import KvEvents, Removed, Stored, Trust, TrustChanged, WorkerGone
from leadsman_fleet.client import ClientTiming, FleetClient, Target
from leadsman_fleet.log import FleetLog
from leadsman_fleet.recall import Recall
from leadsman_fleet.server import FleetService, ServerTiming, listen
from leadsman_fleet.state import FleetState

from .records import seen

PATIENCE = 30.0


def events(worker, sequence, *happened):
    return KvEvents(
        worker=worker,
        sequence=sequence,
        engine_time=1.0,
        received_at=time.monotonic(),
        events=happened,
    )


def keys(*numbers):
    return np.array(numbers, dtype=np.uint64)


SAID = [
    seen("a"),
    seen("b"),
    TrustChanged(worker="a", trust=Trust.LIVE, reason="history is complete"),
    events("a", 3, Stored(keys=keys(1, 2, 3, 3)), Stored(keys=keys(7), tier="CPU")),
    events("a", 4, Removed(keys=keys(1, 3))),
    events("b", 1, Stored(keys=keys(9))),
    WorkerGone(worker="b"),
]


def held(state):
    """Say of each worker its blocks by tier, with their copies, and its last sequence."""
    return {
        record.worker: (
            record.sequence,
            sorted(
                (event.tier, key)
                for event in record.events
                if isinstance(event, Stored)
                for key in event.keys.tolist()
            ),
        )
        for record in state.snapshot()
        if isinstance(record, KvEvents)
    }


@contextlib.asynccontextmanager
async def serving(service, address):
    server, _ = await listen(service, address)
    yield
    await server.stop(None)


@contextlib.asynccontextmanager
async def picker(address, **options):
    timing = ClientTiming(linger=0.0, retry=0.05)
    target = Target(address=address, replica="picker", pool="chat", **options)
    client = FleetClient(target, lambda _: None, timing=timing)
    task = asyncio.create_task(client.run())
    yield client
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def log_of(epoch):
    return FleetService(
        FleetLog(epoch=epoch), pool="chat", timing=ServerTiming(linger=0.0, heartbeat=0.05)
    )


@pytest.fixture
def address(tmp_path):
    return f"unix:{tmp_path / 's'}"


async def test_what_was_told_before_is_handed_back_and_the_next_log_is_followed(address):
    before, after, truth = log_of("before"), log_of("after"), FleetState()
    for record in SAID:
        before.publish(record)
        truth.apply(record)
    async with picker(address, hands_back=True) as client, asyncio.timeout(PATIENCE):
        async with serving(before, address):
            await client.synced.wait()
        recall = Recall({"chat"}, time.monotonic)
        async with serving(recall, address):
            found = await recall.gather(PATIENCE)
        async with serving(after, address):
            while client.epoch != "after":  # noqa: ASYNC110  # it tells nobody when it is
                await asyncio.sleep(0.01)

    assert held(found["chat"]) == held(truth)
    assert held(truth)["a"] == (4, [("CPU", 7), ("GPU", 2), ("GPU", 3)])


@pytest.mark.parametrize("options", [{}, {"hands_back": True}], ids=["keeps nothing", "is new"])
async def test_a_picker_that_knows_nothing_is_not_waited_for(address, options):
    recall = Recall({"chat"}, time.monotonic)
    async with serving(recall, address), picker(address, **options):
        found = await recall.gather(0.3)

    assert found == {}


async def test_of_a_pool_that_nobody_asked_for_nothing_is_taken(address):
    before = log_of("before")
    before.publish(seen("a"))
    async with picker(address, hands_back=True) as client:
        async with serving(before, address), asyncio.timeout(PATIENCE):
            await client.synced.wait()
        recall = Recall({"other"}, time.monotonic)
        async with serving(recall, address):
            found = await recall.gather(0.3)

    assert found == {}
