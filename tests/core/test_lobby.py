"""Who is held, who goes next, and when nobody may be held any longer."""

import math
from collections import Counter
from dataclasses import replace
from functools import cmp_to_key
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.curve import fingerprint
from leadsman.fleet import Fleet
from leadsman.lobby import MOST_ASKED, NEARLY, SOONEST, Held, Lobby, Pace, order, waiting
from leadsman.prediction import Admitted, Reason, Refused
from leadsman.records import (
    Ended,
    Learned,
    LoadSample,
    Outcome,
    Trust,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.units import RequestId, WorkerId

from tests.settings import SETTINGS

from .conftest import FakeWorker, _candidates

ONLY = Choice(index=0, because="cheapest")
RNG = Random(0)


def alike(_held):
    return 1.0


def asked(name="r", at=0.0, **wishes):
    return Request(id=RequestId(name), model="m", prompt_tokens=1000, arrived_at=at, **wishes)


def budget(hold=4.0, **more):
    return Budget(hold=hold, **more)


class Engines:
    """Places what is held on workers that do one request after another; knows all waits exactly."""

    def __init__(self, workers):
        self.free_at = [0.0] * workers
        self.refused_with = []

    def wait(self, now):
        return max(0.0, min(self.free_at) - now)

    def take(self, work, now):
        place = self.free_at.index(min(self.free_at))
        self.free_at[place] = max(self.free_at[place], now) + work

    def place(self, held, now, rng, *, insist):
        wait = self.wait(now)
        if not insist and wait > NEARLY:
            return wait
        if now + wait > held.latest:
            return self.give_up(held, wait, now, rng)
        prediction = self.soundings(held.request, held.work, now).sound(0)
        self.take(held.work, now)
        return Admitted(
            request=held.request.id, worker=WorkerId("w"), endpoint="w:1", prediction=prediction
        )

    def give_up(self, held, wait, now, rng):
        self.refused_with.append(wait)
        return Refused(
            request=held.request.id,
            reason=Reason.WOULD_WAIT_TOO_LONG,
            status=429,
            retry_after=1.0,
            should_retry=True,
        )

    def soundings(self, request, work, now):
        worker = FakeWorker(name="w", wait=self.wait(now), prefill=work)
        return Soundings(request, _candidates([worker] * len(self.free_at)), 0.9, now)


class NaivePace:
    """The same pace, summed anew from all that left."""

    def __init__(self):
        self.left, self.line = [], []

    def of(self, work, workers):
        clock = moved = 0.0
        for at, (passed, size) in self.left:
            since = sum(step for later, (step, _) in self.left if later > at)
            clock += passed * 0.5 ** (since / 20)
            moved += size * 0.5 ** (since / 20)
        return work * (clock + 1 / workers) / (moved + 1)

    def leaves(self, work, now):
        if self.line:
            self.left.append((len(self.left), (now - self.line[-1], work)))
        self.line.append(now)


def goes_before(one, other, over):
    """Compare as the docs say it, one rule after another."""
    if one.request.importance != other.request.importance:
        return -1 if one.request.importance > other.request.importance else 1
    ends = [math.inf if math.isinf(h.latest) else math.floor(h.latest) for h in (one, other)]
    if ends[0] != ends[1]:
        return -1 if ends[0] < ends[1] else 1
    shares = over(one), over(other)
    if shares[0] != shares[1]:
        return -1 if shares[0] < shares[1] else 1
    return -1 if one.number < other.number else 1


def naive_turn(held, engines, pace, over, now, *, stirred):
    """Walk all in order, and say what becomes of each, without any state of a lobby's."""
    told, asked_ = [], 0
    frees_in = engines.wait(now)
    may_go = stirred or frees_in <= NEARLY
    for one in sorted(held, key=cmp_to_key(lambda a, b: goes_before(a, b, over))):
        if (now >= one.until or may_go) and asked_ < MOST_ASKED:
            asked_ += 1
            if now >= one.until or engines.wait(now) <= NEARLY:
                fits = now + engines.wait(now) <= one.latest
                told.append((one.request.id, "placed" if fits else "refused"))
                if fits:
                    engines.take(one.work, now)
                    pace.leaves(one.work, now)
                continue
        if now >= one.latest:
            told.append((one.request.id, "refused"))
    return told


class Held24h(RuleBasedStateMachine):
    """A lobby in front of engines, beside the naive walk and the list of who is where."""

    def __init__(self):
        super().__init__()
        self.now, self.number = 0.0, 0
        self.lobby, self.engines = Lobby(), Engines(2)
        self.naive, self.pace = Engines(2), NaivePace()
        self.tenants = Counter()
        self.fate = {}
        self.stirred = False

    def over(self, held):
        return float(self.tenants[held.request.tenant])

    @rule(
        importance=st.sampled_from([0, 0, 1]),
        bound=st.sampled_from([None, 0.5, 2.0, 2.4, 30.0]),
        work=st.sampled_from([0.05, 0.4, 1.5]),
        tenant=st.sampled_from("ab"),
        hold=st.sampled_from([1.0, 4.0]),
    )
    def arrives(self, importance, bound, work, tenant, hold):
        self.number += 1
        request = asked(
            f"r{self.number}",
            self.now,
            importance=importance,
            max_queue_wait=bound,
            tenant=tenant,
        )
        soundings = self.engines.soundings(request, work, self.now)
        verdict = self.lobby.enter(soundings, ONLY, budget(hold), None, self.over, binds=True)
        if verdict is None:
            assert self.engines.wait(self.now) <= NEARLY
            for engines in (self.engines, self.naive):
                engines.take(work, self.now)
            self.fate[request.id] = "at once"
        elif isinstance(verdict, Held):
            self.lobby.hold(verdict)
            self.fate[request.id] = "held"
        else:
            assert verdict.predicted > bound
            self.fate[request.id] = "refused"

    @precondition(lambda self: len(self.lobby))
    @rule(data=st.data())
    def leaves(self, data):
        gone = data.draw(st.sampled_from(sorted(one.request.id for one in self.lobby)))
        assert self.lobby.drop(gone) is not None
        assert self.lobby.drop(gone) is None
        self.fate[gone] = "gone"
        self.rests()

    @rule(tenant=st.sampled_from("ab"))
    def has_had_more(self, tenant):
        self.tenants[tenant] += 1

    @rule(seconds=st.sampled_from([0.003, 0.1, 0.7, 3.0]))
    def time_passes(self, seconds):
        end = self.now + seconds
        while self.lobby.next_turn <= end:
            self.now = max(self.now, self.lobby.next_turn)
            self.turns()
        self.now = end

    @rule()
    def something_ends(self):
        self.lobby.stir(self.now)
        self.stirred = len(self.lobby) > 0

    def turns(self):
        expected = naive_turn(
            list(self.lobby), self.naive, self.pace, self.over, self.now, stirred=self.stirred
        )
        self.stirred = False
        settled = self.lobby.turn(
            self.engines,
            self.over,
            now=self.now,
            rng=RNG,
            frees_in=self.engines.wait(self.now),
            workers=2,
        )
        found = [
            (one.request.id, "placed" if isinstance(one.decision, Admitted) else "refused")
            for one in settled
        ]
        assert found == expected
        for request, fate in found:
            assert self.fate[request] == "held"
            self.fate[request] = fate
        for one in settled:
            assert one.decision.held_for == pytest.approx(one.request.waited)
            assert one.request.arrived_at == self.now
        self.rests()

    def rests(self):
        if not len(self.lobby):
            self.pace.line.clear()

    @invariant()
    def everyone_is_in_one_place(self):
        assert {one.request.id for one in self.lobby} == {
            request for request, fate in self.fate.items() if fate == "held"
        }

    @invariant()
    def nobody_is_held_too_long(self):
        overdue = [one for one in self.lobby if self.now > min(one.until, one.latest) + 0.3]
        assert len(overdue) == 0

    @invariant()
    def who_is_held_has_a_turn(self):
        assert math.isfinite(self.lobby.next_turn) == bool(len(self.lobby))


TestHeld24h = Held24h.TestCase
TestHeld24h.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.floats(0.01, 5), st.floats(0.01, 2)), max_size=8), st.floats(0, 9))
def test_the_pace_is_the_clock_over_the_work_that_left(lefts, work):
    pace, naive, now = Pace(), NaivePace(), 0.0
    for passed, size in lefts:
        now += passed
        pace.left(size, now)
        naive.leaves(size, now)

    assert pace.of(work, 3) == pytest.approx(naive.of(work, 3))


