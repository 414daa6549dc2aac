"""From what the demo's parts wrote to its figures: grades, goodput, artifacts.

The picker's outcomes.jsonl holds each served request's prediction beside its real time; the client
knows what was refused and why. The real queue wait is on no wire: it is the real time to first
token less the predicted time of the request's own prefill.

Goodput is the share of the requests with a bound, among all that arrived in the overloaded phase,
that were served and kept it; a refused one did not. What admission is worth is told in virtual
time, where nothing else differs: the same requests are played twice more, on the same engines with
the same routing, once with admission and once with nobody refused. The run itself shares its cores
with four engines, Envoy and the callers, so it is slower than either.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec
from leadsman.budget import Budget
from leadsman.grade import Bounded, Grade
from leadsman.units import RequestId, Seconds, Tokens, WorkerId

from leadsman_bench import demo_plan
from leadsman_bench.demo_plan import engines, phase_at
from leadsman_bench.offers import offer
from leadsman_bench.player import Planned, Played
from leadsman_bench.scenario import MODEL, Wishes
from leadsman_bench.simulate import Grades, LivePicker
from leadsman_bench.summary import Counts, Graded, Summary, summarise
from leadsman_bench.virtual import Offer, VirtualFleet


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A line of outcomes.jsonl, as far as it is needed here."""

    request: str
    worker: str
    prompt_tokens: Tokens
    outcome: str
    curve: str | None
    max_queue_wait: Seconds | None
    predicted_ttft: Seconds | None
    predicted_queue_wait: Seconds | None
    ttft: Seconds | None
    predicted_cached: Tokens | None
    cached_tokens: Tokens | None
    sent_at: Seconds | None = None
    ttft_bound: Seconds | None = None
    completion_tokens: Tokens | None = None

    def grade(self, *, worker: str, model: str, block_size: Tokens) -> Grade | None:
        """Grade it; None where it was not served, or not priced."""
        if self.ttft is None or self.predicted_ttft is None or self.predicted_queue_wait is None:
            return None
        bounded = None
        if self.max_queue_wait is not None:
            bounded = Bounded(
                bound=self.max_queue_wait, predicted=self.predicted_queue_wait, actual=self.waited
            )
        return Grade(
            request=RequestId(self.request),
            worker=WorkerId(worker),
            model=model,
            prompt_tokens=self.prompt_tokens,
            predicted=self.predicted_ttft,
            actual=self.ttft,
            credited=self.predicted_cached or 0,
            reused=self.cached_tokens,
            block_size=block_size,
            bounded=bounded,
        )

    @property
    def waited(self) -> Seconds:
        """The real queue wait of one that was served and priced."""
        assert self.ttft is not None
        assert self.predicted_ttft is not None
        assert self.predicted_queue_wait is not None
        return max(0.0, self.ttft - (self.predicted_ttft - self.predicted_queue_wait))


class DemoSummary(Summary, frozen=True, kw_only=True):
    """The keys of summary.json: those of every run, and the goodput of the overloaded phase."""

    goodput_admission: float | None
    goodput_admission_virtual: float | None
    goodput_none: float | None
    capacity_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """How a worker is called in the report, and the size of its blocks."""

    name: str
    block_size: Tokens


def read_outcomes(path: Path) -> list[Outcome]:
    """Read outcomes.jsonl; a line that was cut off at the end is left out."""
    decoder = msgspec.json.Decoder(Outcome)
    whole = path.read_bytes().split(b"\n")[:-1]
    return [decoder.decode(line) for line in whole]


def grades(
    outcomes: Sequence[Outcome], played: Sequence[Played], workers: dict[str, Named]
) -> Grades:
    """Grade what was served, and count what was not. workers: by `host:port`.

    A stream whose end nobody waited for has a grade all the same, once its first token came.
    """
    sent = {one.planned.id: one for one in played}
    found = Grades()
    for outcome in outcomes:
        one = sent.get(outcome.request)
        if one is None or outcome.ttft is None:
            continue
        named = workers[outcome.worker]
        grade = outcome.grade(worker=named.name, model=MODEL, block_size=named.block_size)
        if grade is None:
            found.unpriced += 1
        else:
            found.graded.append(_graded(outcome, one, grade))
    found.refused_for = Counter(one.reason for one in played if one.reason is not None)
    found.lost = len(played) - len(found.graded) - found.unpriced - found.refused_for.total()
    return found


def _graded(outcome: Outcome, one: Played, grade: Grade) -> Graded:
    assert outcome.predicted_queue_wait is not None
    return Graded(
        grade=grade,
        at=one.planned.at,
        predicted_wait=outcome.predicted_queue_wait,
        actual_wait=outcome.waited,
        ahead=None,
        curve=outcome.curve or "unknown",
        load=phase_at(one.planned.at).load,
    )


def goodput(found: Grades, plan: Sequence[Planned]) -> float | None:
    """Return the share of the overloaded phase's bounded requests that were served in time."""
    overloaded = {
        one.id
        for one in plan
        if one.max_queue_wait is not None and phase_at(one.at).load == demo_plan.PHASES[-1].load
    }
    kept = sum(
        one.grade.bounded is not None and one.grade.bounded.was_kept
        for one in found.graded
        if one.grade.request in overloaded
    )
    return kept / len(overloaded) if overloaded else None


def in_virtual_time(plan: Sequence[Planned], budget: Budget, *, seed: int) -> Grades:
    """Play the plan on the same engines in virtual time, under that budget."""
    specs, found = engines(), Grades()
    picker = LivePicker(budget, Random(f"{seed}/decisions"))
    fleet = VirtualFleet(specs, picker, found, seed=seed)
    sizes = [spec.settings.block_size for spec in specs]
    for _ in fleet.run(_offers(plan, sizes), iter(())):
        pass
    return found


def _offers(plan: Sequence[Planned], sizes: Sequence[Tokens]) -> Iterator[Offer]:
    for one in plan:
        yield offer(
            one.row,
            Wishes(max_queue_wait=one.max_queue_wait, max_tokens=one.max_tokens),
            name=RequestId(one.id),
            block_sizes=sizes,
        )


def summary_of(
    found: Grades, admitting: Grades, without: Grades, plan: Sequence[Planned], per_s: float
) -> DemoSummary:
    """Sum up the demo."""
    counts = Counts(
        workers=len(engines()),
        refused=found.refused_for,
        lost=found.lost,
        unpriced=found.unpriced,
    )
    return DemoSummary(
        **msgspec.structs.asdict(summarise(found.graded, counts)),
        goodput_admission=goodput(found, plan),
        goodput_admission_virtual=goodput(admitting, plan),
        goodput_none=goodput(without, plan),
        capacity_per_s=per_s,
    )
