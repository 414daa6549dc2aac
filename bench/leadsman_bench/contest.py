"""Policies side by side: goodput under admission at multiples of what the fleet can do.

Goodput counts every request that arrived: those that had their first token by their deadline, out
of all. A refusal is a miss, so a policy cannot look good by serving few. Load is a multiple of the
fleet's *measured* goodput without admission: 1 is the rate at which it was the most. Every policy
gets the same requests and the same deadlines; routing is Leadsman's for all, so what is compared is
admission alone. Callers who are refused go elsewhere.

Each deadline is a TTFT objective: so many times what the request takes on the idle fleet's median
worker, and at least `LEAST`; gaps after the first token are not judged, as no policy here moves
them but by how much it admits.
"""

import argparse
import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from statistics import mean
from typing import TYPE_CHECKING

from leadsman.budget import Budget
from leadsman.policies import BUILT_IN
from leadsman.policy import Policy, PolicyError
from leadsman.prediction import Refused
from leadsman.records import Outcome
from leadsman.units import Seconds, Tokens
from leadsman_extproc.plugins import kinds

from leadsman_bench.conversation import bundled_model, generate
from leadsman_bench.offers import capacity, offers
from leadsman_bench.scenario import WorkerSpec, workers
from leadsman_bench.simulate import GARBAGE_AT, LivePicker
from leadsman_bench.virtual import Offer, Stream, VirtualFleet

if TYPE_CHECKING:
    from rich.table import Table