def entered(lobby, engines, request, of=None, *, now=0.0, work=1.0, over=alike, binds=True):
    soundings = engines.soundings(request, work, now)
    verdict = lobby.enter(soundings, ONLY, of or budget(), None, over, binds=binds)
    if isinstance(verdict, Held):
        lobby.hold(verdict)
    return verdict


def turn(lobby, engines, now, *, over=alike, **more):
    return lobby.turn(
        engines, over, now=now, rng=RNG, frees_in=engines.wait(now), workers=1, **more
    )


def busy(seconds, workers=1):
    engines = Engines(workers)
    engines.free_at = [seconds] * workers
    return engines


def test_nobody_is_held_where_a_worker_is_nearly_free():
    assert entered(Lobby(), busy(NEARLY), asked()) is None


def test_a_newcomer_passes_nobody_who_goes_before_it():
    lobby, engines = Lobby(), busy(1.0)
    entered(lobby, engines, asked("first"))
    engines.free_at = [0.0]

    assert isinstance(entered(lobby, engines, asked("second")), Held)
    assert entered(lobby, engines, asked("urgent", importance=1)) is None


def test_a_line_refuses_a_newcomer_only_where_it_is_many_times_too_long():
    lobby, engines = Lobby(), busy(3.0)
    for number in range(8):
        entered(lobby, engines, asked(f"r{number}", max_queue_wait=2.9))

    verdict = entered(lobby, engines, asked("late", max_queue_wait=2.7, importance=-1))

    assert isinstance(verdict, Excess)
    assert (verdict.reason, verdict.by) == (Reason.WOULD_WAIT_TOO_LONG, "hold")
    assert verdict.predicted == 3.0 + 8.0
    assert isinstance(entered(lobby, engines, asked("next", max_queue_wait=2.9)), Held)


