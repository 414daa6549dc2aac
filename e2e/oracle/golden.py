"""Runs of the real scheduler that are kept in the repository, for tests that have no vLLM.

python -m oracle.golden --python PYTHON [--mode MODE ...] [--seeds FIRST:COUNT] [--out FOLDER]

One file a version and mode: the scenarios, and what the engine did. Of the seeds those are kept
that are short and in which something happens, some requests pushed out above all.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from oracle.fuzz import Engine
from oracle.scenarios import MODES, scenario

FOLDER = Path(__file__).parents[2] / "tests" / "oracle" / "golden"
KEPT = 12
LONGEST = 120


class Golden(NamedTuple):
    """One run: what was asked, and what the engine of that version did."""

    version: str
    told: dict[str, Any]
    cycles: list[dict[str, Any]]


def read(path: Path) -> Iterator[Golden]:
    """Read one file's runs."""
    kept = json.loads(gzip.decompress(path.read_bytes()))
    for told, cycles in kept["runs"]:
        yield Golden(kept["version"], told, cycles)


def write(path: Path, runs: list[Golden]) -> None:
    """Write one version's runs in one mode; the same runs give the same bytes."""
    kept = {"version": runs[0].version, "runs": [(run.told, run.cycles) for run in runs]}
    text = json.dumps(kept, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def eventful(run: Golden) -> tuple[bool, int, int]:
    """Order runs: short ones first, then those in which most is pushed out or reused."""
    pushed = sum(len(cycle["preempted"]) for cycle in run.cycles)
    reused = sum(cached > 0 for cycle in run.cycles for cached in cycle["cached"].values())
    return len(run.cycles) > LONGEST, -pushed, -reused


def main() -> None:
    """Record with one engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--seeds", default="0:60")
    parser.add_argument("--out", type=Path, default=FOLDER)
    asked = parser.parse_args()
    first, count = (int(number) for number in asked.seeds.split(":"))
    engine = Engine(asked.python)
    minor = ".".join(engine.version.split(".")[:2])
    asked.out.mkdir(parents=True, exist_ok=True)
    for mode in asked.mode or MODES:
        told = [scenario(mode, seed) for seed in range(first, first + count)]
        runs = [Golden(engine.version, one, engine.run(one)) for one in told]
        kept = sorted(sorted(runs, key=eventful)[:KEPT], key=lambda run: run.told["seed"])
        write(asked.out / f"vllm-{minor}-{mode}.json.gz", kept)
    engine.close()


if __name__ == "__main__":
    main()
