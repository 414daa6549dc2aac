"""Which side of the bound were prediction and outcome on? Conversations at one load, once played.

Served requests show what was underpredicted: of those that were admitted with a bound on their
wait, the share that waited longer. Refused ones are judged twice. By hindsight: the wait of those
served before and after on the same worker says what it would have been there; where no worker's
timeline tells, it says nothing. It asks from the moment of the refusal, so of one that was held
whether it could have begun in what was left of its bound. And by probes: one in `PROBED` of what
would be refused is admitted all the same, and shows it. The two must agree within their errors.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from math import sqrt
from random import Random

from leadsman.budget import Budget
from leadsman.hindsight import Timeline, hindsight
from leadsman.prediction import Reason, Refused
from leadsman.records import Outcome
from leadsman.units import Seconds, WorkerId

from leadsman_bench.callers import Callers
from leadsman_bench.contest import Course, Job, known_workload, play
from leadsman_bench.simulate import LivePicker
from leadsman_bench.virtual import Offer, Stream

PROBED = 0.1
OVERLOAD: Seconds = 60.0
"""Above which even requests without a bound are refused."""

HOLD: Seconds = 30.0
"""For which requests are held where they are: as long as the longest bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Counts of bounded requests of one run. unknown: refusals that hindsight cannot judge."""

    admitted: int
    underpredicted: int
    refused: int
    false_alarms: int
    unknown: int
    probes: int
    probes_in_time: int

    @property
    def probe_share(self) -> float | None:
        """Share of probes that were in time."""
        return self.probes_in_time / self.probes if self.probes else None


def agree(sides: Sides) -> bool:
    """Whether hindsight and probes say the same within two standard errors of both."""
    if not (sides.probes and sides.refused):
        return True
    a, n = sides.probes_in_time / sides.probes, sides.probes
    b, m = sides.false_alarms / sides.refused, sides.refused
    both = (sides.probes_in_time + sides.false_alarms + 1) / (n + m + 2)
    return abs(a - b) <= 2 * sqrt(both * (1 - both) * (1 / n + 1 / m))


@dataclass(slots=True)
class _Seen:
    """What became of every request of a run."""

    streams: list[Stream] = field(default_factory=list)
    refusals: list[tuple[Offer, Refused]] = field(default_factory=list)

    def ended(self, stream: Stream) -> None:
        self.streams.append(stream)

    def refused(self, offer: Offer, refused: Refused) -> None:
        self.refusals.append((offer, refused))


def measure(job: Job, hold: Seconds | None = None) -> Sides:
    """Play one load's conversations under Leadsman's own policy, by the bounds of their callers.

    hold: the budget's; None: nobody is held.
    """
    workload = known_workload(job.workload)
    making = workload.making(job.seed, deadlines=False)
    course = Course(
        workload=workload,
        per_s=job.capacity * job.load,
        seed=job.seed,
        counted=job.counted or workload.counted,
        warm_up=workload.warm_up,
        making=making,
    )
    names, tasks = course.tasks()
    seen = _Seen()
    budget = Budget(overload=OVERLOAD, probes=PROBED, hold=hold)
    picker = LivePicker(budget, Random(f"{job.seed}/decisions"))
    callers = Callers(tasks, making, "leave", rng=Random(0), observer=seen)
    play(course, picker, callers, names)
    began = callers.progress[names[0]].task.at
    return sides(seen.streams, seen.refusals, began)


def sides(streams: list[Stream], refusals: list[tuple[Offer, Refused]], began: Seconds) -> Sides:
    """Judge what came after `began`."""
    timelines: defaultdict[WorkerId, Timeline] = defaultdict(Timeline)
    admitted = underpredicted = probes = in_time = 0
    for stream in streams:
        wait = waited(stream)
        if wait is None:
            continue
        timelines[stream.admitted.worker].add(stream.sent_at, wait - stream.offer.request.waited)
        bound = stream.offer.request.max_queue_wait
        if bound is None or stream.sent_at - stream.offer.request.waited < began:
            continue
        if stream.admitted.because == "probe":
            probes, in_time = probes + 1, in_time + (wait <= bound)
        else:
            admitted, underpredicted = admitted + 1, underpredicted + (wait > bound)
    verdicts = [
        _would_have_been(timelines, offer, refused)
        for offer, refused in refusals
        if offer.request.arrived_at - offer.request.waited >= began
        and refused.reason is Reason.WOULD_WAIT_TOO_LONG
    ]
    return Sides(
        admitted=admitted,
        underpredicted=underpredicted,
        refused=sum(verdict is not None for verdict in verdicts),
        false_alarms=sum(verdict is True for verdict in verdicts),
        unknown=sum(verdict is None for verdict in verdicts),
        probes=probes,
        probes_in_time=in_time,
    )


def waited(stream: Stream) -> Seconds | None:
    """Give the real wait of a stream that was served, held or queued."""
    if stream.outcome is not Outcome.FINISHED or stream.started_at is None:
        return None
    return stream.offer.request.waited + max(0.0, stream.started_at - stream.sent_at)


def _would_have_been(
    timelines: dict[WorkerId, Timeline], offer: Offer, refused: Refused
) -> bool | None:
    """Say whether any of the workers that were asked would have begun with it in time."""
    request, bound = offer.request, offer.request.max_queue_wait
    assert bound is not None
    left = bound - request.waited
    said = [
        hindsight(timelines[one.worker], refused_at=request.arrived_at, allowed=left)
        for one in refused.candidates
    ]
    if True in said:
        return True
    return None if None in said else False
