"""Policies side by side: goodput under admission at multiples of what the fleet can do.

Goodput counts every call that was to be made: those that had their first token by their deadline,
counted from the caller's first try, out of all, the calls of a task that was given up among them. A
refusal is a miss, so a policy cannot look good by serving few. Calls that their own callers give up
are load and are not judged. Load is a multiple of the fleet's *measured* capacity (`workloads`).

Every policy gets the same tasks and the same deadlines; routing is Leadsman's for all, so what is
compared is admission alone. Gaps after the first token are not judged, as no policy here moves them
but by how much it admits.
"""

import argparse
import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from multiprocessing import get_context
from os import sched_getaffinity
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, cast

from leadsman.budget import Budget, BudgetError, Unit
from leadsman.policies import BUILT_IN
from leadsman.policy import Policy, PolicyError
from leadsman.units import Seconds
from leadsman_extproc.plugins import kinds

from leadsman_bench.callers import Callers, Fate
from leadsman_bench.simulate import GARBAGE_AT, LivePicker
from leadsman_bench.tasks import Task
from leadsman_bench.virtual import VirtualFleet
from leadsman_bench.workloads import WORKLOADS, Making, Workload

if TYPE_CHECKING:
    from rich.table import Table

LOADS = (1.0, 1.25, 1.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A policy as it is run, with the parameters that are not its own defaults."""

    name: str
    policy: str
    unit: Unit = "request"
    parameters: tuple[tuple[str, float], ...] = ()
    hold: Seconds | None = None

    @property
    def budget(self) -> Budget:
        """Give the budget that runs it."""
        return Budget(
            policy=self.policy,
            unit=self.unit,
            parameters=dict(self.parameters),
            hold=self.hold,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The same for every contestant; counted and warm_up are tasks. per_s: tasks a second."""

    workload: Workload
    per_s: float
    seed: int
    counted: int
    warm_up: int
    making: Making

    def tasks(self) -> tuple[Sequence[str], Iterator[Task]]:
        """Give the names of the tasks that count, and all of them."""
        rows = self.workload.tasks(self.per_s, self.seed, self.warm_up)
        some = list(islice(rows, self.warm_up + self.counted))
        names = [task.name for task in some[self.warm_up :]]
        return names, _chained(some, rows if self.workload.cools else iter(()))


def _chained(some: Iterable[Task], more: Iterator[Task]) -> Iterator[Task]:
    yield from some
    yield from more


@dataclass(slots=True, kw_only=True)
class Result:
    """How one run went; counts of calls that count, and of their tasks."""

    calls: int = 0
    met: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    waits: list[Seconds] = field(default_factory=list)
    tasks: int = 0
    finished: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def goodput(self) -> float:
        """Calls that had their first token in time, of all."""
        return self.met / max(1, self.calls)

    @property
    def admitted(self) -> float:
        """Share that was let in, at the first try or a later one."""
        return len(self.waits) / max(1, self.calls)

    @property
    def ttft_p95(self) -> Seconds | None:
        """Of those that were served."""
        return sorted(self.waits)[int(0.95 * len(self.waits))] if self.waits else None


def run(course: Course, contestant: Contestant, policies: Mapping[str, type[Policy]]) -> Result:
    """Run one policy."""
    names, tasks = course.tasks()
    picker = LivePicker(contestant.budget, Random(f"{course.seed}/decisions"), policies)
    callers = Callers(
        tasks, course.making, course.workload.manners, rng=Random(f"{course.seed}/backoff")
    )
    play(course, picker, callers, names)
    result = judged(course, callers, names)
    result.faults = picker.faults
    return result


def play(course: Course, picker: LivePicker, callers: Callers, names: Sequence[str]) -> None:
    """Let the callers' tasks run, until those that count are over."""
    fleet = VirtualFleet(course.workload.specs, picker, callers, seed=course.seed)
    left = set(names)
    for number, _ in enumerate(fleet.run(callers, iter(()))):
        if course.workload.cools and number % 50 == 0:
            left = {one for one in left if not callers.is_over(one)}
            if not left:
                break


def judged(course: Course, callers: Callers, names: Sequence[str]) -> Result:
    """Hold each call that counts against its deadline."""
    counted = set(names)
    result = Result(tasks=len(names), finished=callers.finished(names))
    for name in names:
        calls = callers.progress[name].task.calls
        result.calls += sum(call.hangs_up is None for call in calls)
    for fate in callers.fates:
        if fate.task.name in counted and fate.call.hangs_up is None:
            _judge(course.making, fate, result)
    return result


def _judge(making: Making, fate: Fate, result: Result) -> None:
    if fate.stream is None:
        if fate.refused is not None:
            result.refused[fate.refused.reason] += 1
    elif fate.was_served and fate.ttft is not None:
        result.waits.append(fate.ttft)
        result.met += fate.ttft <= making.deadline(fate.task, fate.call)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process runs: all contestants on the same tasks at one load, in capacities."""

    workload: str
    capacity: float
    load: float
    seed: int
    contestants: tuple[Contestant, ...]
    counted: int | None = None


Row = tuple[Job, Contestant, Result]


def work(job: Job) -> list[Row]:
    """Run a job."""
    gc.set_threshold(GARBAGE_AT)
    workload = known_workload(job.workload)
    course = Course(
        workload=workload,
        per_s=job.capacity * job.load,
        seed=job.seed,
        counted=job.counted or workload.counted,
        warm_up=workload.warm_up,
        making=workload.making(job.seed),
    )
    known = kinds()
    return [(job, one, run(course, one, known)) for one in job.contestants]


@cache
def known_workload(name: str) -> Workload:
    """Give a workload; made once a process."""
    return WORKLOADS[name]()


def side_by_side(jobs: Sequence[Job]) -> Iterator[list[Row]]:
    """Run jobs on all cores that this process may use; yields each as it ends."""
    cores = len(sched_getaffinity(0))
    if cores == 1 or len(jobs) == 1:
        yield from map(work, jobs)
        return
    with ProcessPoolExecutor(min(cores, len(jobs)), get_context("spawn")) as pool:
        for done in as_completed([pool.submit(work, job) for job in jobs]):
            yield done.result()


def entered(names: Sequence[str], hold: Seconds | None = None) -> Iterator[Contestant]:
    """Enter policies, each as NAME or NAME/unit; where `hold` is told, once more with holding."""
    for name in names:
        policy, _, unit = name.partition("/")
        one = Contestant(name=name, policy=policy, unit=cast("Unit", unit or "request"))
        yield one
        if hold is not None:
            yield replace(one, name=f"{name}, held ≤ {hold:g} s", hold=hold)


def main(argv: list[str]) -> int:
    """Run `leadsman bench policies`."""
    arguments = _parser().parse_args(argv)
    try:
        known = kinds()
        names = arguments.policy or list(BUILT_IN)
        contestants = tuple(entered(names, arguments.hold))
        for one in contestants:
            LivePicker(one.budget, Random(0), known).check()
    except (PolicyError, BudgetError) as error:
        print(f"bench policies: {error}", file=sys.stderr)
        return 2
    capacity = known_workload(arguments.workload).measure()
    jobs = [
        Job(
            workload=arguments.workload,
            capacity=capacity,
            load=load,
            seed=seed,
            contestants=contestants,
            counted=arguments.tasks,
        )
        for load in arguments.load or LOADS
        for seed in range(1, arguments.repeats + 1)
    ]
    rows: list[Row] = []
    for found in side_by_side(jobs):
        rows += found
        for row in found:
            print(line(row), file=sys.stderr, flush=True)
    _print(drawn(rows))
    return 0


def line(row: Row) -> str:
    """Say the figures of one run."""
    job, contestant, result = row
    return (
        f"{job.workload:12} {contestant.name:22} {job.load:4.2f} x  seed {job.seed}  "
        f"goodput {result.goodput:.3f}  admitted {result.admitted:.3f}  "
        f"tasks {result.finished}/{result.tasks}  {dict(result.faults) or ''}"
    )


def drawn(rows: Sequence[Row]) -> "Table":
    """Draw goodput (mean, least and most of the repeats) by policy and load."""
    from rich import box
    from rich.table import Table

    loads = sorted({job.load for job, _, _ in rows})
    table = Table(title="Goodput under admission", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("policy")
    for load in loads:
        table.add_column(f"{load:g} x", justify="right")
    for name in dict.fromkeys(one.name for _, one, _ in rows):
        cells = [
            [r.goodput for job, one, r in rows if one.name == name and job.load == load]
            for load in loads
        ]
        table.add_row(name, *(f"{mean(c):.3f} ({min(c):.3f}-{max(c):.3f})" for c in cells))
    return table


def _print(table: "Table") -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 110).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="leadsman bench policies", description=main.__doc__)
    parser.add_argument(
        "--policy",
        action="append",
        help="NAME, or NAME/session, NAME/tenant (default: all that are built in)",
    )
    parser.add_argument(
        "--hold", type=float, help="run each once more, holding requests so many seconds at most"
    )
    parser.add_argument("--load", action="append", type=float, help="in capacities (1 to 2)")
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="conversation")
    parser.add_argument("--tasks", type=int, help="counted tasks of a run; of one call, but agents")
    parser.add_argument("--repeats", type=int, default=2, help="runs, each with a seed of its own")
    return parser
