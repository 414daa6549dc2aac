"""What is held against a goal, and how: rates, spreads, and two ways to judge refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_bench.contest import Contestant, Job, Result
from leadsman_bench.goals.bounds import Sides, agree
from leadsman_bench.goals.command import BUILT_IN, OURS, below, contestants, goodput, verdicts

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
