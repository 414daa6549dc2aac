"""Each admission policy against its own definition, and what all of them must keep to."""

import math
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.decide import decide
from leadsman.gate import Gates, lacking
from leadsman.policies import BUILT_IN
from leadsman.policies.deadlines import Chronos
from leadsman.policies.optimizer import CLASSES, FleetOptimizer, Queued, planned
from leadsman.policy import Policy, PolicyError, SignalLostError, parameters
from leadsman.prediction import Admitted, Reason, Refused
from leadsman.records import Ended, Outcome, TokensSeen
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.signals import Signal
from leadsman.units import RequestId, WorkerId

CHEAPEST = Choice(index=0, because="cheapest")
ALL = {
    Signal.KV_USAGE: 0.1,
    Signal.WAITING: 0.0,
    Signal.RUNNING: 1.0,
    Signal.HIT_RATE: 0.5,
    Signal.IN_FLIGHT: 1.0,
    Signal.QUEUED_TOKENS: 0.0,
    Signal.SLOTS: 8.0,
    Signal.STEP_TOKENS: 2048.0,
}


def request(name="r", **wishes):
    wishes = {"prompt_tokens": 1000, "arrived_at": 0.0} | wishes
    return Request(id=RequestId(name), model="m", **wishes)


def soundings(candidates, now=0.0, **wishes):
    return Soundings(request(arrived_at=now, **wishes), candidates, 0.9, now)


def told(faults, budget):
    return Gates(BUILT_IN | {Broken.name: Broken}, faults.append).of(budget)


@dataclass(kw_only=True)
class Broken(Policy):
    name: ClassVar[str] = "broken"
    source: ClassVar[str] = "a test"
    fallback: ClassVar[str] = "refuse"

    def admit(self, soundings, choice, budget):
        raise ZeroDivisionError("my mistake")


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_pool_without_a_queue_admits_under_every_policy(fake_worker, candidates_of, name):
    workers = [fake_worker(name=f"w{i}", prefill=0.2, signals=ALL) for i in range(3)]
    faults = []
    gate = Gates(on_fault=faults.append).of(Budget(policy=name))
    judge = {} if gate is None else {"judge": lambda *of: gate.admit(None, *of)}

    decision = decide(
        request(ttft_objective=5.0), candidates_of(workers), Budget(), 0.0, Random(1), **judge
    )

    assert isinstance(decision, Admitted)
    assert not faults


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_says_where_it_and_its_parameters_come_from(name):
    policy = Gates().policy(Budget(policy=name))

    listed = parameters(policy)

    assert BUILT_IN[name].source
    assert all(one.provenance.split(":")[0] in {"borrowed", "default"} for one in listed)


def test_a_parameter_that_was_set_is_tuned():
    policy = Gates().policy(Budget(policy="queue_cap", parameters={"limit": 2}))

    told_of = {one.name: one.provenance for one in parameters(policy)}

    assert told_of["limit"].startswith("tuned")
    assert told_of["retry"].startswith("borrowed")


