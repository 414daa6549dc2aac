"""The three workloads that policies are compared on, each with its fleet and its measured capacity.

conversation: people talking to a fleet of four unlike workers, as the Mooncake trace has it.
Callers who are refused go elsewhere. agents: tasks of forty to fifty calls (`agents`) on one
worker; callers obey Retry-After. a10: the example of the AdmitPerf talk, half a billion parameters
behind four sequences, where all waiting is for a slot and no cache ever fills.

Capacity is measured with nobody refused, in tasks a second: what the workers get done of a backlog
of the same requests, or, where calls follow from each other, of the best number of agents at once,
each busy with one task after another. 1 x is the load that they can just serve. A deadline is a
TTFT objective: `slack` and so many times what the prompt takes on the idle fleet's median worker.
There a task finds cached what its own calls brought, and nothing else: the twentieth call of an
agent has no more time than the second because its prompt is longer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

from leadsman.budget import Budget
from leadsman.keys import block_keys
from leadsman.units import Keys, RequestId, Seconds, Tokens
from leadsman_engines.simulated.presets import presets

from leadsman_bench import agents
from leadsman_bench.callers import Callers, Manners
from leadsman_bench.conversation import bundled_model, generate
from leadsman_bench.offers import BACKLOG, SEED, capacity, measured_capacity, offer
from leadsman_bench.prompts import token_ids
from leadsman_bench.scenario import WorkerSpec, changed, wishes, workers
from leadsman_bench.simulate import LivePicker
from leadsman_bench.tasks import Call, Task, single
from leadsman_bench.traces import TraceRequest
from leadsman_bench.virtual import Offer, VirtualFleet

SMALL = (0, 4, 7, 11)
"""Which of the sixteen workers run: one of each large kind."""

A10_PROMPT, A10_ANSWER = (60, 200), (20, 88)
"""Tokens: four slots then end nine in a second, 63 % of the talk's fourteen."""

SLOTS, AGENTS_KV = 16, 160_000
"""Of the agents' worker: its cache holds the contexts of some eight agents, as on a shared one."""

CONCURRENT = (8, 10, 12, 14, 16)
"""Agents at once with which the agents' capacity is measured; the best counts."""

TASKS = 3
FIRST_TASK: Seconds = 10.0
"""Tasks of each of them, and in what time they begin. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What arrives, and where. calls: of a task, in the mean.

    warm_up: tasks at half the load before those that count: speeds and lengths are learned there.
    counted: tasks that count, unless a run says otherwise. measure: finds the capacity. cools: load
    goes on until the last task that counts is over, as agents' late calls must not meet a fleet
    that others have left.
    """

    name: str
    specs: Sequence[WorkerSpec]
    manners: Manners
    calls: float
    warm_up: int
    counted: int
    slack: Seconds
    factor: float
    cools: bool
    make_tasks: Callable[[float, int], Iterator[Task]]
    measure: Callable[[], float]

    def tasks(self, per_s: float, seed: int, warm_up: int) -> Iterator[Task]:
        """Yield tasks for ever: the warm-up at half the pace, then all of it."""
        began = 2 * warm_up / per_s
        for task in self.make_tasks(per_s, seed):
            at = 2 * task.at if 2 * task.at < began else task.at + began / 2
            yield moved(task, at - task.at)

    def making(self, seed: int, *, deadlines: bool = True) -> "Making":
        """Give what makes the offers of its calls."""
        return Making(
            specs=self.specs,
            seed=seed,
            slack=self.slack,
            factor=self.factor,
            deadlines=deadlines,
        )


def moved(task: Task, by: Seconds) -> Task:
    """Move a task in time."""
    if not by:
        return task
    calls = tuple(replace(call, row=replace(call.row, at=call.row.at + by)) for call in task.calls)
    return replace(task, calls=calls)


