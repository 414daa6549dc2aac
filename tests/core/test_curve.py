"""What a worker's isolated requests say of its speed."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.curve import (
    CURVE_SAMPLES,
    DEFAULT_CURVE,
    PER_OCTAVE,
    CurveLearner,
    PrefillCurve,
    best_known,
    fingerprint,
)
from leadsman.engine import EngineSettings
from leadsman.robust import fit_square, non_negative
from leadsman.units import WorkerId

SETTINGS = EngineSettings(
    model="m",
    version="0.33.0",
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    max_model_len=1_000_000,
    block_size=16,
    num_blocks=50_000,
    hardware="H200",
)

CPU_VLLM = {
    64: (0.016, 0.017, 0.017),
    128: (0.021, 0.02, 0.019),
    256: (0.032, 0.028, 0.031),
    512: (0.047, 0.047, 0.049),
    768: (0.075, 0.099, 0.077),
    1024: (0.103, 0.105, 0.119),
    1536: (0.172, 0.18, 0.177),
    2048: (0.255, 0.268, 0.258),
    3072: (0.464, 0.458, 0.474),
    4096: (0.723, 0.724, 0.736),
}


@st.composite
def curves(draw):
    return PrefillCurve(
        overhead=draw(st.floats(0.002, 0.2)),
        a=draw(st.floats(5e-6, 3e-4)),
        b=draw(st.floats(0.0, 3e-8)),
    )


def learner_of(samples, settings=SETTINGS):
    learner = CurveLearner(fingerprint(settings))
    learner.add(100, 9.0)
    for tokens, seconds in samples:
        learner.add(tokens, seconds)
    return learner


def noisy_samples(curve, *, seed, count, noise=0.03, longest=200_000):
    chance = np.random.default_rng(seed)
    lengths = np.exp(chance.uniform(np.log(64), np.log(longest), count)).astype(int)
    lengths[:2] = 64, longest
    factors = np.exp(chance.normal(0, noise, count))
    return [
        (int(n), curve.seconds(int(n)) * float(f)) for n, f in zip(lengths, factors, strict=True)
    ]


def worst_relative_error(fit, truth, lengths=(64, 512, 4096, 32_768, 200_000)):
    return max(abs(fit.seconds(n) / truth.seconds(n) - 1) for n in lengths)


def brute_force(tokens, seconds, weights):
    columns = np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1) / seconds[:, None]
    roots = np.sqrt(weights)
    best = None
    for mask in product((False, True), repeat=3):
        kept = [i for i in range(3) if mask[i]]
        theta = np.zeros(3)
        if kept:
            theta[kept] = np.linalg.lstsq(columns[:, kept] * roots[:, None], roots, rcond=None)[0]
        loss = float((weights * (columns @ theta - 1) ** 2).sum())
        if (theta >= -1e-15).all() and (best is None or loss < best):
            best = loss
    return best


@given(curves(), st.integers(0, 2**32 - 1), st.integers(24, 60))
def test_a_known_curve_is_found_again_in_noisy_samples(truth, seed, count):
    samples = noisy_samples(truth, seed=seed, count=count)

    fit = learner_of(samples).curve

    # One sample alone at the end may be an outlier as well: nothing is promised beyond the third.
    known = sorted(tokens for tokens, _ in samples)[-3]
    lengths = [n for n in (64, 512, 4096, 32_768, 200_000) if n <= known]
    assert worst_relative_error(fit, truth, lengths) < 0.15


@given(
    st.floats(0.002, 0.02),
    st.floats(3e-5, 3e-4),
    st.floats(0.0, 3e-8),
    st.integers(0, 2**32 - 1),
    st.lists(st.floats(0.3, 30), min_size=1, max_size=4),
)
def test_outliers_hardly_move_the_curve(overhead, a, b, seed, factors):
    truth = PrefillCurve(overhead=overhead, a=a, b=b)
    samples = noisy_samples(truth, seed=seed, count=48)
    places = np.random.default_rng(seed).choice(np.arange(2, 48), len(factors), replace=False)
    for place, factor in zip(places, factors, strict=True):
        tokens, seconds = samples[place]
        samples[place] = tokens, seconds * factor

    fit = learner_of(samples).curve

    assert worst_relative_error(fit, truth) < 0.25


@given(
    st.lists(st.tuples(st.integers(1, 1_000_000), st.floats(1e-4, 300)), min_size=1, max_size=40)
)
def test_any_curve_rises_and_is_never_negative(samples):
    fit = learner_of(samples).curve or DEFAULT_CURVE
    lengths = np.unique(np.geomspace(1, 1_000_000, 30).astype(int)).tolist()

    seconds = [fit.seconds(n) for n in lengths]

    assert min(fit.overhead, fit.a, fit.b) >= 0
    assert seconds == sorted(seconds)


@given(curves(), st.integers(1, 1_000_000), st.data())
def test_a_cached_prefix_costs_the_difference_of_two_curves(curve, whole, data):
    cached = data.draw(st.integers(0, whole - 1))

    price = curve.price(whole, cached)

    assert price == pytest.approx(curve.seconds(whole) - curve.seconds(cached) + curve.overhead)
    assert price <= curve.seconds(whole) * (1 + 1e-12)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.floats(1e-3, 10)), min_size=4, max_size=12),
)
def test_the_fit_of_clean_weights_is_the_best_of_all_supports(samples):
    tokens = np.array([n for n, _ in samples], dtype=float)
    seconds = np.array([s for _, s in samples])
    weights = np.ones(len(samples))

    columns = np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1)
    theta = non_negative(columns / columns.max(axis=0) / seconds[:, None], weights)

    rows = columns / columns.max(axis=0) / seconds[:, None]
    assert float(((rows @ theta - 1) ** 2).sum()) <= brute_force(tokens, seconds, weights) + 1e-6


def test_a_real_engine_is_fitted_to_a_few_percent():
    samples = [(n, s) for n, times in CPU_VLLM.items() for s in times]

    fit = learner_of(samples).curve

    misses = sorted(abs(fit.seconds(n) / s - 1) for n, s in samples)
    assert misses[len(misses) // 2] < 0.04
    assert misses[-1] < 0.3


def test_the_first_sample_after_a_start_is_not_believed():
    learner = CurveLearner("f")

    learner.add(1000, 40.0)
    learner.add(1000, 0.1)

    assert learner.samples == ((1000, 0.1),)


def test_too_few_samples_give_no_curve():
    truth = PrefillCurve(overhead=0.01, a=1e-4, b=1e-9)
    samples = noisy_samples(truth, seed=1, count=CURVE_SAMPLES)

    before, after = learner_of(samples[:-1]), learner_of(samples)

    assert before.curve is None
    assert after.curve is not None


def test_prompts_of_like_length_give_a_rate_but_no_curve():
    learner = learner_of([(1000 + n, 0.3) for n in range(40)])

    curve, known = learner.curve, best_known(learner, [])

    assert curve is None
    assert known.provenance == "own"
    assert known.curve.seconds(1000) == pytest.approx(0.3, rel=0.05)


def test_short_prompts_do_not_push_out_what_is_known_of_long_ones():
    truth = PrefillCurve(overhead=0.01, a=1e-5, b=1e-9)
    long = [(150_000, truth.seconds(150_000)), (60_000, truth.seconds(60_000))]
    short = [(64 + n % 60, truth.seconds(64 + n % 60)) for n in range(500)]

    learner = learner_of(long + short)

    assert len(learner) <= PER_OCTAVE + len(long)
    assert learner.curve.seconds(150_000) == pytest.approx(truth.seconds(150_000), rel=0.05)


def test_a_worker_that_slowed_down_is_followed():
    fast = PrefillCurve(overhead=0.01, a=1e-5, b=1e-10)
    samples = noisy_samples(fast, seed=3, count=60)

    learner = learner_of(samples + noisy_samples(fast.scaled(1.5), seed=4, count=120))

    assert worst_relative_error(learner.curve, fast.scaled(1.5)) < 0.1


def test_a_changed_setting_discards_the_samples():
    learner = learner_of([(1000, 0.3), (2000, 0.5)])

    learner.restarted(fingerprint(replace(SETTINGS, max_num_batched_tokens=4096)))

    assert learner.samples == ()


def test_a_restart_with_the_same_settings_keeps_the_samples():
    learner = learner_of([(1000, 0.3), (2000, 0.5)])

    learner.restarted(fingerprint(SETTINGS))
    learner.add(1000, 7.0)

    assert learner.samples == ((1000, 0.3), (2000, 0.5))


def test_free_memory_at_the_start_does_not_change_a_fingerprint():
    prints = {fingerprint(replace(SETTINGS, num_blocks=blocks)) for blocks in (49_000, 50_000)}

    assert len(prints) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"version": "0.34.0"},
        {"model": "n"},
        {"hardware": "L4"},
        {"image": "x"},
        {"max_num_seqs": 9},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_bears_on_speed_changes_the_fingerprint(change):
    changed = fingerprint(replace(SETTINGS, **change))

    assert changed != fingerprint(SETTINGS)


def test_a_curve_is_not_lent_across_unknown_hardware_of_other_memory():
    small = fingerprint(replace(SETTINGS, hardware=None, num_blocks=3_000))

    large = fingerprint(replace(SETTINGS, hardware=None, num_blocks=60_000))

    assert small != large


def test_an_unmeasured_worker_borrows_from_one_like_it():
    truth = PrefillCurve(overhead=0.01, a=1e-5, b=1e-10)
    peer = learner_of(noisy_samples(truth, seed=5, count=30))
    stranger = learner_of(
        noisy_samples(truth.scaled(9), seed=6, count=50), replace(SETTINGS, hardware="L4")
    )

    known = best_known(CurveLearner(fingerprint(SETTINGS)), [stranger, peer])

    assert known.provenance == "borrowed"
    assert worst_relative_error(known.curve, truth) < 0.1


def test_nothing_measured_and_nobody_alike_is_said_to_be_unmeasured():
    known = best_known(CurveLearner("f"), [CurveLearner("f"), CurveLearner("g")])

    assert known.curve == DEFAULT_CURVE
    assert known.provenance == "unmeasured"


def test_exported_samples_give_the_same_curve_elsewhere():
    truth = PrefillCurve(overhead=0.01, a=1e-5, b=1e-10)
    learned = learner_of(noisy_samples(truth, seed=7, count=30)).export(WorkerId("w"))
    fresh = CurveLearner(fingerprint(SETTINGS))

    taken = fresh.adopt(learned)

    assert taken
    assert fresh.samples == learned.samples
    assert worst_relative_error(fresh.curve, truth) < 0.1


def test_samples_of_other_settings_are_not_adopted():
    learned = learner_of([(1000, 0.3)]).export(WorkerId("w"))
    fresh = CurveLearner("another")

    taken = fresh.adopt(learned)

    assert not taken
    assert fresh.samples == ()


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(0, 1.0), (5, 0.0), (5, -1.0), (5, float("nan")), (5, float("inf"))]
)
def test_what_is_no_measurement_is_refused(tokens, seconds):
    learner = CurveLearner("f")

    with pytest.raises(ValueError, match="is not a measurement"):
        learner.add(tokens, seconds)


def test_a_negative_curve_is_refused_by_the_name_of_its_part():
    with pytest.raises(ValueError, match=r"PrefillCurve\.b"):
        PrefillCurve(overhead=0.1, a=1.0, b=-1.0)


def test_equal_lengths_do_not_break_the_fit():
    tokens, seconds = np.full(9, 1000.0), np.full(9, 0.5)

    overhead, a, b = fit_square(tokens, seconds, weights=np.ones(9), start=seconds)

    assert overhead + a * 1000 + b * 1000**2 == pytest.approx(0.5)
