"""What a request is believed to find, where more than the presence of blocks decides."""

from dataclasses import replace

import pytest
from leadsman.engine import SglangRules
from leadsman.holding import Holding
from leadsman.records import Stored
from leadsman.sequence import Seq
from leadsman_engines.simulated.sglang.settings import SglangSettings

from .served import BLOCKS, SETTINGS, SIZE, Engine, keys

WHOLE = SIZE * BLOCKS


@pytest.mark.parametrize(
    ("version", "is_eagle", "left_out"),
    [("0.32.0", True, 1), ("0.33.0", True, 0), ("0.32.0", False, 0)],
)
def test_an_eagle_engine_computes_the_last_block_found_anew(version, is_eagle, left_out):
    engine = Engine(version=version, is_eagle=is_eagle)
    engine.events(Stored(keys=keys(1)))

    credited, _ = engine.serve(1)

    assert credited == WHOLE - SIZE * left_out


def test_an_eagle_engine_that_has_nothing_leaves_nothing_out():
    credited, _ = Engine(version="0.32.0", is_eagle=True).serve(1)

    assert credited == 0


def test_an_engine_that_keeps_nothing_is_credited_nothing():
    engine = Engine(enable_prefix_caching=False)
    engine.events(Stored(keys=keys(1)))

    credited, _ = engine.serve(1)

    assert credited == 0


@pytest.mark.parametrize("is_eagle", [True, False])
def test_an_sglang_finds_what_it_names_of_all_but_a_prompts_last_token(is_eagle):
    rules = SglangRules(max_prefill_tokens=512)
    holding = Holding(replace(SETTINGS, sglang=rules, is_eagle=is_eagle))
    engine = SglangSettings(
        model="m",
        page_size=SIZE,
        max_total_num_tokens=10_000,
        max_running_requests=8,
        context_length=8192,
        is_eagle=is_eagle,
    )

    found = {tokens: holding.readable(prompt_of(tokens)) for tokens in range(1, 4 * SIZE)}

    assert found == {tokens: engine.keyed(tokens - 1) for tokens in found}


def prompt_of(tokens):
    prompt = Seq("r", tokens, 0.0)
    prompt.keys = list(range(tokens // SIZE))
    return prompt
