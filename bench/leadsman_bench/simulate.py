"""`leadsman bench simulate`: hours of a fleet's life in minutes, every prediction graded.

The decision code is the one that serves live traffic; engines, network and callers are simulated
(`virtual`, `scenario`, `offers`). Every worker starts with an unmeasured curve. Arrivals are open
loop: nothing waits for an answer. The same seed gives the same figures to the last digit.
"""

import argparse
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from random import Random
from typing import TextIO

import msgspec
from leadsman.budget import Budget, BudgetError
from leadsman.fleet import Fleet
from leadsman.gate import Fault, Gates, Plan
from leadsman.grade import Bounded, Grade
from leadsman.lobby import Held, Settled
from leadsman.policies import BUILT_IN
from leadsman.policy import Policy, PolicyError
from leadsman.prediction import Decision, Prediction, Refused
from leadsman.records import Outcome, Record
from leadsman.request import Request
from leadsman.units import RequestId, Seconds, WorkerId
from leadsman_extproc.metrics import Counts as Counted
from leadsman_extproc.outcomes import Outcomes
from leadsman_extproc.plugins import kinds

from leadsman_bench.chance import Chance, Odds
from leadsman_bench.conversation import ConversationModel, bundled_model, generate, warped
from leadsman_bench.offers import capacity, offers
from leadsman_bench.picture import Mark, Page, draw_all
from leadsman_bench.report import chances, groups, lines, table, worst
from leadsman_bench.scenario import FLEETS, MEAN_LOAD, WorkerSpec, arrival, incidents, load_at
from leadsman_bench.seeing.virtual_records import Recorded
from leadsman_bench.summary import Counts, Graded, Summary, summarise
from leadsman_bench.virtual import Offer, Stream, VirtualFleet

REQUESTS = 100_000
MARKS_DRAWN = 20_000
GARBAGE_AT = 1_000_000
"""New objects until garbage is looked for: a run makes next to none that count does not free."""


PLANNING: Seconds = 5.0
"""Virtual seconds until a policy's plan that was begun counts: what QLM's paper says of its own."""