def test_an_objective_of_the_first_token_counts_the_own_prefill():
    lobby, engines = Lobby(), busy(3.0)

    held = entered(lobby, engines, asked(ttft_objective=2.9), work=1.0)
    verdict = entered(lobby, engines, asked(ttft_objective=1.7), work=1.0)

    assert held.latest == pytest.approx(1.9)
    assert verdict.reason is Reason.WOULD_MISS_TTFT


def test_nobody_who_is_held_is_refused_while_a_worker_may_be_free_in_time():
    lobby, engines = Lobby(), busy(9.0)
    entered(lobby, engines, asked(max_queue_wait=5.0), budget(60.0))
    engines.free_at = [4.9]

    assert turn(lobby, engines, 4.5) == []
    [one] = turn(lobby, engines, 4.75)

    assert isinstance(one.decision, Admitted)
    assert one.request.waited == 4.75


def test_bounds_that_do_not_bind_refuse_nobody():
    lobby, engines = Lobby(), busy(100.0)

    assert isinstance(entered(lobby, engines, asked(max_queue_wait=5.0), binds=False), Held)
    assert turn(lobby, engines, 3.0) == []


def test_an_unmeasured_worker_neither_holds_nor_refuses_before_some_wait_there():
    worker = FakeWorker(name="w", wait=60.0, curve="unmeasured", queued_requests=3)
    soundings = Soundings(asked(max_queue_wait=5.0), _candidates([worker]), 0.9, 0.0)

    assert Lobby().enter(soundings, ONLY, budget(), None, alike, binds=True) is None


def test_the_more_important_goes_first_then_who_has_less_slack_then_who_has_had_less():
    lobby, engines = Lobby(), busy(1.0)
    over = {"poor": 0.5, "rich": 2.0}
    names = [
        ("patient", {"max_queue_wait": 60.0}),
        ("rich", {"max_queue_wait": 30.0, "tenant": "rich"}),
        ("poor", {"max_queue_wait": 30.4, "tenant": "poor"}),
        ("important", {"max_queue_wait": 60.0, "importance": 5}),
        ("unbounded", {}),
    ]
    for name, wishes in names:
        entered(lobby, engines, asked(name, **wishes))

    ranked = sorted(lobby, key=lambda one: order(one, lambda h: over.get(h.request.tenant, 1.0)))

    expected = ["important", "poor", "rich", "patient", "unbounded"]
    assert [one.request.id for one in ranked] == expected


def test_who_is_held_to_the_end_is_sent_on_wherever():
    lobby, engines = Lobby(), busy(100.0)
    entered(lobby, engines, asked(), budget(4.0))

    assert turn(lobby, engines, 3.9) == []
    [one] = turn(lobby, engines, 4.0)

    assert isinstance(one.decision, Admitted)
    assert (one.decision.held_for, one.request.waited, one.request.arrived_at) == (4.0, 4.0, 4.0)


def test_no_budget_holds_for_longer_than_the_picker_can():
    lobby, engines = Lobby(longest=1.5), busy(100.0)

    assert entered(lobby, engines, asked(), budget(60.0)).until == 1.5


