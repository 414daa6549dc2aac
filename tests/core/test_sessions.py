"""Sessions as the unit: one gets all of its calls through, another is deferred whole."""

from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.contexts import Needs
from leadsman.gate import Gate, session_of
from leadsman.policies.plain import PredictedWait
from leadsman.prediction import Reason
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.sessions import GRACE, Sessions
from leadsman.units import RequestId

KEPT = Choice(index=0, because="cheapest")
LATE = Excess(reason=Reason.WOULD_WAIT_TOO_LONG, own_prefill=0.1, bound=5.0, predicted=9.0)


def full(sessions, now=0.0, *, workers=1):
    """Let sessions in until one is deferred."""
    names = []
    while True:
        name = f"s{len(names)}"
        if isinstance(sessions.admit(name, KEPT, KEPT, now=now, workers=workers), Excess):
            return names, name
        names.append(name)


def test_a_session_that_is_in_gets_its_calls_through_whatever_the_policy_says():
    sessions = Sessions(most_calls=20, idle=60.0)
    sessions.admit("a", KEPT, KEPT, now=0.0, workers=1)

    verdicts = [sessions.admit("a", LATE, KEPT, now=at, workers=1) for at in range(1, 20)]

    assert verdicts == [KEPT] * 19


def test_calls_beyond_the_bound_are_judged_anew():
    sessions = Sessions(most_calls=3, idle=60.0)

    verdicts = [sessions.admit("a", KEPT, KEPT, now=0.0, workers=1) for _ in range(3)]
    fourth = sessions.admit("a", LATE, KEPT, now=1.0, workers=1)

    assert verdicts == [KEPT] * 3
    assert fourth == LATE
    assert "a" not in sessions


def test_a_deferred_session_is_deferred_whole_to_one_moment():
    sessions = Sessions(most_calls=100, idle=60.0)
    _, other = full(sessions)

    answers = [sessions.admit(other, KEPT, KEPT, now=at, workers=1) for at in (0.0, 0.2, 0.9)]

    moments = [at + one.seconds for at, one in zip((0.0, 0.2, 0.9), answers, strict=True)]
    assert {one.reason for one in answers} == {Reason.BURST_DEFERRED}
    assert moments == pytest.approx([moments[0]] * 3)


def test_deferred_sessions_are_given_places_one_after_another():
    sessions = Sessions(most_calls=100, idle=60.0)
    _, first = full(sessions)

    more = [sessions.admit(f"late{i}", KEPT, KEPT, now=0.0, workers=1) for i in range(5)]

    moments = [one.seconds for one in more]
    assert moments == sorted(set(moments))
    assert first not in sessions


def test_who_was_told_to_come_back_goes_before_newcomers():
    sessions = Sessions(most_calls=100, idle=5.0)
    sessions.window, sessions._cut_at = 2.0, 0.0
    for name in "ab":
        sessions.admit(name, KEPT, KEPT, now=0.0, workers=1)
    sessions.sent("b", RequestId("r"))
    told = sessions.admit("c", KEPT, KEPT, now=0.0, workers=1).seconds

    newcomer = sessions.admit("d", KEPT, KEPT, now=told + 0.5, workers=1)
    returned = sessions.admit("c", KEPT, KEPT, now=told + 0.6, workers=1)

    assert isinstance(newcomer, Excess)
    assert returned == KEPT


def test_a_place_that_nobody_came_back_for_is_free_again():
    sessions = Sessions(most_calls=100, idle=5.0)
    _, other = full(sessions)
    told = sessions.admit(other, KEPT, KEPT, now=0.0, workers=1).seconds

    late = sessions.admit("new", KEPT, KEPT, now=told + GRACE + 60.0, workers=1)

    assert late == KEPT


def test_a_session_with_a_call_that_runs_is_not_over_however_long():
    sessions = Sessions(most_calls=100, idle=5.0)
    sessions.admit("a", KEPT, KEPT, now=0.0, workers=1)
    sessions.sent("a", RequestId("r"))

    sessions.admit("b", KEPT, KEPT, now=100.0, workers=4)
    during = "a" in sessions
    sessions.ended(RequestId("r"), 100.0)
    sessions.admit("b", KEPT, KEPT, now=200.0, workers=4)

    assert during
    assert "a" not in sessions


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.floats(0, 20))))
def test_no_more_sessions_are_in_than_the_window_had_room_for(calls):
    sessions, now = Sessions(most_calls=5, idle=10.0), 0.0
    for name, fits, gap in calls:
        now += gap
        was_in, before = name in sessions, len(sessions)
        sessions.admit(name, KEPT if fits else LATE, KEPT, now=now, workers=1)

        assert sessions.window >= 1
        assert was_in or name not in sessions or sessions.holding(now) <= max(1, sessions.window)
        assert len(sessions) <= before + 1


