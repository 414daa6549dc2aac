from dataclasses import replace
from itertools import islice, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.admit import UNPROVEN
from leadsman.budget import Budget
from leadsman.records import (
    Ended,
    KvEvents,
    LoadSample,
    Outcome,
    Stored,
    TokensSeen,
    WorkerSeen,
)
from leadsman_bench.baselines import LeastLoaded
from leadsman_bench.conversation import bundled_model, generate
from leadsman_bench.offers import capacity, offers
from leadsman_bench.scenario import (
    Incident,
    arrival,
    changed,
    incidents,
    load_at,
    reconfigured,
    workers,
)
from leadsman_bench.simulate import LivePicker
from leadsman_bench.traces import scaled
from leadsman_bench.virtual import VirtualFleet
from leadsman_engines.simulated.hardware import Hardware


class Watching(LeastLoaded):
    """A baseline that keeps what it was shown, and wants the first streams as witnesses."""

    def __init__(self, witnesses=0):
        super().__init__()
        self.shown = []
        self.witnesses = witnesses

    def apply(self, record, now):
        super().apply(record, now)
        self.shown.append((now, record))

    def wants_witness(self, worker):
        self.witnesses -= 1
        return self.witnesses >= 0

    def of(self, kind):
        return [record for _, record in self.shown if isinstance(record, kind)]


class Kept:
    def __init__(self):
        self.streams = []
        self.refusals = []

    def ended(self, stream):
        self.streams.append(stream)

    def refused(self, offer, refused):
        self.refusals.append((offer, refused))


def some_offers(count, *, seed=1, per_s=2.0):
    rows = scaled(
        islice(generate(bundled_model(), requests_per_s=per_s, seed=seed), count), piece_tokens=64
    )
    sizes = [spec.settings.block_size for spec in workers()]
    return list(offers(rows, block_sizes=sizes, rng=Random(seed)))


def serve(count=40, *, befall=(), picker=None, seed=1, specs=None):
    picker, kept = picker or Watching(), Kept()
    fleet = VirtualFleet(specs or workers()[:3], picker, kept, seed=seed)
    for _ in fleet.run(iter(some_offers(count)), iter(befall)):
        pass
    return picker, kept, fleet


def test_every_request_ends_once():
    picker, kept, _ = serve()

    ended = [record.request for record in picker.of(Ended)]

    assert sorted(ended) == sorted(f"r{number}" for number in range(40))
    assert {stream.outcome for stream in kept.streams} == {Outcome.FINISHED}
    assert all(stream.ttft > 0 for stream in kept.streams)


def test_the_same_seed_gives_the_same_run():
    first, second, other = (serve(seed=seed)[1] for seed in (1, 1, 2))

    times = [[stream.ttft for stream in kept.streams] for kept in (first, second, other)]

    assert times[0] == times[1]
    assert times[0] != times[2]


def test_a_picker_sees_things_in_order_and_never_early():
    picker, *_ = serve()

    seen = picker.shown

    assert all(a <= b for (a, _), (b, _) in pairwise(seen))
    assert all(record.received_at == now for now, record in seen if isinstance(record, KvEvents))
    assert all(record.at == now for now, record in seen if isinstance(record, TokensSeen | Ended))


def test_only_witnesses_are_seen_beyond_their_first_token():
    picker, *_ = serve(picker=Watching(witnesses=2))

    more = {record.request for record in picker.of(TokensSeen) if record.tokens > 1}
    first = [record.request for record in picker.of(TokensSeen) if record.tokens == 1]

    assert 1 <= len(more) <= 2
    assert len(first) == len(set(first)) == 40


def test_the_last_chunk_tells_usage():
    picker, kept, _ = serve()

    told = {record.request: record for record in picker.of(Ended)}

    for stream in kept.streams:
        record = told[stream.offer.request.id]
        cap = stream.offer.request.max_tokens or stream.offer.output_tokens
        assert record.completion_tokens == min(cap, stream.offer.output_tokens)
        assert record.cached_tokens == stream.reused


def test_stored_blocks_carry_the_keys_and_the_session_of_their_request():
    picker, kept, _ = serve(10)

    keys = {
        stream.offer.request.id: {
            int(key) for size in stream.offer.request.keys.values() for key in size
        }
        for stream in kept.streams
    }

    stored = [e for record in picker.of(KvEvents) for e in record.events if isinstance(e, Stored)]
    first = {event.session: int(event.keys[0]) for event in reversed(stored)}
    assert len(first) == 10
    assert all(key in keys[session] for session, key in first.items())
    assert all(event.keys.dtype == np.uint64 for event in stored)


def test_a_restart_loses_streams_and_begins_the_sequence_again():
    picker, kept, fleet = serve(60, befall=[Incident(at=8.0, worker=0, kind="restart")])

    seen = [record for record in picker.of(WorkerSeen) if record.worker == fleet.workers[0].id]
    sequences = [r.sequence for r in picker.of(KvEvents) if r.worker == fleet.workers[0].id]

    assert [record.ready for record in seen] == [True, False, True]
    assert sequences.count(0) == 2
    assert {stream.outcome for stream in kept.streams} == {Outcome.FINISHED, Outcome.ENGINE_GONE}
    assert len(kept.streams) == 60


