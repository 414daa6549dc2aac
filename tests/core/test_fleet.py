from dataclasses import replace
from random import Random
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.curve import DEFAULT_CURVE, fingerprint
from leadsman.engine import EngineSettings
from leadsman.fleet import Fleet
from leadsman.prediction import Admitted, Reason, Refused
from leadsman.records import (
    STORE,
    Ended,
    Granted,
    KvEvents,
    Learned,
    Outcome,
    Stored,
    StoreSeen,
    TokensSeen,
    Trust,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId

A, B = WorkerId("a:8000"), WorkerId("b:8000")
SIZE = 16
WEIGHTS = (0.008, 3e-5, 8e-11, 2e-5, 5e-9, 0.004)


def engine(**settings):
    usual = {
        "model": "m",
        "version": "0.33.0",
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 8,
        "max_model_len": 131_072,
        "block_size": SIZE,
        "num_blocks": 50_000,
    }
    return EngineSettings(**usual | settings)


def see(fleet, worker, **settings):
    fleet.apply(WorkerSeen(worker=worker, endpoint=worker, settings=engine(**settings)), 0.0)


def measured(fleet, worker, **settings):
    see(fleet, worker, **settings)
    samples = tuple((256 << n, 0.02 + 3e-5 * (256 << n)) for n in range(9))
    fleet.apply(
        Learned(
            worker=worker,
            fingerprint=fingerprint(engine(**settings)),
            samples=samples,
            step_weights=WEIGHTS,
        ),
        0.0,
    )


def fleet_of(*workers, **settings):
    fleet = Fleet()
    for worker in workers:
        measured(fleet, worker, **settings)
    return fleet


def keys(seed, blocks):
    return np.random.default_rng(seed).integers(1, 2**64, blocks, dtype=np.uint64)


def ask(name, prompt=4096, *, seed=None, **fields):
    named = keys(crc32(name.encode()) if seed is None else seed, prompt // SIZE)
    return Request(
        id=RequestId(name),
        model="m",
        prompt_tokens=prompt,
        arrived_at=0.0,
        keys={SIZE: named},
        **fields,
    )


def decide(fleet, request, now=1.0, **budget):
    return fleet.decide(request, Budget(**budget), now, Random(1))


def granted(worker, name, prompt=4096, at=1.0):
    return Granted(
        worker=worker,
        request=RequestId(name),
        at=at,
        prompt_tokens=prompt,
        keys=keys(crc32(name.encode()), prompt // SIZE),
        max_tokens=None,
        priority=0,
        predicted_ttft=None,
    )


def first_token(worker, name, at):
    return TokensSeen(worker=worker, request=RequestId(name), at=at, tokens=1)


def ended(worker, name, at, *, outcome=Outcome.FINISHED, tokens=20):
    return Ended(
        worker=worker, request=RequestId(name), at=at, outcome=outcome, completion_tokens=tokens
    )


def stored(worker, held, *, sequence=0, session=None):
    return KvEvents(
        worker=worker,
        sequence=sequence,
        engine_time=1.0,
        received_at=1.0,
        events=(Stored(keys=held, session=session),),
    )


def price(fleet, worker, request=None, now=1.0):
    return fleet.workers[worker].price(request or ask("probe"), now)


def isolated(fleet, worker, *, samples=10, seconds=lambda n: 0.05 + 2e-5 * n):
    """Let a worker serve requests of many lengths, one at a time."""
    for number in range(samples):
        name, prompt, at = f"alone{number}", 256 << (number % 8), 100.0 * (number + 1)
        fleet.apply(granted(worker, name, prompt, at), at)
        fleet.apply(first_token(worker, name, at + seconds(prompt)), at + seconds(prompt))
        fleet.apply(ended(worker, name, at + seconds(prompt) + 0.2), at + 1.0)


def test_a_worker_learns_its_own_curve_from_requests_that_were_alone():
    fleet = Fleet()
    see(fleet, A)
    before = fleet.workers[A].provenance

    isolated(fleet, A)

    state = fleet.workers[A]
    assert (before, state.provenance) == ("unmeasured", "own")
    assert state.known.curve.seconds(8192) == pytest.approx(0.05 + 2e-5 * 8192, rel=0.1)


def test_a_curve_is_borrowed_from_a_worker_of_the_same_kind():
    fleet = Fleet()
    see(fleet, A, hardware="gpu")
    see(fleet, B, hardware="gpu")
    isolated(fleet, A)

    see(fleet, WorkerId("c:8000"), hardware="gpu")

    assert fleet.workers[WorkerId("c:8000")].provenance == "borrowed"


def test_requests_that_were_not_alone_teach_no_curve():
    fleet = Fleet()
    see(fleet, A)
    fleet.apply(granted(A, "stays", at=0.5), 0.5)

    isolated(fleet, A, samples=20)

    assert fleet.workers[A].known.curve == DEFAULT_CURVE


def test_other_settings_discard_what_was_learned():
    fleet = fleet_of(A)
    before = fleet.workers[A].provenance

    see(fleet, A, max_num_batched_tokens=8192)

    assert (before, fleet.workers[A].provenance) == ("own", "unmeasured")


def test_the_same_worker_said_again_changes_nothing():
    fleet = fleet_of(A)
    fleet.apply(granted(A, "r"), 1.0)
    state = fleet.workers[A]

    see(fleet, A)

    assert fleet.workers[A] is state
    assert state.mirror.flights


def test_a_sequence_that_falls_back_is_a_restart_that_keeps_the_speed():
    fleet = fleet_of(A)
    fleet.apply(granted(A, "lost", 65_536), 1.0)
    fleet.apply(stored(A, keys(5, 100), sequence=40), 1.0)
    before = price(fleet, A)

    fleet.apply(stored(A, keys(6, 1), sequence=0), 2.0)

    after, state = price(fleet, A, now=2.0), fleet.workers[A]
    assert before.queue_wait > 1.0
    assert after.queue_wait < 0.1
    assert state.provenance == "own"
    assert not any(key in state.mirror.pool for key in keys(5, 100).tolist())


def test_what_another_picker_granted_is_ahead_in_the_queue():
    fleet = fleet_of(A)
    before = price(fleet, A)

    fleet.apply(granted(A, "theirs", 65_536), 1.0)

    after = price(fleet, A)
    assert after.queue_wait > before.queue_wait + 1.0
    assert after.queued_tokens == 65_536


def test_a_grant_that_comes_back_from_the_stream_is_not_counted_twice():
    fleet = fleet_of(A)
    decision = decide(fleet, ask("ours", 65_536))
    before = price(fleet, A)

    fleet.apply(granted(A, "ours", 65_536), 1.0)

    assert isinstance(decision, Admitted)
    assert price(fleet, A) == before


def test_requests_in_flight_are_counted_until_they_end_whoever_granted_them():
    fleet = fleet_of("a", "b")
    fleet.apply(granted("a", "mine"), 1.0)
    fleet.apply(granted("a", "theirs"), 1.0)
    before = fleet.in_flight()

    fleet.apply(ended("a", "theirs", 2.0), 2.0)

    assert before == {"a": 2, "b": 0}
    assert fleet.in_flight() == {"a": 1, "b": 0}


def test_the_second_of_a_burst_sees_the_first():
    fleet = fleet_of(A)

    first, second = (decide(fleet, ask(name, 32_768)) for name in ("first", "second"))

    assert first.prediction.price.queue_wait < 0.1
    assert second.prediction.price.queue_wait > 0.9


def test_a_burst_is_spread_over_the_workers():
    fleet = fleet_of(A, B)

    workers = [decide(fleet, ask(f"r{n}", 32_768)).worker for n in range(6)]

    assert workers.count(A) == workers.count(B) == 3


outcomes = st.sampled_from(list(Outcome))


@given(
    st.lists(
        st.tuples(st.integers(1, 20_000), st.booleans(), st.integers(1, 40), outcomes), max_size=12
    ),
    st.booleans(),
)
def test_nothing_is_left_of_requests_that_ended(served, is_async):
    fleet = fleet_of(A, B, async_scheduling=is_async)
    workers, now = {}, 1.0
    for number, (prompt, _, _, _) in enumerate(served):
        now += 0.01
        workers[number] = decide(fleet, ask(f"r{number}", prompt), now).worker
    for number, (prompt, has_begun, tokens, outcome) in enumerate(served):
        now += 0.5
        name, worker = f"r{number}", workers[number]
        if has_begun:
            whole = keys(crc32(name.encode()), prompt // SIZE)
            fleet.apply(stored(worker, whole, sequence=number + 1, session=name), now)
            fleet.apply(first_token(worker, name, now), now)
        fleet.apply(ended(worker, name, now + 0.2, outcome=outcome, tokens=tokens), now + 0.2)

    for state in fleet.workers.values():
        assert not state.mirror.flights
        assert not state._expectations
        assert not state.mirror.pool.pins
        assert not state.mirror.replay.has_work
        assert not state.mirror.replay.waiting
        state.mirror.pool.check()


def test_a_worker_that_left_takes_everything_with_it():
    fleet = fleet_of(A)
    fleet.apply(stored(A, keys(1, 50)), 1.0)
    fleet.apply(granted(A, "r"), 1.0)

    fleet.apply(WorkerGone(worker=A), 2.0)

    assert not fleet.workers
    assert fleet.index.distinct_blocks == 0
    assert decide(fleet, ask("next")).reason is Reason.NO_ENDPOINT


def test_a_store_is_no_worker_and_gives_its_memory_back_when_it_is_gone():
    fleet = fleet_of(A)
    store = WorkerId(f"{STORE}http://coordinator m")
    seen = StoreSeen(worker=store, chunks=3, unused={"unplaced": 1})

    fleet.apply(seen, 1.0)
    fleet.apply(stored(store, keys(1, 50)), 1.0)
    held, workers, stores = fleet.index.distinct_blocks, list(fleet.workers), dict(fleet.stores)
    fleet.apply(WorkerGone(worker=store), 2.0)

    assert (held, workers, stores) == (len(keys(1, 50)), [A], {store: seen})
    assert fleet.index.distinct_blocks == 0
    assert fleet.stores == {}


@pytest.mark.parametrize(
    "late",
    [
        stored(A, keys(1, 50), sequence=9),
        granted(A, "r"),
        first_token(A, "r", 3.0),
        ended(A, "r", 3.0),
        TrustChanged(worker=A, trust=Trust.LIVE, reason="late"),
        WorkerGone(worker=A),
    ],
    ids=lambda record: type(record).__name__,
)
def test_what_comes_late_of_a_worker_that_left_is_dropped(late):
    fleet = fleet_of(A, B)
    fleet.apply(WorkerGone(worker=A), 2.0)

    fleet.apply(late, 3.0)

    assert set(fleet.workers) == {B}
    assert fleet.index.distinct_blocks == 0


def test_a_worker_that_comes_back_starts_empty():
    fleet = fleet_of(A)
    fleet.apply(granted(A, "old", 65_536), 1.0)
    fleet.apply(WorkerGone(worker=A), 2.0)

    measured(fleet, A)

    assert price(fleet, A, now=3.0).queue_wait < 0.1


def test_what_a_worker_holds_is_credited_but_never_the_last_token():
    fleet, whole = fleet_of(A, B), keys(3, 256)
    fleet.apply(TrustChanged(worker=A, trust=Trust.LIVE, reason="test"), 0.0)
    fleet.apply(stored(A, whole), 1.0)
    request = Request(
        id=RequestId("r"), model="m", prompt_tokens=4096, arrived_at=0.0, keys={SIZE: whole}
    )

    decision = decide(fleet, request)

    assert decision.worker == A
    assert decision.prediction.price.cached_tokens == 4096 - SIZE


def test_a_request_that_does_not_read_the_cache_gets_no_credit():
    fleet, whole = fleet_of(A), keys(3, 256)
    fleet.apply(TrustChanged(worker=A, trust=Trust.LIVE, reason="test"), 0.0)
    fleet.apply(stored(A, whole), 1.0)

    decision = decide(fleet, ask("r", seed=3, reads_cache=False))

    assert decision.prediction.price.cached_tokens == 0


def test_a_prompt_longer_than_a_workers_context_goes_elsewhere():
    fleet = fleet_of(A, max_model_len=8192)
    measured(fleet, B)
    fleet.apply(granted(B, "busy", 131_000), 1.0)

    decision = decide(fleet, ask("long", 30_000))

    assert decision.worker == B


def test_a_prompt_longer_than_every_context_is_sent_so_that_an_engine_says_so():
    fleet = fleet_of(A, max_model_len=8192)

    decision = decide(fleet, ask("long", 30_000))

    assert isinstance(decision, Admitted)


def test_a_session_goes_home():
    fleet = fleet_of(A, B)
    first = decide(fleet, ask("turn1", session="talk"))
    fleet.apply(ended(first.worker, "turn1", 1.5), 1.5)

    workers = set()
    for number in range(6):
        turn = decide(fleet, ask(f"turn{number + 2}", session="talk"), 2.0 + number)
        fleet.apply(ended(turn.worker, f"turn{number + 2}", 2.5 + number), 2.5 + number)
        workers.add(turn.worker)

    assert workers == {first.worker}


@given(
    st.lists(st.integers(100, 60_000), max_size=8),
    st.integers(100, 20_000),
    st.booleans(),
    st.floats(0, 3),
)
def test_floors_are_never_above_the_price(queued, prompt, is_async, later):
    fleet = fleet_of(A, async_scheduling=is_async)
    for number, tokens in enumerate(queued):
        fleet.apply(granted(A, f"q{number}", tokens), 1.0)
    request = ask("probe", prompt)
    price(fleet, A, request)

    candidates = fleet.candidates(request, 1.0 + later)

    found = price(fleet, A, request, 1.0 + later)
    floor = candidates.own_floors[0] + candidates.wait_floors[0]
    assert floor <= found.ttft * (1 + 1e-9)


def test_only_workers_of_the_model_and_the_subset_are_asked():
    fleet = fleet_of(A, B)
    measured(fleet, WorkerId("c:8000"), model="other")

    only_b = decide(fleet, ask("r", endpoints=frozenset([B])))
    nobody = decide(fleet, ask("s", endpoints=frozenset(["d:8000"])))

    assert only_b.worker == B
    assert isinstance(nobody, Refused)
    assert fleet.block_sizes("m") == (SIZE,)
    assert fleet.block_sizes("unknown") == ()


def test_a_witness_is_wanted_only_of_workers_that_are_there():
    fleet = fleet_of(A)

    assert fleet.wants_witness(A)
    assert not fleet.wants_witness(B)


def test_models_that_clients_make_up_leave_nothing_behind():
    fleet = fleet_of(A)

    for number in range(50):
        fleet.block_sizes(f"made-up-{number}")
        fleet.candidates(replace(ask(f"r{number}"), model=f"made-up-{number}"), 1.0)

    assert fleet._standings.keys() | fleet._returns.keys() | fleet._looks.keys() <= {"m"}


def test_a_model_that_nobody_serves_any_more_leaves_nothing_behind():
    fleet = fleet_of(A)
    fleet.candidates(ask("r"), 1.0)

    fleet.apply(WorkerGone(worker=A), 2.0)

    assert not fleet._standings
    assert not fleet._returns
    assert not fleet._looks


def test_looking_at_a_queue_changes_nothing_that_a_decision_reads():
    def burst(*, looks):
        fleet, found = fleet_of(A, B), []
        for i in range(12):
            now = 1.0 + i / 50
            queues = [fleet.outlook(worker, now).queue.queue_wait for worker in (A, B) if looks]
            decision = decide(fleet, ask(f"r{i}"), now)
            found.append((decision.worker, decision.prediction.price.ttft))
        return found, queues

    blind, _ = burst(looks=False)
    seen, queues = burst(looks=True)

    assert seen == blind
    assert min(queues) > 0


def test_an_outlook_says_what_is_held_in_each_tier():
    fleet = fleet_of(A)
    fleet.apply(stored(A, keys(1, 5)), 1.0)

    outlook = fleet.outlook(A, 1.0)

    assert (outlook.held, outlook.room, outlook.in_flight) == ((("GPU", 5),), 50_000, 0)
    assert len(outlook.samples) == 9


def decided(fleet, name, **more):
    request = Request(id=RequestId(name), model="m", arrived_at=1.0, **more)
    return fleet.decide(request, Budget(), 1.0, Random(1))


def test_prompts_longer_together_than_any_context_are_priced_as_a_sum_and_block_nobody():
    fleet = Fleet()
    measured(fleet, A, max_model_len=8192, num_blocks=1024)
    batch = decided(fleet, "batch", prompt_tokens=40_000, max_tokens=1)
    behind = decided(fleet, "behind", prompt_tokens=100)

    assert isinstance(batch, Admitted)
    assert isinstance(behind, Admitted)
    whole = batch.prediction.price.own_prefill
    assert 40_000 * WEIGHTS[1] < whole < 3 * 40_000 * WEIGHTS[1]
    assert behind.prediction.price.ttft < whole
