"""What is held against a goal, and how: rates, spreads, and two ways to judge refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.prediction import Admitted, Prediction, Price, Reason, Refused
from leadsman.records import Outcome, Trust
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_bench.contest import Contestant, Job, Result
from leadsman_bench.goals.bounds import Sides, agree
from leadsman_bench.goals.bounds import sides as judge
from leadsman_bench.goals.command import BUILT_IN, OURS, below, contestants, goodput, verdicts
from leadsman_bench.virtual import Offer, Stream

SHARES = st.lists(st.floats(0, 1), min_size=5, max_size=5)


def row(policy, load, seed, met):
    job = Job(workload="a10", capacity=8.0, load=load, seed=seed, contestants=())
    return job, Contestant(name=policy, policy=policy), Result(calls=100, met=met)


def sides(**changes):
    told = {"admitted": 100, "underpredicted": 1, "refused": 100, "false_alarms": 10, "unknown": 0}
    return Sides(**told | {"probes": 40, "probes_in_time": 4} | changes)


@given(SHARES)
def test_nobody_is_below_itself(ours):
    assert not below(ours, ours)


@given(SHARES, st.floats(0.01, 1))
def test_who_is_as_much_worse_at_each_repeat_is_below_whatever_the_repeats_are(ours, more):
    assert below(ours, [one + more for one in ours])


def test_a_difference_that_the_repeats_disagree_on_is_none():
    assert not below([0.9, 0.5, 0.7, 0.6, 0.8], [0.8, 0.6, 0.75, 0.5, 0.9])


def test_goodput_is_calls_in_time_a_second_in_capacities():
    rows = [row("none", 2.0, seed, met) for seed, met in ((2, 40), (1, 50))]

    found = goodput(rows)

    assert found == {"a10": {"none": {"2": [1.0, 0.8]}}}


@pytest.mark.parametrize(("at_twice", "met"), [(50, True), (45, False)])
def test_half_of_twice_the_load_is_all_of_the_goodput(at_twice, met):
    rows = [row(OURS, 1.0, 1, 96), row(OURS, 2.0, 1, at_twice)]
    rows += [row("none", 1.0, 1, 10), row("none", 2.0, 1, 10)]

    told = verdicts("a10", goodput(rows)["a10"])

    assert [one.met for one in told] == [True, True, met]


def test_all_policies_that_are_built_in_compete():
    assert {one.policy for one in contestants("agents")} == set(BUILT_IN)


@pytest.mark.parametrize(("in_time", "agreed"), [(4, True), (20, False)])
def test_hindsight_and_probes_agree_within_their_errors(in_time, agreed):
    assert agree(sides(probes_in_time=in_time)) is agreed


def served(name, at, wait, *, held=0.0, bound=None):
    """Give a stream that was sent to worker `w` at this moment and waited so long in its queue."""
    request = request_of(name, at, held, bound)
    admitted = Admitted(request=request.id, worker=WorkerId("w"), endpoint="w", prediction=None)
    return Stream(
        offer=Offer(request=request, output_tokens=1),
        admitted=admitted,
        block_size=16,
        sent_at=at,
        started_at=at + wait,
        outcome=Outcome.FINISHED,
    )


def request_of(name, at, held, bound):
    return Request(
        id=RequestId(name),
        model="m",
        prompt_tokens=10,
        arrived_at=at,
        waited=held,
        max_queue_wait=bound,
    )


def turned_away(at, *, held, bound):
    request = request_of("refused", at, held, bound)
    refused = Refused(
        request=request.id,
        reason=Reason.WOULD_WAIT_TOO_LONG,
        status=429,
        retry_after=1.0,
        should_retry=True,
        candidates=(predicted(),),
    )
    return Offer(request=request, output_tokens=1), refused


def predicted():
    price = Price(
        worker=WorkerId("w"),
        queue_wait=9.0,
        own_prefill=1.0,
        cached_tokens=0,
        queued_tokens=0,
        queued_requests=0,
    )
    return Prediction(
        price=price,
        confidence=0.9,
        queue_wait_bound=9.0,
        ttft_bound=10.0,
        curve="own",
        trust=Trust.LIVE,
        trust_reason="",
        state_age=None,
    )


@pytest.mark.parametrize(("bound", "false_alarms"), [(8.0, 1), (6.5, 0)])
def test_of_who_was_held_hindsight_asks_for_what_was_left_of_the_bound(bound, false_alarms):
    neighbours = [served("before", 9.9, 2.0), served("after", 10.1, 2.4)]

    found = judge(neighbours, [turned_away(10.0, held=5.0, bound=bound)], 0.0)

    assert (found.refused, found.false_alarms, found.unknown) == (1, false_alarms, 0)


def test_how_long_neighbours_were_held_is_no_part_of_when_a_worker_began():
    neighbours = [served("before", 9.9, 0.5, held=20.0), served("after", 10.1, 0.9, held=20.0)]

    found = judge(neighbours, [turned_away(10.0, held=0.0, bound=2.0)], 0.0)

    assert (found.refused, found.false_alarms) == (1, 1)


def test_a_wait_held_and_queued_is_held_against_the_bound():
    found = judge([served("r", 10.0, 2.0, held=4.0, bound=5.0)], [], 0.0)

    assert (found.admitted, found.underpredicted) == (1, 1)