@dataclass(slots=True, kw_only=True)
class Making:
    """Makes offers of calls; what does not change from run to run is made once.

    slack, factor: of the workload. deadlines: whether each call has a TTFT objective, or the bounds
    that callers wish.
    """

    specs: Sequence[WorkerSpec]
    seed: int
    slack: Seconds = 5.0
    factor: float = 2.0
    deadlines: bool = True
    _keys: dict[tuple[tuple[int, ...], Tokens], Mapping[Tokens, Keys]] = field(default_factory=dict)
    _alone: Callable[[Tokens, Tokens], Seconds] = field(init=False)
    _sizes: list[Tokens] = field(init=False)

    def __post_init__(self) -> None:
        self._alone = unloaded(self.specs[len(self.specs) // 2])
        self._sizes = sorted({spec.settings.block_size for spec in self.specs})

    def __call__(self, task: Task, call: Call, name: RequestId) -> Offer:
        """Make the offer of a call."""
        wanted = wishes(call.row, Random(f"{self.seed}/callers/{task.name}/{call.row.at}"))
        place = call.row.pieces, call.row.input_tokens
        if place not in self._keys:
            tokens = token_ids(call.row)
            self._keys[place] = {size: block_keys(tokens, size, SEED) for size in self._sizes}
        made = offer(call.row, wanted, name=name, block_sizes=())
        request = replace(made.request, keys=self._keys[place])
        if self.deadlines:
            deadline = self.deadline(task, call)
            request = replace(request, max_queue_wait=None, ttft_objective=deadline)
        return replace(made, request=request)

    def deadline(self, task: Task, call: Call) -> Seconds:
        """Give a call's TTFT objective."""
        tokens = call.row.input_tokens
        cached = min(task.told_before(call), tokens - 1)
        return self.slack + self.factor * self._alone(tokens, cached)


def unloaded(spec: WorkerSpec) -> Callable[[Tokens, Tokens], Seconds]:
    """Say how long a worker takes for a prompt alone, of which so much is cached; no chance."""
    budget = spec.reported.max_num_batched_tokens

    def alone(tokens: Tokens, cached: Tokens) -> Seconds:
        starts = range(cached, tokens, budget)
        chunks = [(start, min(budget, tokens - start)) for start in starts]
        return sum(spec.hardware.step_seconds([(size, at)], []) for at, size in chunks)

    return alone


def conversation() -> Workload:
    """Give the conversation trace's workload."""
    all_of, model = workers(), bundled_model()
    specs = [all_of[place] for place in SMALL]

    def made(per_s: float, seed: int) -> Iterator[Task]:
        return single(generate(model, requests_per_s=per_s, seed=seed))

    return Workload(
        name="conversation",
        specs=specs,
        manners="leave",
        measure=lambda: sum(capacity(specs, model, seed=1)),
        calls=1.0,
        warm_up=200,
        counted=400,
        slack=5.0,
        factor=2.0,
        cools=False,
        make_tasks=made,
    )


def agentic() -> Workload:
    """Give the agents' workload."""
    base = workers()[0]
    settings = changed(
        base.settings,  # type: ignore[arg-type]  # a vLLM's
        max_num_seqs=SLOTS,
        num_blocks=AGENTS_KV // base.settings.block_size,
    )
    specs = [replace(base, settings=settings)]
    return Workload(
        name="agents",
        specs=specs,
        manners="obey",
        measure=lambda: most_done(specs),
        calls=agents.MEAN_CALLS,
        warm_up=10,
        counted=16,
        slack=2.0,
        factor=2.0,
        cools=True,
        make_tasks=lambda per_s, seed: agents.tasks(tasks_per_s=per_s, seed=seed),
    )


def a10() -> Workload:
    """Give the A10 example."""
    preset = presets()["qwen2.5-0.5b-a10g"]
    spec = WorkerSpec(name="a10", settings=preset.settings, hardware=preset.hardware)
    return Workload(
        name="a10",
        specs=[spec],
        manners="leave",
        measure=lambda: measured_capacity(spec, islice(a10_rows(1.0, 1), BACKLOG), seed=1),
        calls=1.0,
        warm_up=300,
        counted=600,
        slack=1.0,
        factor=2.0,
        cools=False,
        make_tasks=lambda per_s, seed: single(a10_rows(per_s, seed)),
    )


def most_done(specs: Sequence[WorkerSpec]) -> float:
    """Measure the agents' tasks a second at the best number of agents at once."""
    return max(_done(specs, number) for number in CONCURRENT) / agents.MEAN_CALLS


def _done(specs: Sequence[WorkerSpec], at_once: int) -> float:
    """Keep so many agents busy; gives their calls a second while all contexts are of all ages.

    That is from the end of a sixth of the calls to that of two thirds: before, contexts are short,
    and after, some agents have no more tasks.
    """
    some = agents.tasks(tasks_per_s=1.0, seed=1)
    apart = FIRST_TASK / at_once
    busy = [_one_after_another(list(islice(some, TASKS)), at * apart) for at in range(at_once)]
    picker = LivePicker(Budget(policy="none"), Random(0))
    callers = Callers(iter(busy), Making(specs=specs, seed=1), "leave", rng=Random(0))
    for _ in VirtualFleet(specs, picker, callers, seed=1).run(callers, iter(())):
        pass
    ends = sorted(
        one.stream.ended_at for one in callers.fates if one.stream and one.stream.ended_at
    )
    first, last = len(ends) // 6, 2 * len(ends) // 3
    return (last - first) / (ends[last] - ends[first])


def _one_after_another(tasks: Sequence[Task], at: Seconds) -> Task:
    """Make one task of several, each of which begins when the one before it is over."""
    calls: list[Call] = []
    for task in tasks:
        begun = len(calls)
        former = (begun - 1,) if begun else ()
        calls += [
            replace(
                call,
                row=replace(call.row, at=at),
                after=tuple(place + begun for place in call.after) or former,
            )
            for call in task.calls
        ]
    return replace(tasks[0], calls=tuple(calls))


def a10_rows(per_s: float, seed: int) -> Iterator[TraceRequest]:
    """Yield short requests for ever, a Poisson process, that share nothing."""
    rng, at, piece = Random(f"{seed}/a10"), 0.0, 0
    while True:
        at += rng.expovariate(per_s)
        tokens = rng.randint(*A10_PROMPT)
        pieces = -(-tokens // agents.PIECE)
        yield TraceRequest(
            at=at,
            input_tokens=tokens,
            output_tokens=rng.randint(*A10_ANSWER),
            pieces=tuple(range(piece, piece + pieces)),
            piece_tokens=agents.PIECE,
        )
        piece += pieces


WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "conversation": conversation,
    "agents": agentic,
    "a10": a10,
}