def call(sessions, name, now, tokens, *, verdict=KEPT, cached=0, room=None):
    needs = Needs(tokens=tokens, cached=cached, room=lambda: room)
    return sessions.admit(name, verdict, KEPT, now=now, workers=100, needs=needs)


def let_in(sessions, now, tokens, *, cached=0, room=None, among=50):
    """Give how many of so many newcomers are let in, each with a first call of so many tokens."""
    names = [f"{now}/{number}" for number in range(among)]
    answers = [call(sessions, one, now, tokens, cached=cached, room=room) for one in names]
    return sum(not isinstance(answer, Excess) for answer in answers)


def grown_to(tokens):
    """Sessions of which one is over that had a context of so many tokens."""
    sessions = Sessions(most_calls=100, idle=5.0)
    call(sessions, "over", 0.0, tokens)
    call(sessions, "later", 100.0, tokens)
    call(sessions, "later still", 200.0, tokens)
    return sessions


def test_sessions_are_let_in_as_far_as_caches_keep_what_they_will_grow_to():
    assert let_in(grown_to(1000), 300.0, 10, room=10_000) == 9
    assert let_in(grown_to(1000), 300.0, 10, room=20_000) == 18


def test_what_others_brought_is_counted_once_for_all():
    assert let_in(grown_to(1000), 300.0, 3010, cached=3000, room=13_400) == 9


def test_where_the_size_of_caches_is_not_known_they_are_no_bound():
    assert let_in(grown_to(1000), 300.0, 10, room=None) == 50


def test_one_session_is_let_in_however_small_the_caches_are():
    assert let_in(grown_to(1000), 300.0, 500, room=100) == 1


def test_who_has_gone_quiet_holds_no_place_and_goes_on_when_it_likes():
    sessions = Sessions(most_calls=100, idle=1000.0)
    for turn in range(2000):
        call(sessions, "busy", 0.01 * turn, 10)
    _, deferred = full(sessions, now=20.0)

    later = sessions.admit(deferred, KEPT, KEPT, now=300.0, workers=1)

    assert later == KEPT
    assert call(sessions, "s0", 301.0, 10, verdict=LATE) == KEPT


def test_a_window_is_not_cut_again_before_as_many_are_in_as_it_has_room_for():
    sessions = Sessions(most_calls=1000, idle=1000.0)
    names = [f"s{number}" for number in range(40)]
    for turn in range(20):
        for name in names:
            call(sessions, name, 6.0 * turn, 10)
    assert len(sessions) == 40

    windows = []
    for at in (120.0, 126.0, 132.0):
        for name in names:
            call(sessions, name, at, 10, verdict=LATE)
        windows.append(sessions.window)

    assert windows == [0.75 * 40] * 3


SERVICE, THINK, CALLS = 0.25, 0.2, 20


def finished_tasks(fake_worker, candidates_of, unit, tasks=16):
    """Run agents on one worker that serves a call after another; a call refused thrice ends it."""
    budget = Budget(max_queue_wait=1.0, unit=unit)
    gate = Gate(PredictedWait(), budget, lambda _: None)
    due = [(0.1 * number, number, 0, 0) for number in range(tasks)]
    free_at, finished, running = 0.0, 0, []
    while due:
        now, task, call, tries = heappop(due)
        for request, at in [one for one in running if one[1] <= now]:
            gate.sessions.ended(request, at)
            running.remove((request, at))
        asked = Request(
            id=RequestId(f"{task}/{call}"),
            model="m",
            prompt_tokens=10,
            arrived_at=now,
            session=str(task),
        )
        worker = fake_worker(name="w", wait=max(0.0, free_at - now), prefill=SERVICE)
        verdict = gate.admit(
            None, Soundings(asked, candidates_of([worker]), 0.9, now), KEPT, budget
        )
        if isinstance(verdict, Excess):
            if tries < 2:
                heappush(due, (now + max(1.0, verdict.seconds), task, call, tries + 1))
            continue
        free_at = max(free_at, now) + SERVICE
        if gate.sessions is not None:
            gate.sessions.sent(str(task), asked.id)
            running.append((asked.id, free_at))
        if call + 1 == CALLS:
            finished += free_at <= 90.0
        else:
            heappush(due, (free_at + THINK, task, call + 1, 0))
    return finished


def test_more_tasks_finish_where_sessions_are_let_in_than_where_calls_are(
    fake_worker, candidates_of
):
    by_call, by_session = (
        finished_tasks(fake_worker, candidates_of, unit) for unit in ("request", "session")
    )

    assert by_session >= 1.5 * by_call > 0


def test_a_session_is_known_by_its_name_else_by_its_conversation():
    named, unnamed = (
        Request(id=RequestId("r"), model="m", prompt_tokens=1, arrived_at=0.0, session=session)
        for session in ("mine", None)
    )

    assert session_of(named, 7) == "mine"
    assert session_of(unnamed, 7) == session_of(unnamed, 7) != session_of(unnamed, 8)
    assert session_of(unnamed, None) is None
