"""How long a change to many pools takes: until pickers hear of it, and until the status says it.

Every pool has an endpoint, a budget and a follower. All budgets are edited at once; the times are
those of the last pool, from the moment that the API server has taken the last edit.
"""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Final

from leadsman.records import Record
from leadsman_fleet.client import FleetClient, Target
from leadsman_operator.objects import BUDGETS, Key

from leadsman_bench.operating._engines import address
from leadsman_bench.operating.cluster import Cluster, seconds_until, together
from leadsman_bench.processes import cpu_seconds, free_ports, module

LABELS: Final = {"part": "engine"}


async def measure(cluster: Cluster, pools: int) -> dict[str, float]:
    """Measure; takes half a minute."""
    [port] = free_ports(1)
    held = cluster.held
    held.start("engines", module("leadsman_bench.operating._engines", str(pools), "0", str(port)))
    held.told("engines")
    await cluster.begin(LABELS)
    names = [f"pool-{number}" for number in range(pools)]
    await together([_make(cluster, name, n, port) for n, name in enumerate(names)])
    stream = await cluster.operator()
    async with AsyncExitStack() as stack:
        clients = [_follow(stack, stream, Key(cluster.namespace, name)) for name in names]
        appeared = await seconds_until(lambda: all(_told(one, 1.0) for one in clients))
        await _written(cluster, names, generation=1)
        before = cpu_seconds(held.pid("operator"))
        await together([_edit(cluster, name) for name in names])
        began = time.monotonic()
        published = await seconds_until(lambda: all(_told(one, 2.0) for one in clients))
        await _written(cluster, names, generation=2)
        written = time.monotonic() - began
    return {
        "reconcile_published_s": published,
        "reconcile_status_s": written,
        "reconcile_cpu_s": cpu_seconds(held.pid("operator")) - before,
        "reconcile_first_published_s": appeared,
    }


async def _make(cluster: Cluster, name: str, number: int, port: int) -> None:
    labels = LABELS | {"pool": name}
    pool = await cluster.pool(name, labels, port)
    await cluster.pod(name, labels, address(number))
    await cluster.budget(name, pool, "1s")


async def _edit(cluster: Cluster, name: str) -> None:
    await cluster.api.merge(BUDGETS.path(cluster.namespace, name), {"spec": {"ttft": "2s"}})


def _follow(stack: AsyncExitStack, stream: str, pool: Key) -> FleetClient:
    def hear(_: Record) -> None:
        """Only what is declared is looked at."""

    client = FleetClient(Target(address=stream, replica="bench", pool=str(pool)), hear)
    task = asyncio.create_task(client.run())

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    return client


def _told(client: FleetClient, ttft: float) -> bool:
    declared = client.declared
    return declared is not None and [one.budget.ttft for one in declared.budgets] == [ttft]


async def _written(cluster: Cluster, names: list[str], generation: int) -> None:
    """Wait until every status is about this generation of its budget."""
    waiting = set(names)
    while waiting:
        listed = json.loads(await cluster.api.get(BUDGETS.path(cluster.namespace)))
        for item in listed["items"]:
            conditions = item.get("status", {}).get("conditions", [])
            if conditions and all(one["observedGeneration"] == generation for one in conditions):
                waiting.discard(item["metadata"]["name"])
        await asyncio.sleep(0.02)
