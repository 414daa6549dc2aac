"""How long a picker takes to know what a large pool holds, from the start of its process.

The log holds a snapshot of so many blocks, all different, spread over workers; the picker's side
starts, follows it, and is done when its own index has every block.
"""

import asyncio
import json
import sys
import time
import uuid
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import uvloop
from leadsman.engine import EngineSettings
from leadsman.records import KvEvents, Stored, WorkerSeen
from leadsman.units import Blocks, WorkerId
from leadsman_fleet.log import FleetLog
from leadsman_fleet.server import FleetService, listen

from leadsman_bench.operating.cluster import PATIENCE
from leadsman_bench.operating.stream import resident
from leadsman_bench.processes import children, cpu_seconds, module

WORKERS: Final = 256


def measure(blocks: Blocks) -> dict[str, float]:
    """Measure; takes half a minute."""
    with TemporaryDirectory(prefix="leadsman-cold-") as name, children(Path(name)) as held:
        held.start("log", module("leadsman_bench.operating.cold", str(blocks)))
        [port] = held.told("log", PATIENCE)["ports"]
        before, began = cpu_seconds(held.pid("log")), time.monotonic()
        where = [f"127.0.0.1:{port}", "default", str(WORKERS)]
        held.start("replica", module("leadsman_bench.operating._replica", *where))
        found = held.told("replica", PATIENCE)["blocks"]
        took = time.monotonic() - began
        replica = held.pid("replica")
        assert found == blocks // WORKERS * WORKERS, f"{found} blocks of {blocks} arrived"
        return {
            "cold_start_s": took,
            "cold_start_cpu_s": cpu_seconds(replica),
            "cold_start_log_cpu_s": cpu_seconds(held.pid("log")) - before,
            "cold_start_rss_bytes": resident(replica),
        }


async def serve(blocks: Blocks) -> None:
    """Serve a log that holds so many blocks until killed."""
    log, rng = FleetLog(epoch=uuid.uuid4().hex), np.random.default_rng(7)
    settings = EngineSettings(
        model="bench",
        version="0.33.0",
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        max_model_len=1 << 20,
        block_size=64,
        num_blocks=2 * blocks // WORKERS,
    )
    for number in range(WORKERS):
        worker = WorkerId(f"10.0.{number // 250}.{number % 250 + 1}:8000")
        keys = rng.integers(1, 2**64, blocks // WORKERS, dtype=np.uint64)
        log.append(WorkerSeen(worker=worker, endpoint=worker, settings=settings))
        log.append(
            KvEvents(
                worker=worker,
                sequence=1,
                engine_time=0.0,
                received_at=0.0,
                events=(Stored(keys=keys),),
            )
        )
    _, ports = await listen(FleetService(log), "127.0.0.1:0")
    print(json.dumps({"ports": ports}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
