"""Callers in virtual time: what follows from an answer, a refusal, and from losing patience."""

from random import Random

import pytest
from leadsman.budget import Budget
from leadsman.lobby import Held
from leadsman.prediction import Reason, Refused
from leadsman.records import Outcome
from leadsman_bench.baselines import LeastLoaded
from leadsman_bench.callers import RETRIES, Callers
from leadsman_bench.scenario import WorkerSpec
from leadsman_bench.tasks import Call, Task
from leadsman_bench.traces import TraceRequest
from leadsman_bench.virtual import STEP, VirtualFleet
from leadsman_bench.workloads import Making
from leadsman_engines.simulated.presets import presets

PRESET = presets()["qwen2.5-0.5b-a10g"]
SPEC = WorkerSpec(name="w", settings=PRESET.settings, hardware=PRESET.hardware)


def call(at=0.0, *, tokens=64, output=10, piece=0, **rest):
    row = TraceRequest(
        at=at, input_tokens=tokens, output_tokens=output, pieces=(piece,), piece_tokens=tokens
    )
    return Call(row=row, **rest)


class Refusing(LeastLoaded):
    """Refuses the first so many decisions, each to come back in so long."""

    def __init__(self, times, later=3.0, should_retry=True):
        super().__init__()
        self.times, self.later, self.should_retry, self.asked = times, later, should_retry, []

    def decide(self, request, now):
        self.asked.append((request.id, now))
        if len(self.asked) <= self.times:
            return Refused(
                request=request.id,
                reason=Reason.OVERLOADED,
                status=429,
                retry_after=self.later,
                should_retry=self.should_retry,
            )
        return super().decide(request, now)


class Holding(LeastLoaded):
    """Holds the first request for ever, and sends on all others."""

    def __init__(self):
        super().__init__()
        self.held = []

    def decide(self, request, now):
        if self.held:
            return super().decide(request, now)
        self.held.append(request.id)
        return Held(
            request=request,
            budget=Budget(hold=60.0),
            family=None,
            at=now,
            until=now + 60.0,
            latest=now + 60.0,
            work=1.0,
            expected=1.0,
            number=1,
        )

    def next_turn(self):
        return None

    def turn(self, now):
        return []

    def let_go(self, request):
        self.held.remove(request)
        self.held.append("nobody")


def played(tasks, picker=None, manners="leave"):
    callers = Callers(iter(tasks), Making(specs=[SPEC], seed=1), manners, rng=Random(1))
    for _ in VirtualFleet([SPEC], picker or LeastLoaded(), callers, seed=1).run(callers, iter(())):
        pass
    return callers


def test_a_call_comes_when_those_before_it_are_over_and_its_caller_has_thought():
    calls = (call(1.0), call(1.0, output=40, piece=1), call(after=(0, 1), thinks=2.0, piece=2))

    callers = played([Task(name="t", calls=calls)])

    one, two, last = callers.fates
    ready = max(one.stream.ended_at, two.stream.ended_at)
    assert ready + 2.0 <= last.began <= ready + 2.0 + STEP
    assert callers.finished(["t"]) == 1


def test_who_obeys_comes_back_when_told_and_who_ignores_it_by_its_own_backoff():
    obeying, ignoring = Refusing(2, later=3.0), Refusing(2, later=3.0)
    [served] = played([Task(name="t", calls=(call(),))], obeying, "obey").fates
    played([Task(name="t", calls=(call(),))], ignoring, "ignore")

    told, own = ([at for _, at in picker.asked] for picker in (obeying, ignoring))

    assert told == pytest.approx([0.0, 3.0, 6.0], abs=STEP)
    assert own[0] == 0.0
    assert 0.37 <= own[1] <= 0.5 + STEP
    assert own[1] + 0.75 <= own[2] <= own[1] + 1.0 + STEP
    assert served.tries == 3
    assert served.ttft > 6.0


@pytest.mark.parametrize(
    ("manners", "picker", "asked"),
    [
        pytest.param("leave", Refusing(99), 1, id="leaves"),
        pytest.param("obey", Refusing(99), 1 + RETRIES, id="out-of-retries"),
        pytest.param("obey", Refusing(99, later=121.0), 1, id="too-long-for-an-sdk"),
        pytest.param("obey", Refusing(99, should_retry=False), 1, id="told-to-fall-back"),
        pytest.param("ignore", Refusing(99, should_retry=False), 1 + RETRIES, id="heeds-nothing"),
    ],
)
def test_a_call_given_up_ends_its_task(manners, picker, asked):
    calls = (call(), call(after=(0,), piece=1))

    callers = played([Task(name="t", calls=calls)], picker, manners)

    assert len(picker.asked) == asked
    assert callers.is_over("t")
    assert callers.finished(["t"]) == 0
    assert len(callers.fates) == 1


def test_a_caller_that_hangs_up_frees_its_worker_and_goes_on():
    patient = call(output=400)
    calls = (call(output=20_000, hangs_up=1.5, piece=1), call(after=(0,), piece=2))

    callers = played([Task(name="p", calls=(patient,)), Task(name="t", calls=calls)])

    outcomes = {fate.task.name + str(fate.place): fate.stream.outcome for fate in callers.fates}
    assert outcomes == {
        "p0": Outcome.FINISHED,
        "t0": Outcome.CLIENT_GONE,
        "t1": Outcome.FINISHED,
    }
    gone = next(fate for fate in callers.fates if fate.stream.outcome is Outcome.CLIENT_GONE)
    assert gone.stream.ended_at == pytest.approx(1.5, abs=2 * STEP)
    assert gone.was_served
    assert callers.finished(["t"]) == 1


def test_a_caller_that_hangs_up_while_it_is_held_is_held_no_more_and_goes_on():
    calls = (call(hangs_up=1.5, piece=1), call(after=(0,), piece=2))
    picker = Holding()

    callers = played([Task(name="t", calls=calls)], picker)

    first, second = callers.fates
    assert picker.held == ["nobody"]
    assert first.stream is None
    assert first.was_served
    assert second.began == pytest.approx(1.5, abs=2 * STEP)
    assert second.stream.outcome is Outcome.FINISHED