def test_who_is_held_is_refused_when_its_time_is_over_and_told_what_it_would_wait_still():
    lobby, engines = Lobby(), busy(3.0)
    entered(lobby, engines, asked(max_queue_wait=5.0), budget(60.0))
    engines.free_at = [50.0]

    assert turn(lobby, engines, 4.9) == []
    [one] = turn(lobby, engines, 5.0)

    assert isinstance(one.decision, Refused)
    assert engines.refused_with == [45.0]


def test_at_the_end_everybody_is_placed_or_refused():
    lobby, engines = Lobby(), busy(3.0)
    for number in range(3 * MOST_ASKED):
        entered(lobby, engines, asked(f"r{number}"), budget(4.0), work=0.1)

    settled = turn(lobby, engines, 0.1, everyone=True)

    assert len(settled) == 3 * MOST_ASKED
    assert not len(lobby)
    assert math.isinf(lobby.next_turn)


def test_a_line_that_moves_slowly_is_expected_to_go_on_so():
    lobby, engines = Lobby(), busy(0.5)
    for number in range(6):
        entered(lobby, engines, asked(f"r{number}"), budget(60.0), work=1.0)
    for step in range(1, 4):
        engines.free_at = [0.0]
        turn(lobby, engines, 5.0 * step)
        engines.free_at = [5.0 * step + 1.0]

    held = entered(lobby, engines, asked("late", at=15.0), budget(60.0), now=15.0)

    assert held.expected > 1.0 + 3 * 3.0


def test_something_that_happens_brings_a_turn_but_no_storm_of_them():
    lobby, engines = Lobby(), busy(3.0)
    entered(lobby, engines, asked())
    turn(lobby, engines, 1.0)

    lobby.stir(1.0)

    assert lobby.next_turn == 1.0 + SOONEST


def test_what_has_been_held_has_been_waited_for():
    held = Held(
        request=asked(at=2.0, waited=1.0),
        budget=budget(),
        family=None,
        at=2.0,
        until=6.0,
        latest=math.inf,
        work=1.0,
        expected=0.0,
        number=1,
    )

    later = waiting(held, 5.0).request

    assert (later.waited, later.waited_until(5.0), later.waited_until(6.0)) == (4.0, 4.0, 5.0)


# -- in a fleet ----------------------------------------------------------------------------------


def fleet_of(workers=1, **more):
    fleet = Fleet(**more)
    for number in range(workers):
        name = WorkerId(f"w{number}")
        fleet.apply(WorkerSeen(worker=name, endpoint=f"e{number}", settings=SETTINGS), 0.0)
        fleet.apply(TrustChanged(worker=name, trust=Trust.LIVE, reason="new"), 0.0)
    return fleet


def busy_fleet():
    """Give a fleet of one measured worker that has a second and a half of prefill to do."""
    roomy, worker = replace(SETTINGS, num_blocks=50_000, max_num_seqs=64), WorkerId("w0")
    samples = tuple((256 << n, 0.02 + 3e-5 * (256 << n)) for n in range(9))
    fleet = Fleet()
    fleet.apply(WorkerSeen(worker=worker, endpoint="e0", settings=roomy), 0.0)
    fleet.apply(TrustChanged(worker=worker, trust=Trust.LIVE, reason="new"), 0.0)
    fleet.apply(Learned(worker=worker, fingerprint=fingerprint(roomy), samples=samples), 0.0)
    flood(fleet, Budget(), 12)
    return fleet


def flood(fleet, of, count=8, at=0.0, **wishes):
    return [
        fleet.decide(replace_id(f"r{number}", at, **wishes), of, at, Random(number))
        for number in range(count)
    ]


def replace_id(name, at, **wishes):
    return Request(id=RequestId(name), model="m", prompt_tokens=4000, arrived_at=at, **wishes)


def all_over(fleet, at):
    for name, state in fleet.workers.items():
        for request in list(state.mirror.flights):
            fleet.apply(Ended(worker=name, request=request, at=at, outcome=Outcome.FINISHED), at)


def test_a_budget_that_holds_nobody_never_holds():
    assert not any(isinstance(one, Held) for one in flood(fleet_of(), Budget(), 40))


@pytest.mark.parametrize("mode", ["shadow", "off"])
def test_only_who_enforces_holds(mode):
    assert not any(isinstance(one, Held) for one in flood(fleet_of(), budget(mode=mode), 40))