@pytest.mark.parametrize(
    ("policy", "parameters", "words"),
    [
        ("haggle", {}, "no policy 'haggle'; there are chronos, "),
        ("queue_cap", {"most": 3}, "queue_cap: no parameter 'most'; it has limit, retry"),
        ("queue_cap", {"limit": 2.5}, "queue_cap: limit must be a whole number, not 2.5"),
        ("queue_cap", {"limit": 0}, "queue_cap: limit must be above 0, not 0"),
        ("kv_threshold", {"limit": 1.5}, "kv_threshold: limit must be a share"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_told_by_name(policy, parameters, words):
    with pytest.raises(PolicyError) as caught:
        Gates().policy(Budget(policy=policy, parameters=parameters))

    assert words in str(caught.value)


@pytest.mark.parametrize(
    "rule",
    [
        ("kv_threshold", Signal.KV_USAGE, 0.8),
        ("queue_cap", Signal.WAITING, 4),
        ("concurrency_cap", Signal.IN_FLIGHT, 8),
    ],
    ids=lambda rule: rule[0],
)
@given(st.lists(st.one_of(st.none(), st.floats(0, 10)), min_size=1, max_size=6))
def test_a_limit_refuses_only_where_every_worker_tells_that_it_is_reached(
    fake_worker, candidates_of, rule, values
):
    name, signal, limit = rule
    workers = [
        fake_worker(name=f"w{i}", signals=ALL | {signal: value}) for i, value in enumerate(values)
    ]
    policy = BUILT_IN[name]()

    try:
        verdict = policy.admit(soundings(candidates_of(workers)), CHEAPEST, Budget())
    except SignalLostError:
        verdict = None

    fits = [value is not None and value < limit for value in values]
    if any(fits):
        assert fits[verdict.index]
        assert verdict.index == 0 or not fits[0]
    elif None in values:
        assert verdict is None
    else:
        assert verdict.reason is Reason.OVERLOADED
        assert verdict.read == {signal.value: values[0], "limit": limit}


@given(st.lists(st.floats(0, 30), max_size=60), st.floats(1, 600), st.floats(1, 20))
def test_no_key_gets_more_than_its_burst_and_its_rate(
    fake_worker, candidates_of, gaps, per_minute, burst
):
    policy = BUILT_IN["key_rate_limit"](per_minute=per_minute, burst=burst)
    candidates, now, times = candidates_of([fake_worker(name="w")]), 0.0, []
    for gap in gaps:
        now += gap
        verdict = policy.admit(soundings(candidates, now, tenant="a"), CHEAPEST, Budget())
        times += [] if isinstance(verdict, Excess) else [now]

    most = max(
        (len([t for t in times if start <= t <= end]) - (end - start) * per_minute / 60)
        for start in [*times, 0.0]
        for end in [*times, 0.0]
        if end >= start
    )

    assert most <= burst + 1e-6


def test_one_key_over_its_rate_leaves_the_others_alone(fake_worker, candidates_of):
    policy, candidates = BUILT_IN["key_rate_limit"](), candidates_of([fake_worker(name="w")])

    verdicts = [
        policy.admit(soundings(candidates, tenant=tenant), CHEAPEST, Budget())
        for tenant in ["a"] * 11 + ["b"]
    ]

    assert verdicts[10].reason is Reason.OVER_SHARE
    assert verdicts[10].seconds == pytest.approx(1.0)
    assert verdicts[11] == CHEAPEST


@given(st.floats(0.05, 5.0), st.integers(100, 40_000), st.floats(0.5, 20))
def test_chronos_admits_only_what_its_bound_keeps(
    fake_worker, candidates_of, gap, tokens, deadline
):
    policy, candidates = Chronos(), candidates_of([fake_worker(name="w", signals=ALL)])
    for number in range(40):
        asked = soundings(candidates, number * gap, prompt_tokens=tokens, ttft_objective=deadline)
        verdict = policy.admit(asked, CHEAPEST, Budget())

    slots = [math.floor(number * gap / 5.0) for number in range(40) if number * gap > 39 * gap - 60]
    worst = math.ceil(tokens / 2048) * (1e-4 * 2048 + 0.01)
    load = max(map(slots.count, slots)) / 5.0 * worst
    keeps = load < 1 and load * deadline / (1 - load) + worst <= deadline
    assert isinstance(verdict, Choice) == keeps


def test_mooncake_takes_the_least_queue_and_prefill_and_refuses_what_misses(
    fake_worker, candidates_of
):
    queues = [50_000.0, 20_000.0, 90_000.0]
    workers = [
        fake_worker(name=f"w{i}", prefill=0.5, signals=ALL | {Signal.QUEUED_TOKENS: tokens})
        for i, tokens in enumerate(queues)
    ]
    policy, candidates = BUILT_IN["mooncake"](), candidates_of(workers)

    patient, hasty = (
        policy.admit(soundings(candidates, ttft_objective=bound), CHEAPEST, Budget())
        for bound in (2.6, 2.4)
    )

    assert patient.index == 1
    assert hasty.reason is Reason.WOULD_MISS_TTFT
    assert hasty.predicted == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("usage", "hits", "is_refused"),
    [(0.9, 0.2, True), (0.9, 0.9, False), (0.3, 0.2, False)],
)
def test_the_dual_gate_needs_both_signals(fake_worker, candidates_of, usage, hits, is_refused):
    heard = ALL | {Signal.KV_USAGE: usage, Signal.HIT_RATE: hits}
    candidates = candidates_of([fake_worker(name="w", signals=heard)])

    verdict = BUILT_IN["dual_gate"]().admit(soundings(candidates), CHEAPEST, Budget())

    assert isinstance(verdict, Excess) == is_refused


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 999), st.integers(0, 9))))
def test_a_plan_puts_before_a_newcomer_its_own_class_and_all_sooner(found):
    queue = tuple(Queued(WorkerId(name), tokens, place) for name, tokens, place in found)

    ahead = planned(queue)

    for worker in "ab":
        for place in range(len(CLASSES)):
            before = sum(one.tokens for one in queue if one.worker == worker and one.place <= place)
            assert ahead.get((worker, place), 0) == before


def test_the_optimizer_refuses_by_its_plan_once_it_is_there(fake_worker, candidates_of):
    policy, candidates = FleetOptimizer(), candidates_of([fake_worker(name="w", prefill=0.1)])
    for number in range(20):
        policy.sent(request(f"q{number}", ttft_objective=5.0), WorkerId("w"), 0.0)
    asked = soundings(candidates, ttft_objective=5.0)

    before = policy.admit(asked, CHEAPEST, Budget())
    install = policy.plan(0.0)()
    meanwhile = policy.admit(asked, CHEAPEST, Budget())
    install()
    after = policy.admit(asked, CHEAPEST, Budget())

    assert before == meanwhile == CHEAPEST
    assert after.predicted == pytest.approx(20_000 / 1000 + 0.1)
    assert policy.plan(1.0) is None


