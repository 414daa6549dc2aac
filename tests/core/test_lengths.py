"""How long answers will be, judged by those that have ended."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.lengths import MAX_FAMILIES, PRIOR_MEAN, Lengths, spread_draw

answers = st.lists(st.integers(0, 100_000), max_size=60)
families = st.one_of(st.none(), st.integers(0, 3))


def learned(lengths, family=None):
    known = Lengths()
    for tokens in lengths:
        known.add(tokens, family)
    return known


def exponential(mean, count, seed=0):
    chance = random.Random(seed)
    return [max(1, round(chance.expovariate(1 / mean))) for _ in range(count)]


@given(answers, families, st.integers(0, 10_000), st.integers(1, 5_000), st.floats(0.01, 0.99))
def test_no_answer_is_expected_beyond_its_cap(lengths, family, generated, cap, draw):
    known = learned(lengths, family)

    expected = known.expected(family, cap)
    left = known.remaining(generated, draw=draw, family=family, max_tokens=cap)

    assert 0 <= expected <= cap
    assert 0 <= left <= max(cap - generated, 0)


@given(answers, families, st.integers(0, 200_000), st.floats(0.01, 0.98))
def test_a_running_answer_has_at_least_one_token_left_and_rises_with_its_quantile(
    lengths, family, generated, draw
):
    known = learned(lengths, family)

    lower = known.remaining(generated, draw=draw, family=family)
    upper = known.remaining(generated, draw=draw + 0.01, family=family)

    assert 1 <= lower <= upper
    assert math.isfinite(upper)


@given(st.lists(st.integers(1, 2000), min_size=50, max_size=200), st.floats(0.05, 0.95))
def test_a_quantile_is_that_of_the_answers_seen(lengths, q):
    known = learned(lengths * 20)

    value = known.quantile(q)

    ordered = sorted(lengths)
    low = ordered[max(int((q - 0.05) * len(ordered)) - 1, 0)]
    high = ordered[min(int((q + 0.05) * len(ordered)) + 1, len(ordered) - 1)]
    assert low * 0.94 - 1 <= value <= high * 1.06 + 1


def test_before_any_answer_the_prior_holds():
    known = Lengths()

    expected = known.expected()

    assert expected == pytest.approx(PRIOR_MEAN)
    assert known.quantile(0.5) == pytest.approx(PRIOR_MEAN * math.log(2), rel=0.05)


def test_the_mean_follows_the_answers():
    known = learned([100] * 400)

    expected = known.expected()

    assert expected == pytest.approx(100, rel=0.05)


def test_recent_answers_weigh_more():
    known = learned([1000] * 5000 + [100] * 5000)

    expected = known.expected()

    assert expected < 150


def test_weights_never_overflow():
    known = learned([100, 300] * 30_000)

    expected = known.expected()

    assert expected == pytest.approx(200, rel=0.01)
    assert known.quantile(0.75) == pytest.approx(300, rel=0.05)


def test_a_family_is_told_from_the_rest_after_one_answer():
    known = learned([300] * 200)

    known.add(30, family=7)

    assert known.expected(7) == pytest.approx(0.61 * 30 + 0.39 * known.mean, rel=0.01)
    assert known.expected(8) == pytest.approx(known.mean)


def test_a_long_survivor_of_a_memoryless_crowd_has_the_mean_left():
    known = learned(exponential(200, 3000))

    left = fmean(known.remaining(400, draw=spread_draw(n)) for n in range(500))

    assert left == pytest.approx(200, rel=0.15)


def test_an_answer_longer_than_any_seen_still_has_a_future():
    known = learned([50] * 40_000)

    left = known.remaining(100_000)

    assert 1 <= left <= 200


def test_spread_draws_find_the_first_and_the_last_free_slot():
    lengths = exponential(300, 4000, seed=1)
    known = learned(lengths)
    chance = random.Random(2)

    spread = sorted(known.remaining(0, draw=spread_draw(n)) for n in range(64))

    trials = [sorted(chance.choices(lengths, k=64)) for _ in range(300)]
    first, last = fmean(t[0] for t in trials), fmean(t[-1] for t in trials)
    assert abs(spread[0] - first) < 10
    assert spread[-1] == pytest.approx(last, rel=0.4)


@given(st.integers(0, 10**6), st.integers(4, 200))
def test_any_run_of_draws_fills_the_interval(start, count):
    draws = sorted(spread_draw(n) for n in range(start, start + count))

    gaps = [b - a for a, b in zip([0.0, *draws], [*draws, 1.0], strict=True)]

    assert max(gaps) < 3 / count


def test_families_are_forgotten_beyond_the_limit():
    known = Lengths()

    for family in range(MAX_FAMILIES + 1):
        known.add(1000, family)

    assert known.expected(0) == known.expected()
    assert known.expected(1) != known.expected()


def test_a_negative_length_is_refused():
    known = Lengths()

    with pytest.raises(ValueError, match="-1 tokens is negative"):
        known.add(-1)
