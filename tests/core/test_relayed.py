"""What several pickers let in, each hears of: shares and sessions are those of all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.gate import KEPT, Gates
from leadsman.prediction import Admitted, Reason
from leadsman.records import Ended, Granted, Outcome
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.units import RequestId, WorkerId

from .conftest import FakeWorker, _candidates

W = WorkerId("w")
CHOICE = Choice(index=0, because="cheapest")


class Pickers:
    """Gates of one budget, each told of what the others let in, a little later or not at all."""

    def __init__(self, budget, count=2, *, tells=True):
        self.budget, self.tells = budget, tells
        self.gates = [Gates() for _ in range(count)]

    def ask(self, at, name, tenant=None, session=None, *, now=0.0, wait=0.0, tokens=100):
        request = Request(
            id=RequestId(name),
            model="m",
            prompt_tokens=tokens,
            arrived_at=now,
            tenant=tenant,
            session=session,
            max_queue_wait=5.0,
        )
        worker = FakeWorker(name="w", wait=wait, prefill=0.1)
        soundings = Soundings(request, _candidates([worker]), 0.9, now)
        gate = self.gates[at].of(self.budget)
        verdict = gate.admit(None, soundings, CHOICE, self.budget)
        if isinstance(verdict, Excess):
            return verdict
        admitted = Admitted(
            request=request.id, worker=W, endpoint="e", prediction=soundings.sound(0)
        )
        gate.sent(request, None, admitted, now)
        granted = Granted(
            worker=W,
            request=request.id,
            at=now,
            prompt_tokens=tokens,
            keys=(),
            max_tokens=None,
            priority=0,
            predicted_ttft=None,
            budget=self.budget.name,
            tenant=tenant,
            session=session,
            cached_tokens=0,
        )
        self.tell(granted, now)
        return verdict

    def tell(self, record, now):
        """A picker that reconnects hears of its own grants again."""
        for gates in self.gates if self.tells else ():
            gates.saw(record, now)

    def end(self, name, answer, now):
        record = Ended(
            worker=W,
            request=RequestId(name),
            at=now,
            outcome=Outcome.FINISHED,
            completion_tokens=answer,
        )
        for gates in self.gates:
            gates.saw(record, now)


calls = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(1, 500), st.integers(0, 40)),
    max_size=20,
)


@given(calls)
def test_every_picker_counts_what_one_that_serves_all_would(some):
    budget = Budget(shares={"a": 2.0})
    many, one = Pickers(budget, 3), Pickers(budget, 1)
    for pickers in (many, one):
        for gates in pickers.gates:
            gates.of(budget)
        for number, (at, tenant, tokens, answer) in enumerate(some):
            now = number * 0.5
            where = at % len(pickers.gates)
            pickers.ask(where, f"r{number}", tenant, now=now, tokens=tokens)
            pickers.end(f"r{number}", answer, now + 0.2)

    [alone] = [gates.of(budget).shares for gates in one.gates]
    for gates in many.gates:
        shares = gates.of(budget).shares
        for tenant in "abc":
            assert shares.standing(tenant, 10.0).tokens == pytest.approx(
                alone.standing(tenant, 10.0).tokens
            )


@pytest.mark.parametrize("tells", [True, False])
def test_who_is_over_its_share_is_so_at_every_picker(tells):
    pickers = Pickers(Budget(shares={}), tells=tells)
    for number in range(20):
        pickers.ask(0, f"q{number}", "quiet")
        pickers.ask(1, f"l{number}", "loud", tokens=1000)

    verdict = pickers.ask(1, "more", "loud", wait=4.0)

    assert isinstance(verdict, Excess) == tells
    if tells:
        assert verdict.reason is Reason.OVER_SHARE


@pytest.mark.parametrize("tells", [True, False])
def test_a_session_that_is_in_is_in_at_every_picker(tells):
    pickers = Pickers(Budget(unit="session"), tells=tells)
    pickers.gates[1].of(pickers.budget)
    pickers.ask(0, "first", session="s")

    verdict = pickers.ask(1, "second", session="s", wait=60.0)

    assert isinstance(verdict, Excess) != tells


def test_the_window_counts_the_sessions_of_all():
    pickers = Pickers(Budget(unit="session"))
    for gates in pickers.gates:
        gates.of(pickers.budget)

    verdicts = [pickers.ask(n % 2, f"r{n}", session=f"s{n}", wait=60.0 * (n > 3)) for n in range(8)]

    inside = [len(gates.of(pickers.budget).sessions) for gates in pickers.gates]
    assert inside[0] == inside[1] == sum(not isinstance(one, Excess) for one in verdicts)


def test_of_a_budget_with_another_name_nothing_is_counted():
    pickers = Pickers(Budget(shares={}))
    other = Budget(name="other", shares={})
    gate = pickers.gates[0].of(other)

    pickers.ask(1, "r", "loud")

    assert gate.shares.standing("loud", 0.0).tokens == 0


def test_rules_that_nobody_has_asked_for_long_are_forgotten():
    budgets = [Budget(shares={"a": float(n + 1)}) for n in range(50)]
    pickers = [Pickers(one, 1) for one in budgets]
    gates = pickers[0].gates[0]
    for number, one in enumerate(pickers):
        one.gates = [gates]
        one.ask(0, f"r{number}", "a", now=number * 60.0)

    pickers[-1].end("none", 1, 60.0 * 50)

    assert 1 <= len(gates) <= 2 + KEPT / 60
    assert gates.of(budgets[-1]).shares.standing("a", 60.0 * 50).tokens > 0
