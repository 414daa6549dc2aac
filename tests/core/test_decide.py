"""The one decision, from soundings to an answer."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.budget import Budget, BudgetError
from leadsman.decide import decide
from leadsman.prediction import Admitted, Reason, Refused
from leadsman.request import Request
from leadsman.units import RequestId

waits = st.lists(st.floats(0, 100), min_size=1, max_size=12)


def request(name="r", **wishes):
    return Request(id=RequestId(name), model="m", prompt_tokens=1000, arrived_at=0.0, **wishes)


@given(waits, st.floats(5, 300), st.integers(0, 100))
def test_a_request_is_refused_only_where_no_worker_would_serve_it_in_time(
    fake_worker, candidates_of, fleet_waits, bound, seed
):
    workers = [fake_worker(name=f"w{i}", wait=wait) for i, wait in enumerate(fleet_waits)]

    decision = decide(
        request(max_queue_wait=bound), candidates_of(workers), Budget(), 0.0, Random(seed)
    )

    assert isinstance(decision, Admitted) == (min(fleet_waits) <= bound)


@given(waits, st.integers(0, 100))
def test_the_worker_is_admitted_on_the_prediction_that_chose_it(
    fake_worker, candidates_of, fleet_waits, seed
):
    workers = [fake_worker(name=f"w{i}", wait=wait) for i, wait in enumerate(fleet_waits)]

    decision = decide(request(), candidates_of(workers), Budget(), 0.0, Random(seed))

    assert decision.prediction.worker == decision.worker
    assert decision.prediction in decision.candidates
    assert decision.endpoint not in decision.fallbacks
    assert all(worker.replays <= 1 for worker in workers)


def test_the_same_chance_gives_the_same_decision(fake_worker, candidates_of):
    workers = [fake_worker(name=f"w{i}") for i in range(32)]

    first, second = (
        decide(request(), candidates_of(workers), Budget(), 0.0, Random(5)) for _ in range(2)
    )

    assert first == second


@pytest.mark.parametrize("readiness", [[], [False, False]], ids=["nobody", "nobody ready"])
def test_no_ready_endpoint_is_a_503_whatever_the_budget_says(fake_worker, candidates_of, readiness):
    workers = [fake_worker(name=f"w{i}", ready=ready) for i, ready in enumerate(readiness)]
    budget = Budget(mode="shadow", statuses={Reason.OVERLOADED: 529})

    decision = decide(request(), candidates_of(workers), budget, 0.0, Random(0))

    assert isinstance(decision, Refused)
    assert (decision.reason, decision.status) == (Reason.NO_ENDPOINT, 503)
    assert 1 <= decision.retry_after <= 120


def test_no_budget_says_another_status_for_no_ready_endpoint():
    with pytest.raises(BudgetError, match="no_endpoint"):
        Budget(statuses={Reason.NO_ENDPOINT: 429})


def test_a_worker_that_is_not_ready_gets_nothing(fake_worker, candidates_of):
    loading = fake_worker(name="loading", prefill=0.1, ready=False)
    ready = fake_worker(name="ready", wait=3.0)

    decision = decide(request(), candidates_of([loading, ready]), Budget(), 0.0, Random(0))

    assert decision.worker == "ready"
    assert decision.fallbacks == ()


def test_shadow_mode_admits_and_keeps_the_refusal(fake_worker, candidates_of):
    candidates = candidates_of([fake_worker(name="w", wait=60.0)])
    budget = Budget(max_queue_wait=5.0, mode="shadow")

    decision = decide(request(), candidates, budget, 0.0, Random(0))

    assert isinstance(decision, Admitted)
    assert decision.because == "shadow"
    assert decision.refusal.reason is Reason.WOULD_WAIT_TOO_LONG
    assert all(candidates.returns.booked(second) == 0 for second in range(122))


def test_probes_admit_their_share_of_refusals(fake_worker, candidates_of):
    budget = Budget(max_queue_wait=5.0, probes=0.2)
    rng = Random(3)

    decisions = [
        decide(request(), candidates_of([fake_worker(name="w", wait=60.0)]), budget, 0.0, rng)
        for _ in range(1000)
    ]

    probes = [decision for decision in decisions if isinstance(decision, Admitted)]
    assert 150 < len(probes) < 250
    assert {probe.because for probe in probes} == {"probe"}
    assert all(probe.refusal is not None for probe in probes)


def test_callers_refused_together_come_back_one_after_another(fake_worker, candidates_of):
    candidates = candidates_of([fake_worker(name="w", wait=25.0, prefill=2.0)])
    budget = Budget(max_queue_wait=5.0, retry_jitter=0.0)
    rng = Random(1)

    backs = sorted(
        decide(request(f"r{i}"), candidates, budget, 0.0, rng).retry_after for i in range(40)
    )

    assert 20 <= backs[0] < 22
    assert all(sum(at <= back < at + 10 for back in backs) <= 7 for at in range(20, 110))


def test_a_pool_that_is_booked_out_tells_callers_to_fall_back(fake_worker, candidates_of):
    candidates = candidates_of([fake_worker(name="w", wait=25.0, prefill=10.0)])
    budget = Budget(max_queue_wait=5.0)
    rng = Random(1)

    refusals = [decide(request(f"r{i}"), candidates, budget, 0.0, rng) for i in range(20)]

    assert refusals[0].should_retry
    assert not refusals[-1].should_retry
    assert all(1 <= refused.retry_after < 200 for refused in refusals)


def test_many_unmeasured_workers_serve_rather_than_refuse(fake_worker, candidates_of):
    workers = [
        fake_worker(name=f"w{i}", wait=30.0, prefill=20.0, curve="unmeasured") for i in range(5)
    ]

    decisions = [
        decide(request(max_queue_wait=5.0), candidates_of(workers), Budget(), 0.0, Random(seed))
        for seed in range(100)
    ]

    assert all(isinstance(decision, Admitted) for decision in decisions)
    assert {decision.prediction.curve for decision in decisions} == {"unmeasured"}


def test_a_cache_lover_that_would_wait_too_long_goes_where_it_fits(fake_worker, candidates_of):
    warm = fake_worker(name="warm", wait=20.0, prefill=0.1, cached=900)
    cold = fake_worker(name="cold", prefill=3.0)
    asked = request(prefers_cache=True, max_queue_wait=5.0)

    decision = decide(asked, candidates_of([warm, cold]), Budget(), 0.0, Random(0))

    assert decision.worker == "cold"