def test_a_reconfigured_worker_comes_back_with_other_settings():
    picker, _, fleet = serve(60, befall=[Incident(at=5.0, worker=1, kind="reconfigure")])

    seen = [record for record in picker.of(WorkerSeen) if record.worker == fleet.workers[1].id]

    assert seen[0].settings == seen[1].settings or not seen[1].ready
    assert seen[0].settings != seen[-1].settings


def test_a_slow_worker_takes_longer():
    spec = workers()[:1]
    _, usual, _ = serve(20, specs=spec)

    slowed = [Incident(at=0.0, worker=0, kind="speed", slowdown=3.0)]
    _, slow, _ = serve(20, specs=spec, befall=slowed)

    assert sum(s.ttft for s in slow.streams) > 2 * sum(s.ttft for s in usual.streams)


def test_load_is_sampled_twice_a_second():
    picker, _, fleet = serve(20, specs=workers()[:1])

    times = [record.at for record in picker.of(LoadSample)]

    assert all(b - a == pytest.approx(0.5) for a, b in pairwise(times))
    assert times[-1] > fleet.now - 1


def test_a_prompt_that_no_worker_holds_is_refused():
    small = [
        replace(spec, settings=changed(spec.settings, max_model_len=4200)) for spec in workers()[:1]
    ]

    _, kept, _ = serve(40, specs=small)

    assert kept.refusals
    assert len(kept.refusals) + len(kept.streams) == 40


@given(st.floats(0, 50_000))
def test_arrivals_follow_the_load(at):
    step = 10.0
    even = at / 0.9

    apart = arrival(even + step) - arrival(even)

    middle = load_at((arrival(even + step) + arrival(even)) / 2)
    assert apart == pytest.approx(step * 0.9 / middle, rel=0.01)


@given(st.integers(0, 1000))
def test_incidents_come_in_order_and_slowness_ends(seed):
    found = list(islice(incidents(16, Random(seed)), 60))

    assert all(a.at <= b.at for a, b in pairwise(found))
    slow = sum(incident.slowdown > 1 for incident in found)
    over = sum(incident.kind == "speed" and incident.slowdown == 1 for incident in found)
    assert slow >= over >= slow - 8


def test_sixteen_workers_differ_and_report_what_they_run():
    specs = workers()

    reported = [spec.reported for spec in specs]

    assert len(specs) == len({spec.name for spec in specs}) == 16
    assert len({settings.block_size for settings in reported}) == 4
    assert {settings.model for settings in reported} == {"conversation"}
    assert all(reconfigured(spec.settings, Random(1)) != spec.settings for spec in specs)


def test_an_engine_of_half_the_speed_has_half_the_capacity():
    spec = workers()[7]
    device = spec.hardware.device
    slow = replace(
        device,
        flops=device.flops / 2,
        bandwidth=device.bandwidth / 2,
        step_overhead=device.step_overhead * 2,
        sequence_overhead=device.sequence_overhead * 2,
    )
    halved = replace(spec, hardware=Hardware(spec.hardware.model, slow))

    whole, half = (capacity([one], bundled_model(), seed=1)[0] for one in (spec, halved))

    assert half == pytest.approx(whole / 2, rel=0.1)


def hurried(count, hold, *, per_s=40.0, important=0):
    """Serve more than two workers can; every fifth request is of an `important` objective."""
    rows = [
        replace(one, request=replace(one.request, importance=important if n % 5 == 0 else 0))
        for n, one in enumerate(some_offers(count, per_s=per_s))
    ]
    kept, waiting = Kept(), []
    picker = LivePicker(Budget(hold=hold), Random(1))
    fleet = VirtualFleet(workers()[:2], picker, kept, seed=1)
    for _ in fleet.run(iter(rows), iter(())):
        waiting += [worker.engine.waiting for worker in fleet.workers]
    return rows, kept, waiting


def test_what_is_held_is_served_or_refused_once_and_engines_queue_little():
    rows, kept, waiting = hurried(60, 60.0)
    _, _, without = hurried(60, None)

    ends = [one.offer.request.id for one in kept.streams]
    ends += [offer.request.id for offer, _ in kept.refusals]
    assert sorted(ends) == sorted(row.request.id for row in rows)
    assert max(waiting) <= UNPROVEN < max(without)
    held = [one for one in kept.streams if one.admitted.held_for]
    assert len(held) > 10
    assert all(one.offer.request.waited == pytest.approx(one.admitted.held_for) for one in held)


def test_the_important_pass_the_others_where_requests_are_held():
    def mean_wait(kept):
        ends = [s for s in kept.streams if int(s.offer.request.id[1:]) % 5 == 0]
        return sum(s.offer.request.waited + s.ttft for s in ends) / len(ends)

    _, alike, _ = hurried(60, 60.0)
    _, first, _ = hurried(60, 60.0, important=1)

    assert mean_wait(first) < mean_wait(alike)
