"""The operator's page, fed by real logs."""

import asyncio
import json
import time
from contextlib import AsyncExitStack

import aiohttp
import numpy as np
from leadsman.engine import EngineSettings
from leadsman.records import Granted, TokensSeen, WorkerSeen
from leadsman.units import RequestId, WorkerId
from leadsman_cli.overview import Overview, show
from leadsman_fleet.log import FleetLog
from leadsman_fleet.pools import Pools
from leadsman_fleet.server import FleetService, listen

SETTINGS = EngineSettings(
    model="m",
    version="0.33.0",
    max_num_batched_tokens=2048,
    max_num_seqs=8,
    max_model_len=1 << 20,
    block_size=16,
    num_blocks=100,
)


def records(worker):
    now = time.monotonic()
    return [
        WorkerSeen(worker=worker, endpoint=worker, settings=SETTINGS),
        Granted(
            worker=worker,
            request=RequestId(f"r of {worker}"),
            at=now,
            prompt_tokens=10,
            keys=np.empty(0, np.uint64),
            max_tokens=None,
            priority=0,
            predicted_ttft=0.5,
        ),
        TokensSeen(worker=worker, request=RequestId(f"r of {worker}"), at=now + 0.75, tokens=1),
    ]


async def told(session, pool, wanted):
    """Read events until one has points."""
    points = []
    async with session.get("/events", params={"pool": pool}) as answer:
        async for line in answer.content:
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                points += event["points"]
                if len(points) >= wanted and event.get("workers"):
                    return event, points
    raise AssertionError("the stream ended")


async def test_every_pool_that_there_is_is_shown_with_what_its_pickers_said():
    names = {"ns/one", "ns/two"}
    pools = Pools(lambda name: FleetService(FleetLog(epoch="e"), pool=name))
    server, [port] = await listen(pools, "127.0.0.1:0")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, None)
        for name in names:
            for record in records(WorkerId(f"{name}:8000")):
                pools.of(name).publish(record)
        overview = Overview(f"127.0.0.1:{port}", lambda: names)
        at = await show(stack, overview, "127.0.0.1:0", None)
        session = await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{at}"))
        async with asyncio.timeout(20):
            while not overview.sites():  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.02)
            found = {name: await told(session, name, 1) for name in sorted(names)}
        async with session.get("/explain", params={"request": "r", "pool": "ns/one"}) as answer:
            explained = answer.status

    for name, (tick, points) in found.items():
        assert [one["worker"] for one in tick["workers"]] == [f"{name}:8000"]
        [point] = points
        assert (point[3], point[4]) == (0.5, 0.75)
    assert explained == 404
