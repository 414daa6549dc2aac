"""The one behind: when it comes, how long it is, and what it does to the last step before it."""

import pytest
from leadsman.followers import Followers
from leadsman.pricing import forecast

from .test_firstcome import WEIGHTS, queued


def frequent(gap, tokens, count=100):
    known = Followers()
    for number in range(count):
        known.came(number * gap)
        known.prefilled(tokens)
    return known


def test_nobody_is_behind_before_a_gap_and_a_prefill_were_seen():
    known = Followers()
    known.came(1.0)
    known.prefilled(300)

    behind = known.next_after(2.0)

    assert behind is None


def test_the_next_comes_after_the_usual_gap_with_the_usual_prefill():
    known = frequent(gap=0.5, tokens=300)

    behind = known.next_after(60.0)

    assert behind.visible_at == pytest.approx(60.5)
    assert behind.prompt == 300


def test_a_fully_cached_prompt_still_has_its_last_token_to_prefill():
    known = frequent(gap=0.5, tokens=0)

    behind = known.next_after(60.0)

    assert behind.prompt == 1


def test_who_comes_behind_fills_the_last_step_and_no_other():
    mirror, target = queued([100_000])
    often, seldom = frequent(gap=0.1, tokens=50_000), frequent(gap=1e6, tokens=50_000)

    def price(known):
        return forecast(mirror, target, WEIGHTS, 0.0, known.next_after(0.0))

    alone = forecast(mirror, target, WEIGHTS, 0.0)
    left = 8192 - (100_001 - 12 * 8192)
    filled = WEIGHTS.a * left + 0.5 * WEIGHTS.b * left**2
    assert price(seldom) == pytest.approx(alone)
    assert price(often).scheduled_at == pytest.approx(alone.scheduled_at)
    assert price(often).first_token_at - alone.first_token_at == pytest.approx(filled, rel=0.01)
