import pytest
from leadsman_engines.simulated.bodies import read


def ask(**more):
    return read("completions", {"prompt": [1, 2, 3]} | more, {})


def test_an_answer_is_as_long_as_the_body_forces_it_to_be():
    forced = ask(min_tokens=7, logit_bias={"1": 100})

    assert forced.output_tokens == 8


@pytest.mark.parametrize("more", [{}, {"min_tokens": 7}, {"logit_bias": {"1": 100}}])
def test_nothing_less_forces_a_length(more):
    assert ask(**more).output_tokens is None


def test_a_length_that_is_stated_goes_before_one_that_is_forced():
    stated = ask(min_tokens=7, logit_bias={"1": 100}, vllm_xargs={"output_tokens": 3})

    assert stated.output_tokens == 3