class LivePicker:
    """The core's Fleet with one budget for all, as a picker has it; `faults` of its policy."""

    def __init__(
        self, budget: Budget, rng: Random, policies: Mapping[str, type[Policy]] = BUILT_IN
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.fleet = Fleet(gates=Gates(policies, self._note))
        self._budget = budget
        self._rng = rng
        self._planned: list[tuple[Seconds, Plan]] = []

    def _note(self, fault: Fault) -> None:
        self.faults[f"{fault.policy}/{fault.cause}"] += 1

    def check(self) -> None:
        """Raise PolicyError where the budget's policy cannot be made."""
        self.fleet.gates.policy(self._budget)

    def apply(self, record: Record, now: Seconds) -> None:
        """Take in a record of fleet state."""
        self.fleet.apply(record, now)

    def decide(self, request: Request, now: Seconds) -> Decision | Held:
        """Admit the request on one worker, hold it, or refuse it."""
        while self._planned and self._planned[0][0] <= now:
            self._planned.pop(0)[1]()()
        self._planned += [(now + PLANNING, plan) for plan in self.fleet.gates.plans(now)]
        return self.fleet.decide(request, self._budget, now, self._rng)

    def next_turn(self) -> Seconds | None:
        """Say when a turn is due; None while nobody is held."""
        return self.fleet.next_turn()

    def turn(self, now: Seconds) -> Sequence[Settled]:
        """Decide on those that are held, where it is their turn."""
        return self.fleet.turn(now, self._rng)

    def let_go(self, request: RequestId) -> None:
        """Hold a request no longer, as its caller is gone."""
        self.fleet.let_go(request)

    def wants_witness(self, worker: WorkerId) -> bool:
        """Whether one more stream of this worker should be read chunk by chunk."""
        return self.fleet.wants_witness(worker)


@dataclass(slots=True)
class Grades:
    """Grades streams as they end, so that no request is held longer than it lives."""

    graded: list[Graded] = field(default_factory=list)
    refused_for: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    unpriced: int = 0

    def ended(self, stream: Stream) -> None:
        """Grade a stream, or count it where there is nothing to grade."""
        prediction, actual = stream.admitted.prediction, stream.ttft
        if stream.outcome is not Outcome.FINISHED or actual is None:
            self.lost += 1
        elif prediction is None:
            self.unpriced += 1
        else:
            self.graded.append(_graded(stream, prediction, actual))

    def refused(self, _offer: Offer, refused: Refused) -> None:
        """Count a refusal by its reason."""
        self.refused_for[refused.reason.value] += 1

    def gone(self, _offer: Offer, _now: Seconds) -> None:
        """Count it among the lost: there is nothing to grade."""
        self.lost += 1

    def summary(self, workers: int) -> Summary:
        """Sum up what was graded and counted."""
        counts = Counts(
            workers=workers, refused=self.refused_for, lost=self.lost, unpriced=self.unpriced
        )
        return summarise(self.graded, counts)


def _graded(stream: Stream, prediction: Prediction, actual: Seconds) -> Graded:
    request, price = stream.offer.request, prediction.price
    wait = max(0.0, actual - price.own_prefill)
    if stream.started_at is not None:
        wait = stream.started_at - stream.sent_at
    bound, waited = request.max_queue_wait, request.waited
    grade = Grade(
        request=request.id,
        worker=stream.admitted.worker,
        model=request.model,
        prompt_tokens=request.prompt_tokens,
        predicted=price.ttft,
        actual=actual,
        credited=price.cached_tokens,
        reused=stream.reused,
        block_size=stream.block_size,
        bounded=None
        if bound is None
        else Bounded(
            bound=bound, predicted=waited + prediction.queue_wait_bound, actual=waited + wait
        ),
        state_age=prediction.state_age,
    )
    return Graded(
        grade=grade,
        at=stream.sent_at,
        predicted_wait=price.queue_wait,
        actual_wait=wait,
        ahead=price.queued_requests,
        curve=prediction.curve,
        load=load_at(stream.sent_at),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How much to simulate: so many requests, or so many hours of virtual time."""

    requests: int | None = REQUESTS
    hours: float | None = None

    def of(self, rows: Iterator[Offer]) -> Iterator[Offer]:
        """Cut offers to the length."""
        if self.hours is not None:
            end = self.hours * 3600
            rows = takewhile(lambda offer: offer.request.arrived_at < end, rows)
        return islice(rows, self.requests) if self.requests is not None else rows


class Progress:
    """A line on the terminal that says how far a run is; silent where nobody watches."""

    def __init__(self, stream: TextIO, length: Length) -> None:
        self._stream = stream if stream.isatty() else None
        self._length = length
        self._began = self._said = time.perf_counter()

    def say(self, number: int, at: Seconds) -> None:
        """Say where the run is, at most five times a second."""
        now = time.perf_counter()
        if self._stream is None or now - self._said < 0.2:
            return
        self._said = now
        of = f" of {self._length.requests:,}" if self._length.requests else ""
        cost = (now - self._began) / max(number, 1) * 1e3
        self._stream.write(
            f"\r{number:,}{of} requests, {at / 3600:.2f} h of virtual time, "
            f"load {load_at(at):.2f}, {cost:.1f} ms a request   "
        )
        self._stream.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._stream is not None:
            self._stream.write("\n")


def simulate(  # noqa: PLR0913  # what a run is, and who looks on
    length: Length,
    *,
    seed: int,
    specs: Sequence[WorkerSpec],
    progress: Progress | None = None,
    chance: Chance | None = None,
    journal: Path | None = None,
    picker: LivePicker | None = None,
) -> Grades:
    """Run a fleet of these workers under the conversation model; return the grades.

    journal: a folder for the records that a picker would have left.
    """
    model = bundled_model()
    grades = Grades()
    picker = picker or LivePicker(Budget(), Random(f"{seed}/decisions"))
    with Outcomes(counts=Counted(), folder=journal) as outcomes:
        recorded = Recorded(picker, grades, outcomes)
        fleet = VirtualFleet(specs, recorded, recorded, seed=seed, onlooker=chance)
        traffic = length.of(_traffic(specs, model, seed))
        for number, now in enumerate(
            fleet.run(traffic, incidents(len(specs), Random(f"{seed}/incidents"))), start=1
        ):
            if progress is not None:
                progress.say(number, now)
    return grades


def _traffic(specs: Sequence[WorkerSpec], model: ConversationModel, seed: int) -> Iterator[Offer]:
    per_s = sum(capacity(specs, model, seed=seed)) * MEAN_LOAD
    rows = warped(generate(model, requests_per_s=per_s, seed=seed), arrival)
    sizes = [spec.settings.block_size for spec in specs]
    return offers(rows, block_sizes=sizes, rng=Random(f"{seed}/callers"))


def main(argv: list[str]) -> int:
    """Run `leadsman bench simulate`."""
    arguments = _parser().parse_args(argv)
    length = Length(
        requests=arguments.requests or (None if arguments.hours else REQUESTS),
        hours=arguments.hours,
    )
    gc.set_threshold(GARBAGE_AT)
    specs = [spec for engine in arguments.engine or ["vllm"] for spec in FLEETS[engine]()]
    progress = Progress(sys.stderr, length)
    began = time.process_time()
    chance = None
    if arguments.chance and "sglang" in (arguments.engine or ()):
        print("bench simulate: --chance knows vLLM's engines only", file=sys.stderr)
        return 2
    if arguments.chance:
        chance = Chance(bundled_model(), every=arguments.chance, seed=arguments.seed)
    try:
        parameters = dict(arguments.set or ())
        budget = Budget(policy=arguments.policy, parameters=parameters, hold=arguments.hold)
        picker = LivePicker(budget, Random(f"{arguments.seed}/decisions"), kinds())
        picker.check()
    except (PolicyError, BudgetError) as error:
        print(f"bench simulate: {error}", file=sys.stderr)
        return 2
    grades = simulate(
        length,
        seed=arguments.seed,
        specs=specs,
        progress=progress,
        chance=chance,
        journal=arguments.journal,
        picker=picker,
    )
    progress.end()
    summary = grades.summary(len(specs))
    by_chance = {} if chance is None else chance.by_load()
    _print(grades, summary, by_chance, arguments.worst)
    for fault, times in picker.faults.items():
        print(f"{fault}: the policy's fallback decided {times:,} times")
    print(f"{time.process_time() - began:.0f} s of computing on one core")
    if arguments.rows:
        arguments.rows.write_bytes(b"".join(msgspec.json.encode(r) + b"\n" for r in grades.graded))
    if arguments.json:
        arguments.json.write_bytes(
            msgspec.json.format(msgspec.json.encode(_figures(summary, by_chance)), indent=1) + b"\n"
        )
    if arguments.picture:
        arguments.picture.mkdir(parents=True, exist_ok=True)
        draw_simulation(grades, len(specs), arguments.picture)
    return 0


def draw_simulation(grades: Grades, workers: int, folder: Path) -> list[Path]:
    """Draw a run, at most MARKS_DRAWN of its requests."""
    step = max(1, len(grades.graded) // MARKS_DRAWN)
    found = lines(grades.summary(workers))
    page = Page(
        title="Predicted and real time to first token",
        subtitle=f"{len(grades.graded):,} requests on {workers} workers in virtual time",
        rows=[(line.what, line.value) for line in found],
    )
    return draw_all(list(map(mark, grades.graded[::step])), page, folder, "simulate")


def mark(one: Graded) -> Mark:
    """Make the picture's mark of a graded request."""
    return Mark(
        worker=one.grade.worker,
        predicted=one.grade.predicted,
        actual=one.grade.actual,
        cache_matched=one.grade.cache_matched,
        measured=one.curve != "unmeasured",
    )


def _figures(summary: Summary, by_chance: dict[str, Odds]) -> dict[str, object]:
    figures: dict[str, object] = msgspec.to_builtins(summary)
    return figures | ({"by_chance": by_chance} if by_chance else {})


def _print(grades: Grades, summary: Summary, by_chance: dict[str, Odds], count: int) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    title = f"{summary.requests:,} requests on {summary.workers} workers in virtual time"
    console.print(table(title, lines(summary)))
    console.print(groups("By offered load, in units of capacity", summary.by_load))
    console.print(groups("By worker", summary.by_worker))
    console.print(groups("By where the curve came from", summary.by_curve))
    if by_chance:
        console.print(chances(by_chance))
    if count:
        console.print(worst(grades.graded, count))


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    return name, float(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="leadsman bench simulate", description="Grade predictions on a fleet in virtual time."
    )
    parser.add_argument("--requests", type=int, help=f"how many requests (default {REQUESTS:,})")
    parser.add_argument("--hours", type=float, help="how many hours of virtual time instead")
    parser.add_argument(
        "--engine",
        action="append",
        choices=sorted(FLEETS),
        help="who serves the workers (default vllm; given for each, the fleet has both)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", default="predicted_wait", help="the admission policy")
    parser.add_argument("--hold", type=float, help="hold requests for so many seconds at most")
    parser.add_argument(
        "--set", action="append", type=_setting, metavar="NAME=NUMBER", help="one of its parameters"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--picture", type=Path, help="draw the run into this folder")
    parser.add_argument(
        "--chance", type=int, metavar="N", help="show at every Nth decision what chance leaves"
    )
    parser.add_argument("--worst", type=int, default=0, help="list the so many worst predictions")
    parser.add_argument("--journal", type=Path, help="leave a picker's records in this folder")
    parser.add_argument("--rows", type=Path, help="write every grade there, one JSON a line")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
