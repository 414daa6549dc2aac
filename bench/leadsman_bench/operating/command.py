"""`leadsman bench operator`: the operator's figures, each beside its goal.

stream: KV events of a large pool (`stream.py`). cold: a picker that joins (`cold.py`).
reconcile: a change to many pools (`reconcile.py`). `stream` and `reconcile` need an API server that
knows the CRDs: by --kubeconfig, or KUBECONFIG. Without one they are left out, and that is said.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from leadsman_operator.kube import api

from leadsman_bench.operating import cold, reconcile, stream
from leadsman_bench.operating.cluster import Cluster
from leadsman_bench.processes import children

PARTS = ("stream", "cold", "reconcile")


def measure(argv: list[str]) -> tuple[dict[str, float], Path | None]:
    """Measure what the arguments ask for; gives the figures, and where they are to be written."""
    parser = argparse.ArgumentParser(prog="leadsman bench operator", description=__doc__)
    add = parser.add_argument
    add("only", nargs="*", help=f"any of {', '.join(PARTS)}; all by default")
    add("--kubeconfig", type=Path, default=os.environ.get("KUBECONFIG"))
    add("--endpoints", type=int, default=256)
    add("--events", type=float, default=50.0, help="KV batches a second of each endpoint")
    add("--seconds", type=float, default=20.0, help="how long the stream is looked at")
    add("--blocks", type=int, default=5_000_000)
    add("--pools", type=int, default=100)
    add("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.only) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}")
    measured: dict[str, float] = {}
    for part in arguments.only or PARTS:
        print(f"measuring {part} …", file=sys.stderr)
        if part == "cold":
            measured |= cold.measure(arguments.blocks)
        elif arguments.kubeconfig is None:
            print(f"{part} is left out: no --kubeconfig", file=sys.stderr)
        else:
            measured |= asyncio.run(_in_cluster(part, arguments))
    return measured, arguments.json


async def _in_cluster(part: str, arguments: argparse.Namespace) -> dict[str, float]:
    with (
        TemporaryDirectory(prefix="leadsman-operator-") as name,
        children(Path(name)) as held,
    ):
        async with api(str(arguments.kubeconfig)) as server:
            cluster = Cluster(api=server, kubeconfig=Path(arguments.kubeconfig), held=held)
            if part == "reconcile":
                return await reconcile.measure(cluster, arguments.pools)
            load = stream.Load(
                endpoints=arguments.endpoints, events=arguments.events, seconds=arguments.seconds
            )
            return await stream.measure(cluster, load)
