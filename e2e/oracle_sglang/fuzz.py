"""Fuzzes the replay of SGLang, and the simulated one, against SGLang's own scheduler.

    python fuzz.py --engine-python VENV/bin/python --json oracle.json

Seeds come from ORACLE_SEEDS=first:count, for every mode of `scenarios.py`. Runs in Leadsman's own
environment, and starts `engine.py` in SGLang's. Ends with 1 where anything differed.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parents[1] / "tests"
sys.path[:0] = [str(HERE), str(TESTS / "core"), str(TESTS / "engines")]

from scenarios import ALL_MODES, MODES, scenario  # noqa: E402
from sglang_passes import difference  # noqa: E402
from sglang_runs import Compared  # noqa: E402

VERSION = "0.5.23"


def runs(python, first, count):
    """Give the runs of all modes as SGLang makes them; importing it takes half a minute, once."""
    with subprocess.Popen(
        [python, str(HERE / "engine.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as engine:
        for mode in ALL_MODES:
            for seed in range(first, first + count):
                print(json.dumps(scenario(mode, seed)), file=engine.stdin, flush=True)
                line = engine.stdout.readline()
                if not line:
                    raise RuntimeError(f"SGLang's scheduler failed in {mode} {seed}")
                yield json.loads(line)
        engine.stdin.close()


def main():
    """Compare, tell, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine-python", required=True)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    first, count = map(int, os.environ.get("ORACLE_SEEDS", "0:20").split(":"))
    table = {
        mode: {"engine": "sglang", "version": VERSION, "mode": mode, "seeds": 0, "steps": 0,
               "preemptions": 0, "mismatches": 0, "simulated_mismatches": 0}
        for mode in ALL_MODES
    }  # fmt: skip
    for run in runs(asked.engine_python, first, count):
        row = table[run["mode"]]
        mismatch = Compared(run).mismatch() if run["mode"] in MODES else None
        row["seeds"] += 1
        row["steps"] += sum(bool(step["prefill"] or step["decode"]) for step in run["steps"])
        row["preemptions"] += sum(len(step["retracted"]) for step in run["steps"])
        row["mismatches"] += mismatch is not None
        otherwise = difference(run)
        row["simulated_mismatches"] += otherwise is not None
        for side, found in (("replay", mismatch), ("simulated", otherwise)):
            if found is not None:
                print(side, run["mode"], run["seed"], json.dumps(found))
    asked.json.write_text(json.dumps(list(table.values()), indent=1) + "\n")
    for row in table.values():
        print(*row.values())
    return int(any(row["mismatches"] + row["simulated_mismatches"] for row in table.values()))


if __name__ == "__main__":
    sys.exit(main())
