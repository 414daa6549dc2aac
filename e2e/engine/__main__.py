"""Run everything, print the tables, write engine.json: python -m engine --python VLLM_PYTHON.

Some 20 minutes with the usual numbers, on a machine that does nothing else: an engine's steps are
timed, and what shares its cores is in the timings. `--requests`, `--slots`, `--loads` and `--skip`
make it shorter; without `--python` the engine is a simulated one. The exit status is 1 where a goal
was missed.
"""

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from leadsman.units import Seconds
from leadsman_bench.traces import TraceRequest

from engine.cells import Measured, measured, pooled
from engine.curve import CurveFit, fit, work
from engine.faults import FAULTS, faults
from engine.plan import Plans, at_once, parted, wanted
from engine.report import meets_goals, show
from engine.stage import Stage, stage

QUIET = 0.4
"""The load of what goes on around a fault, in units of capacity."""

AROUND = 0.05
"""The share of requests that does not come through Leadsman, where that is tried."""


@dataclass(slots=True)
class Run:
    """One run: what was asked for, and what was found so far."""

    options: argparse.Namespace
    plans: Plans
    began: Seconds = field(default_factory=time.monotonic)
    cells: list[Measured] = field(default_factory=list)
    curves: dict[int, CurveFit] = field(default_factory=dict)
    capacity: dict[int, float] = field(default_factory=dict)
    stretch: dict[int, float] = field(default_factory=dict)
    recovered: dict[str, Seconds | None] = field(default_factory=dict)

    def everything(self) -> None:
        """Measure with each number of slots; the faults happen to the first engine alone."""
        options = self.options
        for slots in options.slots:
            with stage(options.python, slots, options.out) as up:
                self.isolated(up)
                self.backlog(up)
                for load in options.loads:
                    self.slice(up, load)
                if "told" not in options.skip:
                    self.slice(up, 1.0, told=True)
                if "around" not in options.skip:
                    self.slice(up, 1.0, around=AROUND)
                if "faults" not in options.skip and slots == options.slots[0]:
                    rows = [self.plans.slice(options.requests // 2) for _ in FAULTS]
                    spans = [self.span(slots, one, QUIET) for one in rows]
                    self.recovered = faults(up, rows, spans)
                    self.write()

    def isolated(self, up: Stage) -> None:
        """Send isolated prompts, one at a time; the picker learns its curve of them."""
        for number, row in enumerate(self.plans.isolated(self.options.rounds)):
            up.play(at_once(f"isolated-{number}", [row]), settle=0.3)
        found = [one for one in up.outcomes() if one.request.startswith("isolated-")]
        curve = fit([(one.prompt_tokens, one.ttft) for one in found if one.ttft is not None])
        if curve is None:
            raise RuntimeError(f"no curve of {len(found)} isolated prompts: {up.journal}")
        self.curves[up.engine.slots] = curve

    def backlog(self, up: Stage) -> None:
        """Measure capacity: what gets done while there is always work."""
        slots, rows = up.engine.slots, self.plans.slice(self.options.requests // 2)
        played = up.play(at_once("backlog", rows))
        last = max(one.ended_at for one in played if one.ended_at is not None)
        self.capacity[slots] = len(rows) / last
        self.stretch[slots] = last / work(rows, self.curves[slots])

    def span(self, slots: int, rows: Sequence[TraceRequest], load: float) -> Seconds:
        """Give the time in which so many rows make the load.

        Rows differ by far in their prompts, so it is their work that is held against capacity.
        """
        return self.stretch[slots] * work(rows, self.curves[slots]) / load

    def slice(self, up: Stage, load: float, around: float = 0.0, *, told: bool = False) -> None:
        """Play a slice of the trace at a load; a share of it goes around Leadsman.

        told: its callers say how long their answers will be.
        """
        slots, rows = up.engine.slots, self.plans.slice(self.options.requests)
        name = f"{slots} slots, {load:g} ×" + (f", {100 * around:g} % around" if around else "")
        name += ", lengths told" if told else ""
        span = self.span(slots, rows, load)
        planned = wanted(f"{slots}-{load:g}-{around:g}-{told:d}", rows, span, told=told)
        through, beside = parted(planned, around, self.options.seed)
        played = up.play(through, beside)
        figures = measured(
            played, up.outcomes(), name=name, slots=slots, load=load, around=around, told=told
        )
        self.cells.append(figures)
        self.write()

    def write(self) -> None:
        """Write what was found so far."""
        plain = [one for one in self.cells if not (one.around or one.told)]
        figures = {
            "within_relative": pooled(plain, "within_relative"),
            "cache_mismatch": pooled(plain, "cache_mismatch"),
            "recovered_s": self.recovered,
            "cells": [asdict(one) for one in self.cells],
            "curves": {slots: asdict(curve) for slots, curve in self.curves.items()},
            "capacity_per_s": self.capacity,
            "run_s": time.monotonic() - self.began,
            "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        }
        self.options.json.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")
        at, last = time.monotonic() - self.began, self.cells[-1].name if self.cells else "faults"
        print(f"{at:5.0f} s: {last}", flush=True)


def main(argv: Sequence[str]) -> int:
    """Run it; gives the exit status."""
    options = _parser().parse_args(argv)
    # An engine's own children outlive it unless we stop them on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = Run(options, Plans(options.seed))
    run.everything()
    show(run.cells, run.curves, run.capacity, run.recovered)
    return 0 if meets_goals(run.cells, run.recovered) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine", description=__doc__)
    parser.add_argument("--python", type=Path, help="of vLLM's environment; else it is simulated")
    parser.add_argument("--json", type=Path, default=Path("engine.json"))
    parser.add_argument("--out", type=Path, default=Path("out/engine"), help="logs and journals")
    parser.add_argument("--requests", type=int, default=200, help="in each cell")
    parser.add_argument("--rounds", type=int, default=2, help="of isolated prompts")
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--loads", type=float, nargs="*", default=[0.5, 1.0, 1.5])
    parser.add_argument("--skip", nargs="+", default=[], choices=["told", "around", "faults"])
    parser.add_argument("--seed", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
