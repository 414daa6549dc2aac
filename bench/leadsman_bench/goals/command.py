"""`leadsman bench goals`: the goals of admission, each measured with fresh seeds and its spread.

Goodput is told as a rate: calls that had their first token in time, per second, in units of the
measured capacity. So figures at different loads can be held against each other: at twice the load
half of the arrivals are all that a fleet can serve, and a policy keeps its goodput if as many a
second are served in time as at load 1. At one load it orders policies as the share of arrivals
does, which is this rate over the load; both are in the file.

A rival is better beyond the spread where the differences to it, repeat by repeat on the same
requests, are below zero with 95 % confidence (Student's t).
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf, sqrt
from multiprocessing import get_context
from os import sched_getaffinity
from pathlib import Path
from statistics import fmean, stdev
from typing import TypeAlias, TypeVar

import msgspec
from leadsman.policies import BUILT_IN
from leadsman.units import Seconds

from leadsman_bench.contest import LOADS, Contestant, Job, Row, known_workload, line, side_by_side
from leadsman_bench.goals import bounds, fairness, speed
from leadsman_bench.report import Line, percent, table
from leadsman_bench.workloads import WORKLOADS

OURS = "predicted_wait"
BY_SESSION = "predicted_wait/session"
REPEATS = 5
FIRST_SEED = 101
T_95 = {2: 6.31, 3: 2.92, 4: 2.35, 5: 2.13, 6: 2.02, 7: 1.94, 8: 1.89, 9: 1.86, 10: 1.83}
"""Student's one-sided 95 % by number of repeats; 1.65 for more."""

T = TypeVar("T")
Goodput: TypeAlias = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One goal, what was measured of it, and whether it was met; None where it was not measured."""

    goal: str
    measured: str
    met: bool | None


def below(ours: Sequence[float], rival: Sequence[float]) -> bool:
    """Whether ours are below a rival's beyond the spread of their differences."""
    differences = [a - b for a, b in zip(ours, rival, strict=True)]
    mean = fmean(differences)
    if len(differences) < 2:
        return mean < 0
    error = stdev(differences) / sqrt(len(differences))
    return mean + T_95.get(len(differences), 1.65) * error < 0


def contestants(workload: str) -> tuple[Contestant, ...]:
    """List who runs: all that is built in, at its defaults, and what an example has beside."""
    found = [Contestant(name=name, policy=name) for name in BUILT_IN]
    if workload == "agents":
        found.append(Contestant(name=BY_SESSION, policy=OURS, unit="session"))
    if workload == "a10":
        talk = (("limit", 2),)
        found.append(Contestant(name="queue_cap/2", policy="queue_cap", parameters=talk))
    return tuple(found)


def goodput(rows: Iterable[Row]) -> dict[str, Goodput]:
    """Collect the rates by workload, policy and load; repeats in the order of their seeds."""
    found: dict[str, Goodput] = {}
    for job, one, result in sorted(rows, key=lambda row: row[0].seed):
        by_load = found.setdefault(job.workload, {}).setdefault(one.name, {})
        by_load.setdefault(f"{job.load:g}", []).append(result.goodput * job.load)
    return found


def verdicts(workload: str, found: Goodput) -> list[Verdict]:
    """Hold Leadsman's goodput against that of all others, and against its own at load 1."""
    ours = found[OURS]
    told = []
    for load in ours:
        rivals = {name: by[load] for name, by in found.items() if not name.startswith(OURS)}
        best = max(rivals, key=lambda name: fmean(rivals[name]))
        better = [name for name, theirs in rivals.items() if below(ours[load], theirs)]
        told.append(
            Verdict(
                goal=f"{workload}, {load} x: no rival is better beyond the spread",
                measured=f"{_spread(ours[load])}, {best} {_spread(rivals[best])}",
                met=not better,
            )
        )
    if "1" in ours and "2" in ours:
        kept = fmean(ours["2"]) / fmean(ours["1"])
        told.append(
            Verdict(
                goal=f"{workload}: 2 x keeps ≥ 95 % of 1 x",
                measured=percent(kept),
                met=kept >= 0.95,
            )
        )
    return told


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} ({min(values):.3f}-{max(values):.3f})"


