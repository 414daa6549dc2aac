"""When a crowd of answers will end, judged by crowds that did."""

import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.ends import TICKS, joint_ends
from leadsman.lengths import Lengths

FREE = 1 << 30


def learned(draw, count=4000, seed=0):
    chance, known = random.Random(seed), Lengths()
    for _ in range(count):
        known.add(draw(chance))
    return known


def memoryless(chance):
    return max(1, round(chance.expovariate(1 / 300)))


CROWD = st.lists(
    st.tuples(st.integers(0, 200_000), st.integers(-5, 100_000)), min_size=1, max_size=40
)


@given(st.lists(st.integers(0, 100_000), max_size=40), CROWD)
def test_everybody_ends_after_a_token_and_within_the_cap(answers, crowd):
    known = Lengths()
    for tokens in answers:
        known.add(tokens)
    generated, room = zip(*crowd, strict=True)

    ends = joint_ends(np.array([known.below()] * len(crowd)), generated, room)

    assert all(1 <= end <= max(cap, 1) for end, cap in zip(ends, room, strict=True))


@given(st.integers(0, 2000))
def test_one_alone_ends_at_its_median(generated):
    known = learned(memoryless, count=500)

    (end,) = joint_ends(known.below()[None], [generated], [FREE])

    assert end == pytest.approx(known.remaining(generated), rel=0.15, abs=1)


@pytest.mark.parametrize("size", [4, 64])
def test_the_first_the_middle_and_the_last_of_a_crowd_end_when_such_crowds_did(size):
    known = learned(memoryless)

    ends = np.sort(joint_ends(np.array([known.below()] * size), [0] * size, [FREE] * size))

    chance = random.Random(1)
    crowds = [sorted(memoryless(chance) for _ in range(size)) for _ in range(2000)]
    for rank in (size // 4, size // 2, size - 1):
        assert ends[rank] == pytest.approx(fmean(crowd[rank] for crowd in crowds), rel=0.25)
    assert ends[0] < 1.5 * fmean(crowd[0] for crowd in crowds) + 1


def test_who_is_likely_to_end_sooner_does():
    known = learned(lambda chance: chance.choice([100, 100, 100, 1000]))

    ends = joint_ends(np.array([known.below()] * 3), [10, 90, 500], [FREE] * 3)

    assert ends[1] < ends[0] < ends[2]


def test_a_cap_that_will_be_reached_is_the_end():
    known = learned(memoryless)

    ends = joint_ends(np.array([known.below()] * 2), [0, 0], [7, FREE])

    assert ends[0] == 7
    assert ends[1] > 7


def test_an_answer_longer_than_any_seen_goes_on():
    known = learned(lambda _: 50)

    (end,) = joint_ends(known.below()[None], [500_000], [FREE])

    assert 1 < end < TICKS[-1]