def test_an_engine_gets_little_more_than_it_can_do_and_the_rest_is_held():
    fleet = fleet_of()

    decisions = flood(fleet, budget(), 40)

    held = [one for one in decisions if isinstance(one, Held)]
    assert 0 < len(held) == len(fleet.lobbies) < 40
    assert len(fleet.workers[WorkerId("w0")].mirror.flights) == 40 - len(held)


def test_an_end_brings_a_turn_and_who_is_placed_is_reserved():
    fleet = fleet_of()
    flood(fleet, budget(60.0), 40)
    before = len(fleet.lobbies)
    fleet.turn(0.3, RNG)

    all_over(fleet, 0.4)
    assert fleet.lobbies.next_turn == 0.4
    settled = fleet.turn(0.4, RNG)

    assert settled
    assert len(fleet.lobbies) == before - len(settled)
    flights = fleet.workers[WorkerId("w0")].mirror.flights
    assert all(one.request.id in flights for one in settled)
    assert all(one.decision.held_for == 0.4 for one in settled)


def test_a_worker_says_what_it_told_last_and_nothing_of_what_is_too_old():
    fleet = fleet_of()
    worker = WorkerId("w0")
    fleet.apply(LoadSample(worker=worker, at=1.0, running=2, waiting=3), 1.0)

    assert fleet.signals(worker, 1.5) == {"running": 2, "waiting": 3}
    assert fleet.signals(worker, 60.0) == fleet.signals(WorkerId("none"), 1.5) == {}


def test_where_the_last_worker_goes_everybody_is_told_so():
    fleet = fleet_of()
    flood(fleet, budget(60.0), 40)
    held = len(fleet.lobbies)

    fleet.apply(WorkerGone(worker=WorkerId("w0")), 0.5)
    settled = fleet.turn(0.5, RNG, everyone=True)

    assert [one.decision.reason for one in settled] == [Reason.NO_ENDPOINT] * held


def test_who_is_gone_is_held_no_more_and_takes_no_work():
    fleet = fleet_of()
    decisions = flood(fleet, budget(60.0), 40)
    gone = [one.request.id for one in decisions if isinstance(one, Held)]

    for request in gone:
        fleet.lobbies.drop(request)

    assert fleet.lobbies.next_turn is None
    assert fleet.turn(100.0, RNG) == []


def test_who_would_be_refused_by_a_prediction_is_held_until_it_is_known():
    fleet = busy_fleet()
    refused = fleet.decide(replace_id("at once", 0.0, max_queue_wait=0.8), Budget(), 0.0, RNG)

    held = fleet.decide(replace_id("held", 0.0, max_queue_wait=0.8), budget(60.0), 0.0, RNG)
    all_over(fleet, 0.5)
    [one] = fleet.turn(0.5, RNG)

    assert isinstance(refused, Refused)
    assert isinstance(held, Held)
    assert isinstance(one.decision, Admitted)


def test_what_another_rule_refuses_is_not_held():
    fleet = fleet_of()
    of = budget(60.0, policy="concurrency_cap", parameters={"limit": 1})

    decisions = flood(fleet, of, 40)

    assert isinstance(decisions[-1], Refused)
    assert not len(fleet.lobbies)


def test_a_session_that_its_rule_refuses_is_not_held():
    fleet = busy_fleet()
    of = budget(60.0, unit="session")

    decision = fleet.decide(replace_id("new", 0.0, session="s", max_queue_wait=0.8), of, 0.0, RNG)

    assert isinstance(decision, Refused)


def test_a_call_of_a_session_that_is_in_is_held_but_not_refused():
    fleet = fleet_of()
    of = budget(2.0, unit="session", max_queue_wait=5.0)
    decisions = [
        fleet.decide(replace_id(f"r{number}", 0.0, session="s"), of, 0.0, Random(1))
        for number in range(60)
    ]
    held = [one for one in decisions if isinstance(one, Held)]

    settled = fleet.turn(4.9, RNG, everyone=True)

    assert held
    assert {type(one) for one in decisions} == {Admitted, Held}
    assert {type(one.decision) for one in settled} == {Admitted}


def test_of_tenants_who_share_the_one_who_has_had_less_goes_first():
    fleet = fleet_of()
    of = budget(60.0, shares={})
    flood(fleet, of, 40, tenant="loud")
    late = fleet.decide(replace_id("late", 0.1, tenant="quiet"), of, 0.1, RNG)
    assert isinstance(late, Held)

    all_over(fleet, 0.5)
    settled = fleet.turn(0.5, RNG)

    assert settled[0].request.tenant == "quiet"