@dataclass(slots=True)
class Found:
    """All that was measured; what was left out is None or empty.

    hold: for which requests were held while sides were measured; None: nobody was.
    """

    rows: list[Row]
    sides: list[bounds.Sides]
    tasks: dict[str, list[int]]
    quiet: list[tuple[float, float]]
    speed: dict[str, float]
    hold: Seconds | None = None

    def underprediction(self) -> float | None:
        """Share of admitted bounded requests that waited longer than their bound."""
        return _share((one.underpredicted for one in self.sides), (s.admitted for s in self.sides))

    def false_alarm(self) -> float | None:
        """Share of refused bounded requests that would have been in time, by hindsight."""
        return _share((one.false_alarms for one in self.sides), (s.refused for s in self.sides))

    def by_probes(self) -> float | None:
        """Share of probes that were in time."""
        return _share((one.probes_in_time for one in self.sides), (s.probes for s in self.sides))

    def tasks_ratio(self) -> float | None:
        """Give agents' tasks finished at twice the load by session over those by request."""
        by_request = sum(self.tasks.get(OURS, []))
        by_session = sum(self.tasks.get(BY_SESSION, []))
        if not self.tasks:
            return None
        return by_session / by_request if by_request else inf

    def fairness_ratio(self) -> float | None:
        """Divide the quiet tenant's share let in beside ten times as much by that before."""
        if not self.quiet:
            return None
        return fmean(noisy for _, noisy in self.quiet) / fmean(even for even, _ in self.quiet)


def _share(part: Iterable[int], whole: Iterable[int]) -> float | None:
    total = sum(whole)
    return sum(part) / total if total else None


def figures(found: Found) -> dict[str, object]:
    """Give what the file holds."""
    rates = goodput(found.rows)
    return {
        "goodput": rates.get("conversation", {}),
        "goodput_by_workload": rates,
        "goodput_unit": "calls in time per second, in measured capacities; over the load: a share",
        "hold": found.hold,
        "underprediction": found.underprediction(),
        "false_alarm": found.false_alarm(),
        "false_alarm_by_probes": found.by_probes(),
        "agent_tasks_ratio": found.tasks_ratio(),
        "fairness_ratio": found.fairness_ratio(),
        "virtual_speedup": found.speed.get("trace"),
        "virtual_speedup_half_load": found.speed.get("half"),
        "sides": [asdict(one) for one in found.sides],
        "agent_tasks": found.tasks,
        "quiet_tenant_let_in": found.quiet,
        "goals": [asdict(one) for one in all_verdicts(found)],
    }


def all_verdicts(found: Found) -> list[Verdict]:
    """Hold everything against its goal."""
    told = [v for name, by in goodput(found.rows).items() for v in verdicts(name, by)]
    if found.sides:
        told += [
            _at_most("underpredicted, of admitted with a bound", found.underprediction()),
            _at_most("false alarms by hindsight, of refused with a bound", found.false_alarm()),
            Verdict(
                goal="hindsight and probes agree within their error",
                measured=f"probes in time {percent(found.by_probes())}",
                met=bounds.agree(_added(found.sides)),
            ),
        ]
    ratio = found.tasks_ratio()
    if ratio is not None:
        told.append(
            Verdict(
                goal="agents' tasks finished at 2 x, by session ≥ 1.5 x by request",
                measured=f"{ratio:.2f} x",
                met=ratio >= 1.5,
            )
        )
    if found.quiet:
        even, noisy = zip(*found.quiet, strict=True)
        told.append(
            Verdict(
                goal="a tenant within its share: no more refusals beside ten times as much",
                measured=f"let in {_spread(even)}, then {_spread(noisy)}",
                met=not below(noisy, even),
            )
        )
    if "trace" in found.speed:
        quick = found.speed["trace"]
        told.append(
            Verdict(
                goal="virtual time ≥ 50 x real time, 64 workers, the trace's own pace",
                measured=f"{quick:.0f} x",
                met=quick >= 50,
            )
        )
    return told


def _at_most(what: str, share: float | None) -> Verdict:
    met = None if share is None else share <= 0.02
    return Verdict(goal=f"{what} ≤ 2 %", measured=percent(share), met=met)


def _added(sides: Sequence[bounds.Sides]) -> bounds.Sides:
    rows = [asdict(one) for one in sides]
    return bounds.Sides(**{name: sum(row[name] for row in rows) for name in rows[0]})