def test_the_optimizer_learns_how_fast_a_queue_drains(fake_worker, candidates_of):
    policy = FleetOptimizer()
    for number in range(40):
        policy.sent(request(f"q{number}", ttft_objective=5.0), WorkerId("w"), 0.0)
        seen = TokensSeen(worker=WorkerId("w"), request=RequestId(f"q{number}"), at=0.0, tokens=1)
        policy.saw(seen, (number + 1) * 0.1)
    policy.saw(
        Ended(worker=WorkerId("w"), request=RequestId("q0"), at=9.0, outcome=Outcome.FINISHED), 9.0
    )
    for number in range(10):
        policy.sent(request(f"p{number}", ttft_objective=0.9), WorkerId("w"), 9.0)
    policy.plan(9.0)()()

    candidates = candidates_of([fake_worker(name="w", prefill=0.0)])
    asked = soundings(candidates, 9.0, ttft_objective=0.9)

    verdict = policy.admit(asked, CHEAPEST, Budget())

    assert verdict.predicted == pytest.approx(1.0, rel=0.2)


def test_a_lost_signal_falls_back_and_is_told(fake_worker, candidates_of):
    faults, budget = [], Budget(policy="kv_threshold", max_queue_wait=5.0)
    gate = told(faults, budget)
    short, long = (candidates_of([fake_worker(name="w", wait=wait)]) for wait in (1.0, 60.0))

    kept, refused = (gate.admit(None, soundings(one), CHEAPEST, budget) for one in (short, long))

    assert kept == CHEAPEST
    assert (refused.reason, refused.by) == (Reason.WOULD_WAIT_TOO_LONG, "predicted_wait")
    assert [(one.policy, one.cause, one.fallback) for one in faults] == [
        ("kv_threshold", "lost", "predicted_wait")
    ] * 2
    assert "kv_usage" in faults[0].detail


@pytest.mark.parametrize("fallback", ["admit", "refuse", "predicted_wait"])
def test_a_policy_that_raises_does_what_it_declared_and_is_told(
    fake_worker, candidates_of, monkeypatch, fallback
):
    monkeypatch.setattr(Broken, "fallback", fallback)
    faults, budget = [], Budget(policy="broken", max_queue_wait=5.0)
    candidates = candidates_of([fake_worker(name="w", wait=1.0)])

    verdict = told(faults, budget).admit(None, soundings(candidates), CHEAPEST, budget)

    assert isinstance(verdict, Excess) == (fallback == "refuse")
    [fault] = faults
    assert (fault.policy, fault.cause, fault.fallback) == ("broken", "raised", fallback)
    assert "my mistake" in fault.detail


def test_a_policy_that_nobody_knows_decides_as_leadsman_would_and_is_told(
    fake_worker, candidates_of
):
    faults, budget = [], Budget(policy="from_elsewhere", max_queue_wait=5.0)
    candidates = candidates_of([fake_worker(name="w", wait=60.0)])

    verdict = told(faults, budget).admit(None, soundings(candidates), CHEAPEST, budget)

    assert verdict.reason is Reason.WOULD_WAIT_TOO_LONG
    assert [one.cause for one in faults] == ["unknown"]


def test_a_budget_declared_again_keeps_what_its_rules_remember():
    gates = Gates()
    first, again, other, namesake = (
        gates.of(Budget(policy="key_rate_limit", **fields))
        for fields in ({}, {"max_queue_wait": 3.0}, {"name": "b"}, {"parameters": {"burst": 2}})
    )

    assert first is again
    assert len({id(one) for one in (first, other, namesake)}) == 3
    assert gates.of(Budget()) is None


def test_what_no_worker_tells_is_known_before_the_first_request(fake_worker):
    workers = [fake_worker(name="w", signals={Signal.WAITING: 0.0})]

    missing = {
        name: lacking(Gates().policy(Budget(policy=name)), workers, 0.0) for name in BUILT_IN
    }

    assert missing["kv_threshold"] == missing["dual_gate"] == {Signal.KV_USAGE}
    assert missing["queue_cap"] == missing["predicted_wait"] == missing["none"] == frozenset()


def test_switched_off_nobody_is_refused_and_routing_goes_on(fake_worker, candidates_of):
    workers = [fake_worker(name="far", wait=90.0), fake_worker(name="near", wait=60.0)]
    budget = Budget(mode="off", max_queue_wait=5.0)

    def judge(*_):
        raise AssertionError("asked though it is off")

    decision = decide(request(), candidates_of(workers), budget, 0.0, Random(0), judge)

    assert (decision.worker, decision.because, decision.refusal) == ("near", "cheapest", None)


def test_time_that_the_caller_has_waited_counts(fake_worker, candidates_of):
    candidates = candidates_of([fake_worker(name="w", wait=3.0)])
    asked = request(max_queue_wait=5.0, arrived_at=10.0, waited=1.0)

    soon, late = (decide(asked, candidates, Budget(), now, Random(0)) for now in (10.9, 11.1))

    assert isinstance(soon, Admitted)
    assert isinstance(late, Refused)
    assert late.predicted_wait == pytest.approx(5.1)
