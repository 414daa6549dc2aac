"""Does a tenant within its share see more refusals when another sends ten times as much?

Two tenants of equal weight hold conversations with the same fleet. The quiet one sends a quarter of
capacity, the other as much, then ten times that. What counts is the quiet one's share of calls that
were let in: the same requests, at the same moments, in both runs.
"""

from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from itertools import takewhile
from random import Random

from leadsman.budget import Budget

from leadsman_bench.callers import Callers
from leadsman_bench.contest import Course, Job, known_workload, play
from leadsman_bench.simulate import LivePicker
from leadsman_bench.tasks import Task

QUIET = 0.25
NOISY = 10
PIECES_APART = 10**9
"""Between the pieces of the two tenants' prompts: they share nothing."""


def measure(job: Job) -> tuple[float, float]:
    """Give the quiet tenant's share of calls let in, beside its equal and beside ten times that."""
    return _admitted(job, 1), _admitted(job, NOISY)


def _admitted(job: Job, times: int) -> float:
    workload = known_workload(job.workload)
    per_s, counted = job.capacity * QUIET, job.counted or workload.counted
    making = workload.making(job.seed)
    course = Course(
        workload=workload,
        per_s=per_s,
        seed=job.seed,
        counted=counted,
        warm_up=workload.warm_up // 2,
        making=making,
    )
    names, quiet = course.tasks()
    quiet_tasks = [_owned(task, "quiet") for task in quiet]
    end = quiet_tasks[-1].at
    other = workload.make_tasks(per_s * times, job.seed + 1000)
    noisy = takewhile(lambda task: task.at < end, (_owned(task, "noisy") for task in other))
    budget = Budget(unit="tenant")
    picker = LivePicker(budget, Random(f"{job.seed}/decisions"))
    merged: Iterator[Task] = merge(quiet_tasks, noisy, key=lambda task: task.at)
    callers = Callers(merged, making, "leave", rng=Random(0))
    play(course, picker, callers, [f"quiet/{name}" for name in names])
    counted_names = {f"quiet/{name}" for name in names}
    fates = [fate for fate in callers.fates if fate.task.name in counted_names]
    return sum(fate.was_served for fate in fates) / len(fates)


def _owned(task: Task, tenant: str) -> Task:
    """Give a task to a tenant, with prompts that no other tenant has."""
    apart = PIECES_APART if tenant == "noisy" else 0
    calls = tuple(
        replace(call, row=replace(call.row, pieces=tuple(p + apart for p in call.row.pieces)))
        for call in task.calls
    )
    return replace(task, name=f"{tenant}/{task.name}", tenant=tenant, calls=calls)
