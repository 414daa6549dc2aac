"""How far the next prediction may be off."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.residuals import (
    HALF_LIFE,
    PROMISED,
    WIDE_SHARE,
    WIDEN,
    WIDEST,
    WINDOW,
    BetterOf,
    ErrorWindow,
    Residuals,
    unit,
)

errors = st.lists(st.floats(-50, 50), max_size=80)


def naive_quantile(seen, confidence):
    recent = seen[-WINDOW:]
    weights = [0.5 ** (age / HALF_LIFE) for age in range(len(recent) - 1, -1, -1)]
    total = sum(weights) + 1.0
    for error in sorted(set(recent)):
        if sum(w for e, w in zip(recent, weights, strict=True) if e <= error) >= (
            confidence * total * (1 - 1e-9)
        ):
            return error
    return None


def coverage(draw, confidence, *, rounds=4000, warm=400, predicted=3.0):
    residuals = Residuals()
    kept = 0
    for turn in range(rounds + warm):
        actual = draw()
        if turn >= warm:
            kept += actual <= residuals.bound(predicted, confidence)
        residuals.add(predicted, actual)
    return kept / rounds


@given(st.lists(st.floats(-50, 50), max_size=700), st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]))
def test_the_quantile_is_that_of_a_naive_weighted_count(seen, confidence):
    window = ErrorWindow()
    for error in seen:
        window.add(error)

    quantile = window.quantile(confidence)

    assert quantile == naive_quantile(seen, confidence)


def test_a_full_window_forgets_its_oldest():
    window = ErrorWindow()
    seen = [random.Random(n).uniform(-1, 1) for n in range(WINDOW + 300)]

    for error in seen:
        window.add(error)

    assert len(window) == WINDOW
    assert window.largest == max(seen[-WINDOW:])
    assert window.quantile(0.9) == naive_quantile(seen, 0.9)


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("shape", ["normal", "heavy", "skewed"])
def test_exchangeable_errors_are_covered_as_promised(confidence, shape):
    chance = random.Random(7)
    draws = {
        "normal": lambda: chance.gauss(3.2, 0.5),
        "heavy": lambda: 3.0 + chance.gauss(0, 0.2) / max(abs(chance.gauss(0, 1)), 0.05),
        "skewed": lambda: 2.5 + chance.expovariate(1.0),
    }

    kept = coverage(draws[shape], confidence)

    assert confidence - 0.015 <= kept <= confidence + 0.03


def test_a_drifting_worker_is_covered_again_soon():
    chance = random.Random(3)
    residuals = Residuals()
    for _ in range(600):
        residuals.add(3.0, 3.0 + chance.gauss(0, 0.2))
    for _ in range(200):
        residuals.add(3.0, 5.0 + chance.gauss(0, 0.2))

    kept = sum(5.0 + chance.gauss(0, 0.2) <= residuals.bound(3.0, 0.9) for _ in range(1000))

    assert kept >= 850


@given(errors, st.floats(0, 300), st.floats(0.5, 0.98))
def test_more_confidence_never_gives_a_lower_bound(seen, predicted, confidence):
    residuals = Residuals()
    for error in seen:
        residuals.add(predicted, predicted + error)

    lower = residuals.bound(predicted, confidence)
    upper = residuals.bound(predicted, confidence + 0.01)

    assert lower >= 0
    assert lower <= upper or lower == pytest.approx(upper)


def test_before_enough_errors_the_bound_is_wide():
    residuals = Residuals()

    bound = residuals.bound(20.0, 0.9)

    assert bound == 20.0 * (1 + WIDE_SHARE)


def test_a_miss_wider_than_wide_is_kept_in_mind():
    residuals = Residuals()

    residuals.add(20.0, 80.0)

    assert residuals.bound(20.0, 0.9) == pytest.approx(80.0)


def test_well_known_short_waits_promise_nothing_of_long_ones():
    residuals = Residuals()
    for _ in range(300):
        residuals.add(0.0, 0.01)

    short, long = residuals.bound(0.0, 0.9), residuals.bound(20.0, 0.9)

    assert short == pytest.approx(0.01)
    assert long == 30.0


def test_predictions_always_too_long_give_a_bound_below_them():
    residuals = Residuals()
    for _ in range(100):
        residuals.add(10.0, 6.0)

    bound = residuals.bound(10.0, 0.9)

    assert bound == pytest.approx(6.0)


def test_a_unit_of_error_is_the_tolerance_that_grades_use():
    units = [unit(seconds) for seconds in (0.0, 0.5, 10.0)]

    assert units == [0.1, 0.1, 1.5]


def test_the_learned_predictor_takes_over_once_it_is_better():
    better = BetterOf()
    chance = random.Random(1)

    before = better.best
    for _ in range(40):
        better.add(prior=5.0, learned=3.0 + chance.gauss(0, 0.05), actual=3.0)

    assert before == "prior"
    assert better.best == "learned"


def test_the_prior_comes_back_when_learning_goes_wrong():
    better = BetterOf()
    for _ in range(40):
        better.add(prior=5.0, learned=3.0, actual=3.0)

    for _ in range(60):
        better.add(prior=3.0, learned=9.0, actual=3.0)

    assert better.best == "prior"


def test_one_stall_does_not_change_who_is_right():
    better = BetterOf()
    for _ in range(100):
        better.add(prior=3.0, learned=3.6, actual=3.1)

    better.add(prior=3.0, learned=3.6, actual=60.0)

    assert better.best == "prior"
    assert better.loss("prior") < better.loss("learned")


def test_equally_good_predictors_seldom_take_turns():
    better = BetterOf()
    chance = random.Random(5)
    held = []

    for _ in range(1000):
        prior, learned = 3.0 + chance.gauss(0, 0.3), 3.0 + chance.gauss(0, 0.3)
        better.add(prior=prior, learned=learned, actual=3.0)
        held.append(better.best)

    changes = sum(a != b for a, b in itertools.pairwise(held))
    assert changes <= 30


@given(st.lists(st.floats(-2.0, 3.0), min_size=30, max_size=300), st.floats(0.0, 20.0))
def test_in_the_long_run_a_tenth_of_promises_is_broken_whatever_errors_do(errors, predicted):
    residuals, broken = Residuals(), 0

    for error in errors:
        promised = residuals.bound(predicted, PROMISED)
        actual = max(0.0, predicted + error * unit(predicted))
        broken += actual > promised
        residuals.add(predicted, actual, promised)

    assert broken <= (1.0 - PROMISED) * len(errors) + WIDEST / WIDEN


def test_errors_that_grow_are_promised_more_than_they_were():
    told, untold = Residuals(), Residuals()
    kept = {True: 0, False: 0}

    for number in range(400):
        actual = 10.0 + 0.01 * number
        for residuals, is_told in ((told, True), (untold, False)):
            promised = residuals.bound(10.0, PROMISED)
            kept[is_told] += number >= 50 and actual <= promised
            residuals.add(10.0, actual, promised if is_told else None)

    assert kept[False] == 0
    assert kept[True] >= 0.85 * 350


def test_promises_that_are_kept_narrow_the_bound_again():
    residuals = Residuals()
    for _ in range(100):
        residuals.add(1.0, 1.0, 1.0)
    narrow = residuals.bound(1.0, PROMISED)

    residuals.add(1.0, 1.0, 0.5)
    wide = residuals.bound(1.0, PROMISED)
    for _ in range(100):
        residuals.add(1.0, 1.0, 2.0)

    assert wide > narrow
    assert residuals.bound(1.0, PROMISED) == narrow
