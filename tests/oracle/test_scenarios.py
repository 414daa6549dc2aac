import json

import pytest
from oracle.scenarios import MODES, scenario

SEEDS = range(60)


@pytest.mark.parametrize("mode", MODES)
def test_a_scenario_is_made_of_its_mode_and_seed_alone(mode):
    first, again = (json.dumps(scenario(mode, 7)) for _ in "ab")

    assert first == again
    assert first != json.dumps(scenario(mode, 8))


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_could_start_with_its_settings_and_serve_every_request(mode):
    for told in (scenario(mode, seed) for seed in SEEDS):
        settings = told["settings"]
        size, longest = settings["block_size"], settings["max_model_len"]
        rows = -(-longest // size)

        assert settings["max_num_seqs"] <= settings["max_num_batched_tokens"]
        assert settings["num_blocks"] - 1 >= rows * len(settings["windows"])
        for request in told["requests"]:
            prompt = sum(length for _, length in request["prompt"])
            assert prompt > 0
            assert prompt + request["max_tokens"] <= longest


@pytest.mark.parametrize("mode", MODES)
def test_scenarios_of_a_mode_have_all_that_it_is_for(mode):
    what = mode.split("-")[0]
    told = [scenario(mode, seed) for seed in SEEDS]
    requests = [request for one in told for request in one["requests"]]
    settings = [one["settings"] for one in told]

    assert {one["policy"] for one in settings} == {"fcfs", "priority"}
    # States are kept where chunks end, so vLLM does not take such a model without chunks.
    chunked = {True} if what == "state" else {True, False}
    assert {one["enable_chunked_prefill"] for one in settings} == chunked
    assert len({one["watermark"] for one in settings}) > 1
    assert any(request["aborts"] is not None for request in requests)
    assert any((request["stops"] or 99) < request["max_tokens"] for request in requests)
    assert any(one["num_speculative_tokens"] for one in settings) == (what in {"spec", "mixed"})
    assert any(one["windows"] != [None] for one in settings) == (
        what in {"hybrid", "mixed", "state"}
    )
