"""How long answers will be, judged by those that have ended."""

import math
import random
from statistics import fmean, median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.lengths import MAX_FAMILIES, PER_OCTAVE, PRIOR_MEAN, Lengths

answers = st.lists(st.integers(0, 100_000), max_size=60)
families = st.one_of(st.none(), st.integers(0, 3))
caps = st.one_of(st.none(), st.integers(1, 100_000))


def learned(lengths, family=None, cap=None):
    known = Lengths()
    for tokens in lengths:
        known.add(tokens, family, cap)
    return known


def exponential(mean, count, seed=0):
    chance = random.Random(seed)
    return [max(1, round(chance.expovariate(1 / mean))) for _ in range(count)]


def talkers(alike, count=3000, seed=0):
    """Answers of 40 families, each as long as a former one of its family with chance `alike`."""
    chance, known, own = random.Random(seed), Lengths(), {}
    for _ in range(count):
        family = chance.randrange(40)
        if family not in own or chance.random() > alike:
            own[family] = max(1, round(chance.lognormvariate(5.0, 1.0)))
        known.add(own[family], family)
    return known


@given(answers, families, st.integers(0, 10_000), st.integers(1, 5_000), st.floats(0.01, 0.99))
def test_no_answer_is_expected_beyond_its_cap(lengths, family, generated, cap, draw):
    known = learned(lengths, family, cap)

    left = known.remaining(generated, draw=draw, family=family, max_tokens=cap)

    assert 0 <= left <= max(cap - generated, 0)


@given(answers, families, st.integers(0, 4_999), st.integers(1, 5_000), st.floats(0.01, 0.99))
def test_an_answer_that_ends_at_its_cap_alone_has_what_is_left_of_it(
    lengths, family, generated, cap, draw
):
    known = learned(lengths, family, cap)

    left = known.remaining(generated, draw=draw, family=family, max_tokens=cap, min_tokens=cap)

    assert left == max(cap - generated, 0)


@given(answers, families, caps, st.integers(1, 100_000), st.floats(0.01, 0.98))
def test_no_answer_is_expected_to_end_before_it_may(lengths, family, cap, least, draw):
    known = learned(lengths, family)
    asked = {"family": family, "max_tokens": cap, "min_tokens": least}

    lower = known.remaining(0, draw=draw, **asked)
    upper = known.remaining(0, draw=draw + 0.01, **asked)

    assert lower <= upper
    assert lower * 2 ** (1 / PER_OCTAVE) >= min(least, cap or least)


def test_of_who_may_not_end_early_the_longer_ones_are_expected():
    known = learned(exponential(200, 5000))

    left = fmean(known.remaining(0, draw=(n + 0.5) / 100, min_tokens=300) for n in range(100))

    assert left == pytest.approx(500, rel=0.1)


@given(answers, families, caps, st.integers(0, 200_000), st.floats(0.01, 0.98))
def test_a_running_answer_has_at_least_one_token_left_and_rises_with_its_quantile(
    lengths, family, cap, generated, draw
):
    known = learned(lengths, family, cap)

    lower = known.remaining(generated, draw=draw, family=family)
    upper = known.remaining(generated, draw=draw + 0.01, family=family)

    assert 1 <= lower <= upper
    assert math.isfinite(upper)


@given(st.lists(st.integers(1, 2000), min_size=50, max_size=200), st.floats(0.05, 0.95))
def test_a_quantile_is_that_of_the_answers_seen(lengths, q):
    known = learned(lengths * 20)

    value = known.remaining(0, draw=q)

    ordered = sorted(lengths)
    low = ordered[max(int((q - 0.05) * len(ordered)) - 1, 0)]
    high = ordered[min(int((q + 0.05) * len(ordered)) + 1, len(ordered) - 1)]
    assert low * 0.94 - 1 <= value <= high * 1.06 + 1


def test_before_any_answer_the_prior_holds():
    known = Lengths()

    left = known.remaining(0)

    assert left == pytest.approx(PRIOR_MEAN * math.log(2), rel=0.05)


def test_recent_answers_weigh_more():
    known = learned([1000] * 5000 + [100] * 5000)

    left = known.remaining(0, draw=0.9)

    assert left < 150


def test_weights_never_overflow():
    known = learned([100, 300] * 30_000, family=3, cap=400)

    left = known.remaining(0, draw=0.75, max_tokens=400)

    assert left == pytest.approx(300, rel=0.05)


def test_where_families_answer_alike_one_answer_tells_the_next():
    known = talkers(alike=0.9)
    known.add(20, family=100)
    known.add(2000, family=101)

    short, long = known.remaining(0, family=100), known.remaining(0, family=101)

    everybody = known.remaining(0)
    assert short < 0.5 * everybody
    assert long > 2.0 * everybody


def test_where_families_do_not_answer_alike_an_answer_tells_nothing():
    known = talkers(alike=0.0)
    known.add(20, family=100)

    left = known.remaining(0, family=100)

    assert left == pytest.approx(known.remaining(0), rel=0.25)


def test_a_cap_tells_what_answers_under_such_caps_were():
    known = learned([1000, 2000, 3000] * 100)
    for tokens in (60, 70, 80) * 10:
        known.add(tokens, max_tokens=100)

    capped, free = known.remaining(0, max_tokens=100), known.remaining(0)

    assert capped == pytest.approx(70, rel=0.1)
    assert free > 900


def test_a_cap_never_seen_leans_on_all_answers():
    known = learned([100, 200, 300] * 100)

    left = known.remaining(0, max_tokens=5000)

    assert left == pytest.approx(200, rel=0.1)


def test_a_long_survivor_of_a_memoryless_crowd_has_the_mean_left():
    known = learned(exponential(200, 3000))

    left = fmean(known.remaining(400, draw=(n + 0.5) / 100) for n in range(100))

    assert left == pytest.approx(200, rel=0.15)


def test_an_answer_longer_than_any_seen_still_has_a_future():
    known = learned([50] * 40_000)

    left = known.remaining(100_000)

    assert 1 <= left <= 300


def test_the_median_halves_the_answers_to_come():
    known = learned(exponential(300, 4000, seed=1))

    left = known.remaining(100)

    to_come = [n - 100 for n in exponential(300, 4000, seed=2) if n > 100]
    assert left == pytest.approx(median(to_come), rel=0.1)


def test_families_are_forgotten_beyond_the_limit():
    known = talkers(alike=0.9)

    for family in range(1000, 1000 + MAX_FAMILIES + 1):
        known.add(2000, family)

    assert known.remaining(0, family=1000) == known.remaining(0)
    assert known.remaining(0, family=1001) != known.remaining(0)


def test_a_negative_length_is_refused():
    known = Lengths()

    with pytest.raises(ValueError, match="-1 tokens is negative"):
        known.add(-1)
