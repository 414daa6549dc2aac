"""A fault between two plays of the same requests, in virtual time: how long until all is right.

What a picker is shown of an engine differs: all of it; no usage; no events; events with a hole that
nobody can fill. Each prompt was there before, so that a stale view of the cache shows at once. The
measure is the one of the real engine's run.
"""

from dataclasses import replace
from random import Random

import pytest
from engine.cells import recovered
from engine.plan import Plans
from leadsman.budget import Budget
from leadsman.records import Cleared, Ended, KvEvents, Trust, TrustChanged
from leadsman.trust import HITS
from leadsman.units import RequestId
from leadsman_bench.demo_results import Outcome
from leadsman_bench.offers import measured_capacity, offer
from leadsman_bench.scenario import DOWN_FOR, Incident, Wishes, WorkerSpec, changed
from leadsman_bench.simulate import Grades, LivePicker
from leadsman_bench.virtual import VirtualFleet
from leadsman_engines.simulated.presets import presets

SIZE, ROWS, QUIET = 128, 40, 0.4
PRESET = presets()["mistral-7b-v100"]
SETTINGS = {"max_num_batched_tokens": 512, "max_num_seqs": 4, "max_model_len": 32768}
SPEC = WorkerSpec(
    name="w",
    settings=replace(changed(PRESET.settings, **SETTINGS), block_size=SIZE, num_blocks=800),
    hardware=PRESET.hardware,
)


class Shown(LivePicker):
    """A picker that is shown an engine without events, without usage, or with a hole in them."""

    def __init__(self, lacks, seed):
        super().__init__(Budget(), Random(seed))
        self.lacks, self.hole, self.is_holed = lacks, None, False

    def apply(self, record, now):
        if isinstance(record, TrustChanged) and self.lacks == "events":
            record = replace(record, trust=Trust.BLIND, reason="none")
        if isinstance(record, KvEvents):
            if self.lacks == "events" and not all(isinstance(e, Cleared) for e in record.events):
                return
            if self.hole is not None and self.hole[0] <= now:
                self.is_holed = True
                if now <= self.hole[1]:
                    return
        if isinstance(record, KvEvents) and self.is_holed:
            lost = TrustChanged(
                worker=record.worker, trust=Trust.SUSPECT, reason="batches are lost"
            )
            super().apply(lost, now)
            self.is_holed, self.hole = False, None
        if isinstance(record, Ended) and self.lacks == "usage":
            record = replace(record, cached_tokens=None)
        super().apply(record, now)


def offered(row, name, at):
    return offer(replace(row, at=at), Wishes(), name=RequestId(name), block_sizes=[SIZE])


def pairs(grades):
    """What the measure reads, of each graded request."""
    for one in grades.graded:
        told = Outcome(
            request=one.grade.request,
            worker="w",
            prompt_tokens=one.grade.prompt_tokens,
            outcome="finished",
            curve="own",
            max_queue_wait=None,
            predicted_ttft=one.grade.predicted,
            predicted_queue_wait=0.0,
            ttft=one.grade.actual,
            predicted_cached=one.grade.credited,
            cached_tokens=one.grade.reused,
            sent_at=one.at,
        )
        yield told, one.grade


class Stage:
    """One engine that was measured before: isolated prompts, then a slice at a good load."""

    def __init__(self, lacks, seed):
        self.picker, self.grades = Shown(lacks, seed), Grades()
        self.fleet = VirtualFleet([SPEC], self.picker, self.grades, seed=seed)
        plans = Plans(seed)
        per_s = measured_capacity(SPEC, plans.slice(80), seed=seed)
        for number, row in enumerate(plans.isolated(2)):
            self.run([offered(row, f"isolated-{number}", self.fleet.now + 1.0)])
        self.play(plans.slice(100), "warm", 100 / (0.8 * per_s))
        self.rows, self.seconds = plans.slice(ROWS), ROWS / (QUIET * per_s)

    def run(self, offers, befall=()):
        for _ in self.fleet.run(iter(offers), iter(befall)):
            pass

    def play(self, rows, name, seconds, befall=()):
        """Play rows within so many seconds, from 3 s after whatever was before."""
        first, span = rows[0].at, rows[-1].at - rows[0].at
        times = [self.fleet.now + 3.0 + (row.at - first) / span * seconds for row in rows]
        offers = [
            offered(row, f"{name}-{n}", at)
            for n, (row, at) in enumerate(zip(rows, times, strict=True))
        ]
        self.run(offers, befall)

    def reset(self):
        """Reset the idle engine's cache; returns when."""
        self.befall = [Incident(at=self.fleet.now + 2.0, worker=0, kind="reset")]
        return self.befall[0].at

    def socket(self):
        """Lose three seconds of events, while the engine works."""
        began = self.fleet.now + 3.0
        self.picker.hole = began, began + 3.0
        self.play(self.rows[:12], "deaf", 6.0)
        return began + 3.0

    def kill(self):
        """Kill the engine with requests in flight; returns when it serves again."""
        killed = Incident(at=self.fleet.now + 4.0, worker=0, kind="restart")
        self.play(self.rows[:12], "killed", 1.1, [killed])
        up = killed.at + DOWN_FOR
        self.run([offered(self.rows[0], "up", up + 0.6)])
        return up

    def recovered(self, fault):
        """Let a fault happen between two plays of the same; says how long until all was right."""
        self.play(self.rows, "before", self.seconds)
        self.befall = []
        since = getattr(self, fault)()
        self.play(self.rows, "after", self.seconds, self.befall)
        return recovered(list(pairs(self.grades)), {f"after-{n}" for n in range(ROWS)}, since)


def missed(stage, name):
    rows = [one.grade for one in stage.grades.graded if one.grade.request.startswith(name)]
    return sum(grade.cache_matched is False for grade in rows)


@pytest.mark.parametrize("lacks", ["nothing", "usage", "events"])
@pytest.mark.parametrize("fault", ["reset", "kill"])
def test_after_a_fault_one_request_finds_out_and_all_is_right_within_ten_seconds(fault, lacks):
    stage = Stage(lacks, seed=1)

    after = stage.recovered(fault)

    assert after is not None
    assert after <= 10.0
    assert missed(stage, "after") <= 1


@pytest.mark.parametrize("lacks", ["nothing", "usage"])
def test_what_is_in_doubt_since_events_were_lost_is_believed_once_requests_find_it(lacks):
    stage = Stage(lacks, seed=3)

    after = stage.recovered("socket")

    assert after is not None
    assert missed(stage, "after") <= HITS
