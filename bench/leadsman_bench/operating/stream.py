"""How the operator keeps up with the caches of a large pool, and how late a picker hears of them.

The question: with this many endpoints that each send this many KV batches a second, what the
operator takes of a core and of memory, and how old a batch is when a picker's own index has it,
counted from the moment before the engine sent it. Engines and picker are processes beside it and
share the machine; where that is too small for all three, ages grow without bound and say so. No
engine speaks before the picker knows all of them, so how long that takes is told apart.
"""

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from leadsman.units import Seconds

from leadsman_bench.operating._engines import address
from leadsman_bench.operating.cluster import PATIENCE, Cluster, together
from leadsman_bench.processes import cpu_seconds, free_ports, module

LABELS: Final = {"app": "bench"}
SETTLE: Final[Seconds] = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """endpoints, KV batches a second of each, and for how long it is looked at."""

    endpoints: int = 256
    events: float = 50.0
    seconds: Seconds = 20.0


async def measure(cluster: Cluster, load: Load) -> dict[str, float]:
    """Measure; takes a minute."""
    [port] = free_ports(1)
    held, folder = cluster.held, cluster.held.folder
    arguments = [str(load.endpoints), str(load.events), str(port)]
    held.start("engines", module("leadsman_bench.operating._engines", *arguments))
    held.told("engines")
    await cluster.begin(LABELS)
    pool = await cluster.pool("bench", LABELS, port)
    pods = [cluster.pod(f"pod-{n}", LABELS, address(n)) for n in range(load.endpoints)]
    await together(pods)
    started = time.monotonic()
    stream = await cluster.operator()
    replica = [stream, str(pool), str(load.endpoints)]
    held.start("replica", module("leadsman_bench.operating._replica", *replica))
    await asyncio.to_thread(held.told, "replica", PATIENCE)
    known = time.monotonic() - started
    os.kill(held.pid("engines"), signal.SIGUSR1)
    await asyncio.sleep(SETTLE)
    names = ("operator", "replica", "engines")
    before, began = {name: cpu_seconds(held.pid(name)) for name in names}, time.monotonic()
    skipped = len(_ages(folder))
    await asyncio.sleep(load.seconds)
    wall = time.monotonic() - began
    shares = {name: (cpu_seconds(held.pid(name)) - before[name]) / wall for name in names}
    ages = np.array([age for second in _ages(folder)[skipped:] for age in second])
    p50, p99 = np.percentile(ages, [50, 99]) if ages.size else (np.inf, np.inf)
    return {
        "operator_all_known_s": known,
        "operator_lag_p99_s": float(p99),
        "operator_lag_p50_s": float(p50),
        "operator_heard_per_s": ages.size / wall,
        "operator_sent_per_s": load.endpoints * load.events,
        "operator_cpu": shares["operator"],
        "operator_replica_cpu": shares["replica"],
        "operator_engines_cpu": shares["engines"],
        "operator_rss_bytes": resident(held.pid("operator")),
    }


def resident(pid: int) -> int:
    """Read the bytes of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmRSS")]
    return int(kilobytes) * 1024


def _ages(folder: Path) -> list[list[float]]:
    lines = (folder / "replica.log").read_text().splitlines()
    said: list[dict[str, Any]] = [json.loads(one) for one in lines if one[:1] + one[-1:] == "{}"]
    return [one["ages"] for one in said if "ages" in one]