def main(argv: list[str]) -> int:
    """Run `leadsman bench goals`."""
    arguments = _parser().parse_args(argv)
    only = set(arguments.only or ("goodput", "bounds", "agents", "fairness", "speed"))
    seeds = range(arguments.seed, arguments.seed + arguments.repeats)
    began = time.monotonic()
    found = Found([], [], {}, [], {})
    capacities = {name: known_workload(name).measure() for name in arguments.workload or WORKLOADS}
    for name, per_s in capacities.items():
        _say(f"{name}: capacity measured, {per_s * known_workload(name).calls:.2f} calls a second")
    if "goodput" in only:
        _contest(found, capacities, seeds, arguments.tasks)
    if "bounds" in only and "conversation" in capacities:
        jobs = _jobs("conversation", capacities, LOADS, seeds)
        found.hold = arguments.hold or None
        found.sides = _all(partial(bounds.measure, hold=found.hold), jobs, "bounds")
    if "agents" in only and "agents" in capacities:
        _agents(found, capacities, seeds)
    if "fairness" in only and "conversation" in capacities:
        found.quiet = _all(
            fairness.measure, _jobs("conversation", capacities, [1.0], seeds), "fairness"
        )
    if "speed" in only:
        _speed(found)
    _tell(found, arguments.json)
    _say(f"{time.monotonic() - began:.0f} s")
    return 0


def _contest(
    found: Found, capacities: Mapping[str, float], seeds: Iterable[int], tasks: int | None
) -> None:
    jobs = [
        replace(job, contestants=contestants(name), counted=tasks)
        for name in capacities
        for job in _jobs(name, capacities, LOADS, seeds)
    ]
    for rows in side_by_side(jobs):
        found.rows += rows
        for row in rows:
            _say(line(row))


def _agents(found: Found, capacities: Mapping[str, float], seeds: Sequence[int]) -> None:
    """Count finished tasks at twice the load, from the contest's runs where it ran."""
    rows = [row for row in found.rows if row[0].workload == "agents" and row[0].load == 2.0]
    if not rows:
        two = tuple(one for one in contestants("agents") if one.name in {OURS, BY_SESSION})
        jobs = _jobs("agents", capacities, [2.0], seeds)
        rows = [
            row
            for part in side_by_side([replace(j, contestants=two) for j in jobs])
            for row in part
        ]
    for name in (OURS, BY_SESSION):
        found.tasks[name] = [result.finished for _, one, result in rows if one.name == name]
    _say(f"agents' tasks finished at 2 x: {found.tasks}")


def _speed(found: Found) -> None:
    found.speed["trace"] = speed.measure()
    _say(f"virtual time: {found.speed['trace']:.0f} x real time at the trace's own pace")
    found.speed["half"] = speed.measure(speed.half_capacity())
    _say(f"virtual time: {found.speed['half']:.1f} x real time at half the capacity")


def _jobs(
    workload: str, capacities: Mapping[str, float], loads: Iterable[float], seeds: Iterable[int]
) -> list[Job]:
    return [
        Job(workload=workload, capacity=capacities[workload], load=load, seed=seed, contestants=())
        for seed in seeds
        for load in loads
    ]


def _all(measure: Callable[[Job], T], jobs: Sequence[Job], what: str) -> list[T]:
    """Run a measurement of each job, side by side."""
    cores = len(sched_getaffinity(0))
    with ProcessPoolExecutor(min(cores, len(jobs)), get_context("spawn")) as pool:
        found = list(pool.map(measure, jobs))
    for job, one in zip(jobs, found, strict=True):
        _say(f"{what} {job.load:g} x seed {job.seed}: {one}")
    return found


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _tell(found: Found, path: Path | None) -> None:
    from rich.console import Console

    shown = [Line(what=one.goal, value=one.measured, met=one.met) for one in all_verdicts(found)]
    Console(width=None if sys.stdout.isatty() else 150).print(table("Goals of admission", shown))
    if path is not None:
        content = msgspec.json.encode(figures(found))
        path.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leadsman bench goals", description="Measure what is promised of admission."
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs, each with its own seed")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="the first repeat's")
    parser.add_argument("--tasks", type=int, help="counted tasks of a run")
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS))
    parser.add_argument(
        "--hold",
        type=float,
        default=bounds.HOLD,
        help="seconds for which bounded requests are held (default 30; 0: nobody is)",
    )
    parser.add_argument(
        "--only", action="append", choices=["goodput", "bounds", "agents", "fairness", "speed"]
    )
    return parser
