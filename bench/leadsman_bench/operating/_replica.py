"""A picker's side of the stream as a process: client, fleet state, and how late it hears.

Prints one JSON line once it knows all that there is, and one for each second after: how many KV
batches came, how old each was, in seconds since its engine sent it, and the CPU time taken so far.

Arguments: the stream's address, the pool, and how many workers there must be before it begins.
"""

import asyncio
import json
import sys
import time

import uvloop
from leadsman.fleet import Fleet
from leadsman.records import KvEvents, Record
from leadsman_extproc.garbage import settle
from leadsman_fleet.client import FleetClient, Target


async def follow(address: str, pool: str, workers: int) -> None:
    """Follow until killed."""
    fleet, ages = Fleet(), list[float]()

    def hear(record: Record) -> None:
        fleet.apply(record, time.monotonic())
        if isinstance(record, KvEvents) and record.engine_time:
            ages.append(time.time() - record.engine_time)

    client = FleetClient(Target(address=address, replica="bench", pool=pool, hands_back=True), hear)
    following = asyncio.create_task(client.run())
    await client.synced.wait()
    while len(fleet.workers) < workers:  # noqa: ASYNC110  # it tells nobody when it is
        await asyncio.sleep(0.01)
    _say({"ports": [], "blocks": fleet.index.distinct_blocks})
    settle()
    while not following.done():
        ages.clear()
        await asyncio.sleep(1.0)
        _say({"ages": [round(age, 4) for age in ages], "cpu": time.process_time()})
    following.result()


def _say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    uvloop.run(follow(sys.argv[1], sys.argv[2], int(sys.argv[3])))
