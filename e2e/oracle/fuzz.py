"""Holds the replay against vLLM's real scheduler on random runs, and says where they differ.

python -m oracle.fuzz --python PYTHON ... [--mode MODE ...] [--seeds FIRST:COUNT] [--json PATH]

Every engine runs every scenario in an environment of its own (`engine.py`), and what it did is
played against the replay here. The exit status is 1 where anything differed.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oracle.play import Mismatch, Play
from oracle.scenarios import MODES, scenario

HERE = Path(__file__).parent


@dataclass(kw_only=True)
class Row:
    """One engine in one mode. counted: steps in which the counting replay was compared too."""

    engine: str
    version: str
    mode: str
    seeds: str
    steps: int = 0
    counted: int = 0
    preemptions: int = 0
    mismatches: int = 0


class Engine:
    """A process that runs scenarios on one version of vLLM's scheduler."""

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, str(HERE / "engine.py"), str(HERE / "model")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version: str = self._answer()["version"]

    def run(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """Let it run one scenario; returns what it did, cycle by cycle."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        cycles: list[dict[str, Any]] = self._answer()["cycles"]
        return cycles

    def close(self) -> None:
        """Let it go."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the engine ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def compare(engine: Engine, modes: Sequence[str], first: int, count: int) -> Iterator[Row]:
    """Run and compare one engine in each mode."""
    for mode in modes:
        row = Row(engine="vllm", version=engine.version, mode=mode, seeds=f"{first}:{count}")
        for seed in range(first, first + count):
            told = scenario(mode, seed)
            cycles, play = engine.run(told), Play(told, engine.version)
            found = play.against(cycles)
            row.steps += len(cycles)
            row.counted += play.counted
            row.preemptions += play.preemptions
            if found is not None:
                row.mismatches += 1
                say(row, seed, found)
        yield row


def say(row: Row, seed: int, found: Mismatch) -> None:
    """Print one difference, and how to have just this run again."""
    minor = ".".join(row.version.split(".")[:2])
    print(
        f"{row.engine} {row.version} {row.mode} seed {seed}: the {found.side} replay differs in"
        f" cycle {found.cycle}: {found.what}\n  engine {found.engine}\n  replay {found.replay}\n"
        f"  again: make oracle ORACLE_VERSIONS={minor} ORACLE_MODES={row.mode}"
        f" ORACLE_SEEDS={seed}:1",
        flush=True,
    )


def table(rows: Sequence[Row]) -> str:
    """Lay the rows out."""
    head = ["engine", "version", "mode", "seeds", "steps", "counted", "preemptions", "mismatches"]
    lines = [head, *([str(value) for value in asdict(row).values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", required=True, help="one of each engine")
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--seeds", default="0:50", help="FIRST:COUNT")
    parser.add_argument("--json", type=Path, default=Path("oracle.json"))
    asked = parser.parse_args()
    first, count = (int(number) for number in asked.seeds.split(":"))
    rows: list[Row] = []
    for python in asked.python:
        engine = Engine(python)
        for row in compare(engine, asked.mode or MODES, first, count):
            rows.append(row)
            asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        engine.close()
    print(table(rows))
    return int(any(row.mismatches for row in rows))


if __name__ == "__main__":
    sys.exit(main())
