"""One policy at one load, some repeats: what was decided and what came of it, in four files each.

`manifest.json` says all that is needed to judge and repeat a run, `summary.json` its figures,
`decisions.jsonl` each try that was decided with the signals as they were last scraped before it and
what came of it, `outcomes.jsonl` each call as its caller saw it. The names are AdmitPerf's: a line
of decisions.jsonl is one of a log of AdmitPerf 0.0.2 (its tools group runs by what the lines say of
themselves), the other files have the keys of its first generation. What those do not know is beside
it under names of our own.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from random import Random
from statistics import median

import msgspec
from leadsman.units import Seconds

from leadsman_bench.agents import tasks as agents_tasks
from leadsman_bench.callers import Manners
from leadsman_bench.demo_plan import OUTPUT_SHARE, PIECE_TOKENS
from leadsman_bench.formats import load as load_trace
from leadsman_bench.live.deployment import Deployment, DeploymentError, start_picker
from leadsman_bench.live.play import TaskPlay, Told
from leadsman_bench.live.scraping import Sample, Scraper
from leadsman_bench.processes import children
from leadsman_bench.tasks import Call, Task
from leadsman_bench.traces import TraceRequest, bundled, scaled, spread

APART = 10**7
"""Between the pieces of two plays: no prompt of one is found in the other's caches."""

SETTLED_AFTER: Seconds = 1.5
PROBE_TOKENS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is played, and to whom. slack, factor: a call's deadline, over its unloaded TTFT.

    trace: a file; None: the shipped conversations, or agents where `workload` says so.
    """

    workload: str
    trace: Path | None
    manners: Manners
    policy: str
    parameters: Mapping[str, float]
    unit: str
    load: float
    seconds: Seconds
    warm_up: Seconds
    repeats: int
    seed: int
    slack: Seconds
    factor: float
    experiment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """TTFT on the idle deployment: so long, and so long a token of the prompt."""

    base: Seconds
    per_token: Seconds

    def of(self, row: TraceRequest) -> Seconds:
        """Give a prompt's."""
        return self.base + self.per_token * row.input_tokens


def tasks_of(plan: Plan, per_s: float, seconds: Seconds, seed: int) -> list[Task]:
    """Give the tasks of so many seconds at so many calls a second; no two seeds share a prompt."""
    if plan.trace is not None:
        made = load_trace(plan.trace)
    elif plan.workload == "agents":
        return [
            _apart(task, seed)
            for task in islice(agents_tasks(tasks_per_s=per_s / 45, seed=seed), 10_000)
            if task.at < seconds
        ]
    else:
        rows = spread(
            scaled(bundled(), piece_tokens=PIECE_TOKENS, output=OUTPUT_SHARE), rng=Random(seed)
        )
        made = [Task(name=f"r{n}", calls=(Call(row=row),)) for n, row in enumerate(rows)]
    return [_apart(task, seed) for task in paced(made, per_s, seconds)]


def paced(tasks: Sequence[Task], per_s: float, seconds: Seconds) -> list[Task]:
    """Press or stretch a trace's own times to a rate of calls; it begins again at its end."""
    begin, end = tasks[0].at, tasks[-1].at
    calls = sum(len(task.calls) for task in tasks)
    span = calls / per_s
    factor = span / max(end - begin, 1e-9)
    rounds = math.ceil(seconds / span)
    found = []
    for number in range(rounds):
        for task in tasks:
            at = number * span + (task.at - begin) * factor
            if at < seconds:
                found.append(_moved(task, at, number))
    return found


def _moved(task: Task, at: Seconds, number: int) -> Task:
    begin = task.at
    calls = tuple(
        replace(
            call,
            row=replace(
                call.row,
                at=at + call.row.at - begin,
                pieces=tuple(one + number * APART * 100 for one in call.row.pieces),
            ),
        )
        for call in task.calls
    )
    return replace(task, name=f"{task.name}.{number}", calls=calls)


def _apart(task: Task, seed: int) -> Task:
    calls = tuple(
        replace(
            call,
            row=replace(call.row, pieces=tuple(one + seed * APART for one in call.row.pieces)),
        )
        for call in task.calls
    )
    return replace(task, name=f"{seed}-{task.name}", calls=calls)


def bounded(tasks: Sequence[Task], plan: Plan, unloaded: Unloaded) -> list[Task]:
    """Give each call its deadline as a TTFT objective."""
    return [
        replace(
            task,
            calls=tuple(
                replace(
                    call,
                    wishes=replace(
                        call.wishes, ttft=plan.slack + plan.factor * unloaded.of(call.row)
                    ),
                )
                for call in task.calls
            ),
        )
        for task in tasks
    ]


