from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from leadsman.steptime import (
    CREDULOUS,
    REJECTS_TO_YIELD,
    WINDOW,
    StepFeatures,
    StepLearner,
    StepWeights,
    non_negative,
)

TRUE = StepWeights(0.006, 6.6e-5, 5e-8, 5e-4, 4e-7, 0.004)
GUESS = StepWeights(0.0, 1e-4, 2e-10, 0.0, 0.0, 0.05)


def step(rng, *, prefill=0.5):
    """One engine step: some decodes, and with that chance a chunk of a prompt."""
    decodes = rng.randint(0, 16)
    context = decodes * rng.randint(100, 4000)
    if rng.random() > prefill and decodes:
        return StepFeatures(1, 0, 0, decodes, context, 0)
    tokens, before = rng.randint(64, 512), rng.choice([0, 512, 2048, 8192])
    return StepFeatures(
        1, tokens, tokens * (before + tokens / 2), decodes, context, rng.randint(0, 1)
    )


def teach(learner, rng, *, steps, true=TRUE, noise=0.0, prefill=0.5):
    for _ in range(steps):
        features = step(rng, prefill=prefill)
        learner.observe(features, true.seconds(features) * rng.lognormvariate(0, noise))


def worst_error(weights, rng, true=TRUE, *, steps=200):
    """The largest relative error over some totals of 20 steps, as a prediction sums them."""
    errors = []
    for _ in range(steps // 20):
        features = [step(rng) for _ in range(20)]
        ours, theirs = (sum(w.seconds(f) for f in features) for w in (weights, true))
        errors.append(abs(ours / theirs - 1))
    return max(errors)


@pytest.mark.parametrize("seed", range(5))
def test_the_weights_are_recovered_from_noisy_windows(seed):
    learner, rng = StepLearner(GUESS, trust=0.003), Random(seed)

    teach(learner, rng, steps=2000, noise=0.05)

    assert worst_error(learner.weights, rng) < 0.05


@pytest.mark.parametrize("seed", range(3))
def test_single_weights_are_recovered_where_there_is_no_noise(seed):
    learner = StepLearner(GUESS, trust=0.003)

    teach(learner, Random(seed), steps=6000)

    for name in ("a", "b", "t_d", "e"):
        assert getattr(learner.weights, name) == pytest.approx(getattr(TRUE, name), rel=0.1)


stretches = st.lists(
    st.tuples(
        st.builds(
            StepFeatures,
            st.integers(1, 9).map(float),
            st.floats(0, 1e4),
            st.floats(0, 1e9),
            st.floats(0, 1e3),
            st.floats(0, 1e7),
            st.floats(0, 9),
        ),
        st.floats(1e-4, 100),
    ),
    max_size=60,
)


@given(stretches)
def test_no_weight_is_ever_negative_whatever_is_observed(observed):
    learner = StepLearner(GUESS, trust=0.003)

    for features, seconds in observed:
        learner.observe(features, seconds)

    assert all(0 <= weight < float("inf") for weight in learner.weights)


@given(
    arrays.arrays(np.float64, (9, 6), elements=st.floats(-3, 3, width=16)),
    arrays.arrays(np.float64, 6, elements=st.floats(-9, 9, width=16)),
    arrays.arrays(np.bool_, 6),
)
def test_no_step_from_the_non_negative_minimum_leads_down(rows, moment, guess):
    gram = rows.T @ rows + 0.1 * np.eye(6)

    found = non_negative(gram, moment, guess)

    slope = gram @ found - moment
    assert (found >= 0).all()
    assert (slope > -1e-6).all()
    assert np.abs(slope * found).max() < 1e-6


def taught(*, steps=600, trust=25.0):
    learner = StepLearner(TRUE, trust=trust)
    teach(learner, Random(1), steps=steps)
    return learner


@pytest.mark.parametrize("factor", [0.05, 20.0, 1e4])
def test_an_absurd_sample_teaches_nothing(factor):
    learner = taught()
    before = learner.weights
    features = StepFeatures(500, 100_000, 1e8, 2500, 5e6, 50)

    learner.observe(features, factor * TRUE.seconds(features))

    assert learner.weights == before


def test_many_absurd_samples_in_a_row_mean_that_the_weights_are_wrong():
    learner = taught()
    before = learner.weights
    features = StepFeatures(10, 2000, 2e6, 50, 1e5, 1)

    for _ in range(REJECTS_TO_YIELD):
        learner.observe(features, 8 * TRUE.seconds(features))
    unmoved = learner.weights
    for _ in range(REJECTS_TO_YIELD + 1):
        learner.observe(features, 8 * TRUE.seconds(features))

    assert unmoved == before
    assert learner.weights.seconds(features) > before.seconds(features)


def test_one_plausible_sample_starts_the_count_of_absurd_ones_anew():
    learner = taught()
    features = StepFeatures(10, 2000, 2e6, 50, 1e5, 1)
    windows = learner.windows

    for _ in range(3):
        for _ in range(REJECTS_TO_YIELD):
            learner.observe(features, 8 * TRUE.seconds(features))
        learner.observe(features, max(WINDOW, TRUE.seconds(features)))

    assert learner.windows == windows + 3


def test_a_guess_takes_its_first_samples_as_they_come():
    learner = StepLearner(GUESS.scaled(100), trust=0.003)

    teach(learner, Random(3), steps=8 * CREDULOUS, prefill=1.0)

    assert worst_error(learner.weights, Random(4)) < 0.5


@pytest.mark.parametrize("slower", [1.15, 1.3, 1.6])
def test_drift_follows_a_machine_that_slows_down(slower):
    learner = taught(steps=1500)
    slow = TRUE.scaled(slower)

    teach(learner, Random(2), steps=400, true=slow)

    assert worst_error(learner.weights, Random(5), slow) < 0.4 * (slower - 1)


def test_a_machine_as_fast_as_ever_does_not_drift():
    learner = taught(steps=1500)

    teach(learner, Random(2), steps=400, noise=0.05)

    assert worst_error(learner.weights, Random(5)) < 0.02


def test_short_stretches_are_joined_until_they_fill_a_window():
    learner = StepLearner(TRUE)
    short = StepFeatures(1, 64, 2048, 0, 0, 0)
    needed = int(WINDOW / TRUE.seconds(short)) + 1

    for _ in range(needed - 1):
        learner.observe(short, TRUE.seconds(short))
    before = learner.windows
    learner.observe(short, TRUE.seconds(short))

    assert (before, learner.windows) == (0, 1)


def test_an_interruption_drops_the_open_window():
    learner = StepLearner(TRUE)
    short = StepFeatures(1, 64, 2048, 0, 0, 0)

    for _ in range(20):
        learner.observe(short, 0.9 * WINDOW)
        learner.interrupt()

    assert learner.windows == 0
    assert learner.weights == TRUE


def test_another_prior_does_not_undo_what_steps_have_taught():
    learner = StepLearner(GUESS, trust=0.003)
    teach(learner, Random(1), steps=2000)

    learner.lean_on(TRUE.scaled(2), trust=0.003)

    assert worst_error(learner.weights, Random(4)) < 0.05


@given(st.integers(1, 5000), st.lists(st.integers(1, 4999), max_size=8))
def test_the_attention_of_a_prompt_does_not_depend_on_how_it_is_cut(prompt, cuts):
    edges = [0, *sorted({cut for cut in cuts if cut < prompt}), prompt]
    weights = StepWeights(0.0, 1e-5, 1e-9, 0.0, 0.0, 0.0)

    chunks = [
        StepFeatures(1, end - start, (end - start) * (start + (end - start) / 2), 0, 0, 0)
        for start, end in pairwise(edges)
    ]

    assert sum(map(weights.seconds, chunks)) == pytest.approx(1e-5 * prompt + 1e-9 * prompt**2 / 2)


@pytest.mark.parametrize("prior", [TRUE, GUESS])
def test_another_prior_before_any_step_is_taken_as_it_is(prior):
    learner = StepLearner(StepWeights(0.0, 1e-4, 0.0, 0.0, 0.0, 0.0))

    learner.lean_on(prior, trust=20.0)

    assert learner.weights == pytest.approx(prior)


@pytest.mark.parametrize("seed", range(3))
def test_what_an_isolated_curve_holds_of_its_steps_is_not_counted_twice(seed):
    budget = 512
    curve = StepWeights(0.0, TRUE.a + TRUE.t0 / budget, TRUE.b, 0.0, 0.0, TRUE.s + TRUE.t0 / 2)
    learner = StepLearner(curve, trust=20.0, budget=budget)

    teach(learner, Random(seed), steps=1000, noise=0.03)

    assert learner.weights.s == pytest.approx(TRUE.s, rel=0.25)
    assert learner.weights.a == pytest.approx(TRUE.a, rel=0.05)
    assert worst_error(learner.weights, Random(seed)) < 0.03


def test_a_curve_alone_is_taken_as_it_is_until_steps_are_seen():
    learner = StepLearner(GUESS, trust=20.0, budget=512)
    curve = StepWeights(0.0, 1e-4, 1e-8, 0.0, 0.0, 0.02)

    learner.lean_on(curve, trust=20.0)

    seconds = learner.weights.seconds(StepFeatures(4, 2000, 2e6, 0, 0, 1))
    assert seconds == pytest.approx(curve.seconds(StepFeatures(4, 2000, 2e6, 0, 0, 1)))
