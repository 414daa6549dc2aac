from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_engines.simulated.hardware import Hardware, _selected_pairs
from leadsman_engines.simulated.presets import presets

NAMES = sorted(presets())


def isolated(preset, tokens):
    """Sum the steps of one prompt alone, without chance."""
    seconds = done = 0
    while done < tokens:
        chunk = min(preset.settings.max_num_batched_tokens, tokens - done)
        seconds += preset.hardware.step_seconds([(chunk, done)], [])
        done += chunk
    return seconds


def test_sparse_attention_fits_thirty_n_and_thirty_seven_n_squared():
    preset = presets()["deepseek-v4-flash-4xh100"]
    millions = np.linspace(0.008, 1.0, 120)
    seconds = np.array([isolated(preset, int(n * 1e6)) for n in millions])

    terms = np.stack([millions, millions**2, np.ones_like(millions)], axis=1)
    linear, squared, _ = np.linalg.lstsq(terms / seconds[:, None], np.ones(120), rcond=None)[0]

    assert linear == pytest.approx(30, rel=0.05)
    assert squared == pytest.approx(37, rel=0.05)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 4096), st.integers(0, 100_000), st.lists(st.integers(1, 50_000), max_size=40))
def test_more_work_in_a_step_never_makes_it_shorter(name, tokens, context, decodes):
    hardware = presets()[name].hardware

    seconds = hardware.step_seconds([(tokens, context)], decodes)

    assert hardware.step_seconds([(tokens + 1, context)], decodes) >= seconds
    assert hardware.step_seconds([(tokens, context + 1)], decodes) >= seconds
    assert hardware.step_seconds([(tokens, context)], [*decodes, 9]) >= seconds


@pytest.mark.parametrize("name", NAMES)
def test_a_decode_step_is_at_least_as_long_as_streaming_the_weights_it_touches(name):
    hardware = presets()[name].hardware
    model, device = hardware.model, hardware.device
    touched = model.active_parameters * model.weight_bytes

    seconds = hardware.step_seconds([], [1000])

    assert seconds > touched / (device.bandwidth * device.count)


@pytest.mark.parametrize("name", NAMES)
def test_no_prefill_is_faster_than_the_data_sheet(name):
    hardware = presets()[name].hardware
    model, device = hardware.model, hardware.device
    flops = 2 * model.active_parameters * 8192

    seconds = hardware.step_seconds([(8192, 0)], [])

    assert seconds > flops / (device.flops * device.count)


def test_a_batch_touches_more_experts_than_one_token():
    hardware = presets()["qwen3-30b-a3b-h100"].hardware

    alone, batch = hardware.step_seconds([], [10]), hardware.step_seconds([], [10] * 32)

    assert batch > 2 * alone


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 50))
def test_selected_pairs_are_what_a_loop_counts(tokens, context, selected):
    looped = sum(min(context + position, selected) for position in range(1, tokens + 1))

    counted = _selected_pairs(tokens, context, selected)

    assert counted == looped


def test_chance_is_a_few_percent_around_one_and_comes_from_the_generator():
    preset = presets()["llama-3.1-8b-a100"]
    calm = Hardware(preset.hardware.model, replace(preset.hardware.device, stalls_per_step=0.0))

    drawn = [calm.by_chance(1.0, Random(seed)) for seed in range(300)]

    assert np.std(drawn) == pytest.approx(0.02, rel=0.2)
    assert drawn == [calm.by_chance(1.0, Random(seed)) for seed in range(300)]


def test_a_stall_is_rare_and_long():
    preset = presets()["llama-3.1-8b-a100"]
    device = replace(preset.hardware.device, jitter=0.0, stalls_per_step=0.01)
    stalling = Hardware(preset.hardware.model, device)
    rng = Random(3)

    drawn = [stalling.by_chance(0.01, rng) for _ in range(5000)]

    assert 20 < sum(seconds > 0.05 for seconds in drawn) < 90


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_states_where_its_figures_come_from(name):
    preset = presets()[name]

    assert preset.name == name
    assert preset.hardware.model.name == preset.settings.model
    assert len(preset.about) > 150