def measure_unloaded(up: Deployment, plan: Plan) -> Unloaded:
    """Ask for a few answers one after another, short and long prompts, on the idle deployment."""
    seen: dict[int, list[Seconds]] = {}
    for number, tokens in enumerate((PROBE_TOKENS, 8 * PROBE_TOKENS) * 3):
        row = TraceRequest(
            at=0.0,
            input_tokens=tokens,
            output_tokens=2,
            pieces=(APART * 90 + plan.seed * 100 + number,),
            piece_tokens=tokens,
        )
        play = _play(up, [Task(name=f"probe-{number}", calls=(Call(row=row),))], plan)
        [told] = asyncio.run(play.run())
        if told.ttft is None:
            raise DeploymentError(f"a probe was answered {told.tries[-1].status} and no token")
        seen.setdefault(tokens, []).append(told.ttft)
    short, long = (median(seen[n]) for n in (PROBE_TOKENS, 8 * PROBE_TOKENS))
    per_token = max(0.0, long - short) / (7 * PROBE_TOKENS)
    return Unloaded(base=max(0.0, short - per_token * PROBE_TOKENS), per_token=per_token)


def _play(up: Deployment, tasks: Sequence[Task], plan: Plan, linger: Seconds = 60.0) -> TaskPlay:
    return TaskPlay(up.url, tasks, plan.manners, up.model, Random(plan.seed), linger=linger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One repeat as it went. warm_up: calls that began before it are not counted."""

    plan: Plan
    repeat: int
    unloaded: Unloaded
    capacity: float
    began_at: Seconds
    wall: Seconds
    told: Sequence[Told]
    samples: Sequence[Sample]
    versions: Sequence[str | None]

    @property
    def counted(self) -> list[Told]:
        """The calls that count."""
        return [one for one in self.told if one.began >= self.plan.warm_up]


def repeats(
    up: Deployment, plan: Plan, folder: Path, watch: Callable[[int, TaskPlay, Seconds], None]
) -> list[Ran]:
    """Run all repeats of a plan with one picker.

    watch: is told twice a second how a play stands.
    """
    if up.capacity_per_s is None:
        raise DeploymentError(
            "the deployment's capacity is not measured yet: `leadsman bench smoke`"
        )
    found = []
    budget = {
        "name": "bench",
        "policy": plan.policy,
        "parameters": dict(plan.parameters),
        "unit": plan.unit,
    }
    folder.mkdir(parents=True, exist_ok=True)
    with children(folder / "logs") as held:
        start_picker(held, up, budget, folder / "journal")
        time.sleep(SETTLED_AFTER)
        unloaded = measure_unloaded(up, plan)
        for repeat in range(1, plan.repeats + 1):
            tasks = tasks_of(
                plan,
                up.capacity_per_s * plan.load,
                plan.warm_up + plan.seconds,
                plan.seed + repeat,
            )
            play = _play(up, bounded(tasks, plan, unloaded), plan)
            found.append(_repeat(up, plan, repeat, unloaded, play, watch))
    return found


def _repeat(  # noqa: PLR0913, PLR0917  # what a repeat is
    up: Deployment,
    plan: Plan,
    repeat: int,
    unloaded: Unloaded,
    play: TaskPlay,
    watch: Callable[[int, TaskPlay, Seconds], None],
) -> Ran:
    scraper, began_at, began = Scraper(up.engines), time.time(), time.monotonic()

    async def both() -> None:
        playing = asyncio.create_task(play.run())
        scraping = asyncio.create_task(scraper.run())
        while not playing.done():
            await asyncio.wait([playing], timeout=0.5)
            watch(repeat, play, time.monotonic() - began)
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
        await playing

    asyncio.run(both())
    assert up.capacity_per_s is not None
    return Ran(
        plan=plan,
        repeat=repeat,
        unloaded=unloaded,
        capacity=up.capacity_per_s,
        began_at=began_at,
        wall=time.monotonic() - began,
        told=play.told,
        samples=scraper.samples,
        versions=scraper.versions,
    )


def measure_capacity(up: Deployment, seconds: Seconds, folder: Path, seed: int) -> float:
    """Measure the calls a second that the deployment gets done of a backlog, nobody refused."""
    plan = Plan(
        workload="conversation",
        trace=None,
        manners="leave",
        policy="none",
        parameters={},
        unit="request",
        load=1.0,
        seconds=seconds,
        warm_up=0.0,
        repeats=1,
        seed=seed,
        slack=0.0,
        factor=0.0,
        experiment="capacity",
    )
    with children(folder / "logs") as held:
        start_picker(held, up, {"name": "bench", "policy": "none"}, folder / "capacity")
        time.sleep(SETTLED_AFTER)
        backlog = 128 * len(up.engines)
        rows = tasks_of(plan, backlog * 1000.0, 1.0, seed)[:backlog]
        play = _play(up, rows, plan, linger=seconds)
        asyncio.run(play.run())
    ends = sorted(
        one.tries[-1].ended_at
        for one in play.told
        if one.was_served and one.tries[-1].ended_at is not None
    )
    if len(ends) < 10:
        raise DeploymentError(f"only {len(ends)} of {len(rows)} calls ended in {seconds:g} s")
    middle = ends[: max(10, int(0.9 * len(ends)))]
    return len(middle) / middle[-1]


def write_json(path: Path, content: object) -> None:
    """Write a JSON file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
