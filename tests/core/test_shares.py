"""Tenants' shares: who is over is refused in a contest, who is within sees none of it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.gate import Gate, Gates
from leadsman.policies.plain import PredictedWait
from leadsman.prediction import Admitted, Reason
from leadsman.records import Ended, Outcome
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.shares import Shares
from leadsman.units import RequestId, WorkerId

KEPT = Choice(index=0, because="cheapest")
PROMPT = 1000


class Pool:
    """One worker that prefills `rate` tokens a second, in order, behind a gate."""

    def __init__(self, fake_worker, candidates_of, budget, *, rate=10_000):
        self.gate = Gate(PredictedWait(), budget, lambda _: None)
        self.make, self.of, self.budget, self.rate = fake_worker, candidates_of, budget, rate
        self.free_at, self.refused, self.sent, self.number = 0.0, {}, {}, 0

    def ask(self, tenant, now, bound=5.0, *, prompt=PROMPT, ttft=None):
        self.number += 1
        wait = max(0.0, self.free_at - now)
        asked = Request(
            id=RequestId(f"r{self.number}"),
            model="m",
            prompt_tokens=prompt,
            arrived_at=now,
            tenant=tenant,
            max_queue_wait=bound,
            ttft_objective=ttft,
        )
        worker = self.make(name="w", wait=wait, prefill=prompt / self.rate)
        soundings = Soundings(asked, self.of([worker]), 0.9, now)
        verdict = self.gate.admit(None, soundings, KEPT, self.budget)
        if isinstance(verdict, Excess):
            self.refused.setdefault(tenant, []).append(verdict)
            return verdict
        self.sent[tenant] = self.sent.get(tenant, 0) + 1
        self.free_at = max(self.free_at, now) + prompt / self.rate
        admitted = Admitted(
            request=asked.id, worker=WorkerId("w"), endpoint="w", prediction=soundings.sound(0)
        )
        self.gate.sent(asked, None, admitted, now)
        return verdict

    def run(self, per_s, *, seconds=120, bounds=None, prompts=None, since=0.0, seed=1):
        rng = Random(seed)
        arrivals = sorted(
            (rng.uniform(since, since + seconds), tenant)
            for tenant, rate in per_s.items()
            for _ in range(round(rate * seconds))
        )
        for at, tenant in arrivals:
            bound, prompt = (bounds or {}).get(tenant, 5.0), (prompts or {}).get(tenant, PROMPT)
            self.ask(tenant, at, bound, prompt=prompt)
        return self


@pytest.mark.parametrize("bounds", [None, {"loud": 300.0}], ids=["alike", "a patient crowd"])
def test_a_tenant_within_its_share_sees_no_refusal_when_another_sends_ten_times(
    fake_worker, candidates_of, bounds
):
    alone, together = (
        Pool(fake_worker, candidates_of, Budget(unit="tenant")).run(per_s, bounds=bounds)
        for per_s in ({"quiet": 4.0}, {"quiet": 4.0, "loud": 40.0})
    )

    assert not alone.refused.get("quiet")
    assert not together.refused.get("quiet")
    assert len(together.refused["loud"]) > 0.5 * 40 * 120
    assert sum(together.sent.values()) > 0.95 * 10 * 120


@pytest.mark.parametrize("prompt", [100, 10_000], ids=["short", "long"])
def test_long_prompts_of_who_is_over_leave_room_for_who_is_within(
    fake_worker, candidates_of, prompt
):
    pool, per_s = Pool(fake_worker, candidates_of, Budget(unit="tenant")), {"quiet": 4, "loud": 40}
    pool.run(per_s, prompts={"loud": prompt}, seconds=20)
    at_first = len(pool.refused.pop("quiet", ()))

    pool.run(per_s, prompts={"loud": prompt}, since=20.0)

    assert at_first <= 2
    assert "quiet" not in pool.refused
    assert pool.sent["loud"] * prompt > 0.5 * 0.6 * 10_000 * 140


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 40_000)), min_size=9, max_size=60))
def test_who_is_over_leaves_half_of_what_the_others_can_wait(fake_worker, candidates_of, asked):
    pool = Pool(fake_worker, candidates_of, Budget(unit="tenant"), rate=10_000)
    pool.ask("a", 0.0)
    pool.ask("b", 0.0)

    for number, (tenant, prompt) in enumerate(asked):
        now = 0.1 * number
        is_over = pool.gate.shares.standing(tenant, now).over > 1
        before = pool.free_at
        pool.ask(tenant, now, prompt=prompt)

        if is_over and before > now + 0.1 and pool.free_at > before:
            assert pool.free_at - now <= 5.0 / 2


@pytest.mark.parametrize(("ttft", "prompt"), [(9.0, 30_000), (6.5, 10_000)])
def test_a_ttft_objective_is_a_wait_beside_the_prefill(fake_worker, candidates_of, ttft, prompt):
    pool = Pool(fake_worker, candidates_of, Budget(unit="tenant"))
    pool.ask("loud", 0.0, 300.0, prompt=50_000)
    pool.ask("quiet", 0.0, None, prompt=prompt, ttft=ttft)
    over = pool.gate.shares.standing("loud", 0.0).over

    refused = pool.ask("loud", 0.0, 300.0, prompt=10)

    assert refused.reason is Reason.OVER_SHARE
    assert refused.bound + 10 / 10_000 == pytest.approx((ttft - prompt / 10_000) / (1 + over))


def test_without_shares_the_loud_one_takes_it_from_the_quiet_one(fake_worker, candidates_of):
    pool = Pool(fake_worker, candidates_of, Budget()).run({"quiet": 4.0, "loud": 40.0})

    assert len(pool.refused["quiet"]) > 100


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_in_a_contest_of_all_work_is_as_the_weights(fake_worker, candidates_of, weight):
    pool = Pool(fake_worker, candidates_of, Budget(shares={"a": weight}))

    pool.run({"a": 40.0, "b": 40.0})

    assert pool.sent["a"] / pool.sent["b"] == pytest.approx(weight, rel=0.15)


@given(st.lists(st.sampled_from("abc"), max_size=60), st.floats(0.01, 100))
def test_where_nobody_waits_nobody_is_refused(fake_worker, candidates_of, tenants, weight):
    pool = Pool(fake_worker, candidates_of, Budget(shares={"a": weight}))

    for number, tenant in enumerate(tenants):
        pool.ask(tenant, number * 1.0)

    assert not pool.refused


def test_one_tenant_alone_is_held_to_the_policy_only(fake_worker, candidates_of):
    pool = Pool(fake_worker, candidates_of, Budget(unit="tenant")).run({"a": 40.0})

    assert {one.reason for one in pool.refused["a"]} == {Reason.WOULD_WAIT_TOO_LONG}


def test_who_is_over_is_told_its_own_numbers(fake_worker, candidates_of):
    pool = Pool(fake_worker, candidates_of, Budget(unit="tenant"))

    pool.run({"quiet": 4.0, "loud": 40.0})

    told = pool.refused["loud"][-1]
    assert told.reason is Reason.OVER_SHARE
    assert told.read["tenant_share"] == 0.5
    assert 0.5 < told.read["tenant_used"] < 0.9
    assert told.read["tenant_tokens"] > 0


def test_an_answer_is_charged_when_it_is_over():
    shares = Shares({})
    shares.sent(RequestId("r"), "a", 100, 0.0)
    before = shares.standing("a", 0.0).tokens

    shares.ended(RequestId("r"), 50, 0.0)
    shares.ended(RequestId("r"), 50, 0.0)

    assert (before, shares.standing("a", 0.0).tokens) == (100, 200)


def test_work_is_forgotten_by_halves():
    shares = Shares({})
    shares.sent(RequestId("r"), "a", 100, 0.0)

    assert shares.standing("a", 30.0).tokens == pytest.approx(50)


def test_who_asks_no_more_shares_no_more(fake_worker, candidates_of):
    pool = Pool(fake_worker, candidates_of, Budget(unit="tenant"))
    pool.ask("gone", 0.0)

    for number in range(200):
        pool.ask("left", 61.0 + number * 0.01)

    assert Reason.OVER_SHARE not in {one.reason for one in pool.refused.get("left", [])}


def test_a_gate_learns_the_end_of_what_it_sent(fake_worker, candidates_of):
    pool = Pool(fake_worker, candidates_of, Budget(unit="tenant"))
    pool.ask("a", 0.0)

    pool.gate.saw(
        Ended(
            worker=WorkerId("w"),
            request=RequestId("r1"),
            at=1.0,
            outcome=Outcome.FINISHED,
            completion_tokens=7,
        ),
        0.0,
    )

    assert pool.gate.shares.standing("a", 0.0).tokens == PROMPT + 14


def test_only_tenants_with_a_weight_of_their_own_are_told_of():
    gates = Gates()
    shares = gates.of(Budget(name="b", shares={"a": 3.0, "away": 1.0})).shares
    for tenant, tokens in (("a", 300), ("nobody-declared", 100)):
        shares.sent(RequestId(tenant), tenant, tokens, 0.0)

    told = {(budget, tenant): one for budget, tenant, one in gates.standings(0.0)}

    assert set(told) == {("b", "a"), ("b", "away")}
    assert (told["b", "a"].share, told["b", "a"].used) == (0.75, 0.75)
    assert told["b", "away"].used == 0