SMALL = (0, 4, 7, 11)
"""Which of the sixteen workers run: one of each large kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A policy as it is run: its budget says which one, and with which parameters."""

    name: str
    budget: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The same for every contestant. per_s: requests a second at load 1.

    warm_up: requests at half the load before it, not counted: speeds and lengths are learned there.
    """

    specs: Sequence[WorkerSpec]
    per_s: float
    requests: int
    seed: int
    warm_up: int = 400
    slack: Seconds = 5.0
    factor: float = 2.0


@dataclass(slots=True, kw_only=True)
class Result:
    """How one run went; counts of requests after the warm-up."""

    arrived: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    met: int = 0
    waits: list[Seconds] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def goodput(self) -> float:
        """Requests that had their first token in time, of all that arrived."""
        return self.met / max(1, self.arrived)

    @property
    def admitted(self) -> float:
        """Share that was not refused."""
        return 1 - self.refused.total() / max(1, self.arrived)

    @property
    def ttft_p95(self) -> Seconds | None:
        """Of those that were served."""
        return sorted(self.waits)[int(0.95 * len(self.waits))] if self.waits else None


class Judge:
    """Holds each served request against its deadline."""

    def __init__(self, began: Seconds) -> None:
        self.result = Result()
        self._began = began

    def ended(self, stream: Stream) -> None:
        """Count a request that was sent."""
        request = stream.offer.request
        if request.arrived_at < self._began:
            return
        self.result.arrived += 1
        ttft, deadline = stream.ttft, request.ttft_objective
        if stream.outcome is Outcome.FINISHED and ttft is not None:
            ttft += request.waited  # while it was held
            self.result.waits.append(ttft)
            self.result.met += deadline is None or ttft <= deadline

    def refused(self, offer: Offer, refused: Refused) -> None:
        """Count one that was not."""
        if offer.request.arrived_at >= self._began:
            self.result.arrived += 1
            self.result.refused[refused.reason] += 1


def run(
    course: Course, contestant: Contestant, load: float, kinds: Mapping[str, type[Policy]]
) -> Result:
    """Run one policy at one load."""
    rng = Random(f"{course.seed}/decisions")
    picker = LivePicker(contestant.budget, rng, kinds)
    began = 2 * course.warm_up / (course.per_s * load)
    judge = Judge(began)
    fleet = VirtualFleet(course.specs, picker, judge, seed=course.seed)
    for _ in fleet.run(traffic(course, load, began), iter(())):
        pass
    judge.result.faults = picker.faults
    return judge.result


def traffic(course: Course, load: float, began: Seconds) -> Iterator[Offer]:
    """Offer the course's requests: the warm-up at half the load, then all of it."""
    rows = generate(bundled_model(), requests_per_s=course.per_s * load, seed=course.seed)
    slow = (
        replace(row, at=2 * row.at if 2 * row.at < began else row.at + began / 2) for row in rows
    )
    sizes = [spec.settings.block_size for spec in course.specs]
    alone = unloaded(course.specs[len(course.specs) // 2])
    made = offers(slow, block_sizes=sizes, rng=Random(f"{course.seed}/callers"))
    for offer in islice(made, course.warm_up + course.requests):
        request = offer.request
        deadline = course.slack + course.factor * alone(request.prompt_tokens)
        yield replace(offer, request=replace(request, max_queue_wait=None, ttft_objective=deadline))


def unloaded(spec: WorkerSpec) -> Callable[[Tokens], Seconds]:
    """Say how long a worker takes to prefill a prompt alone, without cache and chance."""
    budget = spec.reported.max_num_batched_tokens

    def alone(tokens: Tokens) -> Seconds:
        chunks = [(start, min(budget, tokens - start)) for start in range(0, tokens, budget)]
        return sum(spec.hardware.step_seconds([(size, at)], []) for at, size in chunks)

    return alone


def peak(specs: Sequence[WorkerSpec], *, seed: int) -> float:
    """Give the requests a second at load 1: what the workers get done of a backlog."""
    return sum(capacity(specs, bundled_model(), seed=seed))


def main(argv: list[str]) -> int:
    """Run `leadsman bench policies`."""
    arguments = _parser().parse_args(argv)
    gc.set_threshold(GARBAGE_AT)
    try:
        known = kinds()
        names = arguments.policy or list(BUILT_IN)
        for name in names:
            LivePicker(Budget(policy=name), Random(0), known).check()
    except PolicyError as error:
        print(f"bench policies: {error}", file=sys.stderr)
        return 2
    all_of = workers()
    specs = [all_of[place] for place in SMALL]
    rows: list[tuple[str, float, list[Result]]] = []
    per_s = peak(specs, seed=1)
    for name in names:
        for load in arguments.load or (1.0, 1.25, 1.5, 2.0):
            results = []
            for seed in range(1, arguments.repeats + 1):
                course = Course(specs=specs, per_s=per_s, requests=arguments.requests, seed=seed)
                contestant = Contestant(name=name, budget=Budget(policy=name))
                results.append(run(course, contestant, load, known))
            rows.append((name, load, results))
            print(line(*rows[-1]), file=sys.stderr, flush=True)
    _print(drawn(rows))
    return 0


def line(name: str, load: float, results: Sequence[Result]) -> str:
    """Say the figures of one policy at one load, the repeats side by side."""
    goodputs = " ".join(f"{one.goodput:.3f}" for one in results)
    admitted = mean(one.admitted for one in results)
    faults = sum((one.faults for one in results), Counter[str]())
    return f"{name:16} {load:4.2f}  goodput {goodputs}  admitted {admitted:.3f}  {dict(faults)}"


def drawn(rows: Sequence[tuple[str, float, Sequence[Result]]]) -> "Table":
    """Draw goodput (mean, least and most of the repeats) by policy and load."""
    from rich import box
    from rich.table import Table

    loads = sorted({load for _, load, _ in rows})
    table = Table(title="Goodput under admission", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("policy")
    for load in loads:
        table.add_column(f"{load:g} x", justify="right")
    for name in dict.fromkeys(name for name, _, _ in rows):
        cells = {
            load: [one.goodput for one in found] for other, load, found in rows if other == name
        }
        said = [f"{mean(c):.3f} ({min(c):.3f}-{max(c):.3f})" for _, c in sorted(cells.items())]
        table.add_row(name, *said)
    return table


def _print(table: "Table") -> None:
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 110).print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="leadsman bench policies", description=main.__doc__)
    parser.add_argument("--policy", action="append", help="which (default: all that are built in)")
    parser.add_argument("--load", action="append", type=float, help="in capacities (1 to 2)")
    parser.add_argument("--requests", type=int, default=2000, help="counted requests of a run")
    parser.add_argument("--repeats", type=int, default=2, help="runs, each with a seed of its own")
    return parser
