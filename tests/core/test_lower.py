import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.lower import UNMEASURED, Claim, LowerTiers
from leadsman.records import GPU, Cleared, Removed, Stored

from .served import BLOCKS, SIZE, Engine, W, keys

WHOLE = SIZE * BLOCKS
NONE = np.empty(0, dtype=np.uint64)
OTHER = keys(999)


def claim(blocks=40, gpu=10, tier="CPU"):
    return Claim(gpu=gpu, with_tier={tier: blocks})


def tiers(*events):
    lower = LowerTiers()
    lower.note([Stored(keys=OTHER, tier="CPU"), *events])
    return lower


def test_a_tier_that_says_what_leaves_it_is_credited_from_the_start():
    silent, complete = tiers(), tiers(Removed(keys=OTHER, tier="CPU"))

    assert silent.reach(claim(), SIZE, 1e-4) is None
    assert complete.reach(claim(), SIZE, 1e-4).blocks == 40


def test_what_the_gpu_has_is_brought_by_nobody():
    lower = tiers(Removed(keys=OTHER, tier="CPU"))

    assert lower.reach(claim(10, gpu=10), SIZE, 1e-4) is None


def test_events_of_the_gpu_make_no_tier():
    lower = LowerTiers()

    lower.note([Stored(keys=OTHER), Removed(keys=OTHER, tier=GPU), Cleared(), Cleared(tier="CPU")])

    assert lower.names == []


@given(st.lists(st.booleans(), max_size=30), st.booleans())
def test_a_tier_is_credited_as_long_as_most_of_what_it_claimed_lately_was_found(hits, tells):
    lower = tiers(*[Removed(keys=OTHER, tier="CPU")] * tells)

    for is_hit in hits:
        lower.judge(claim(), found=40 if is_hit else 10, late=None, size=SIZE)

    weights = [0.8**age for age in reversed(range(len(hits)))]
    right = sum(w for w, is_hit in zip(weights, hits, strict=True) if is_hit)
    expected = (right + tells) / (sum(weights) + 1) >= 0.5
    assert lower.are_credited is expected


def test_a_request_that_found_less_than_the_gpu_has_says_nothing_of_the_tiers():
    lower = tiers(Removed(keys=OTHER, tier="CPU"))

    for _ in range(9):
        lower.judge(claim(), found=3, late=None, size=SIZE)

    assert lower.are_credited


def test_until_it_is_seen_bringing_takes_a_share_of_computing_and_then_what_it_took():
    lower = tiers(Removed(keys=OTHER, tier="CPU"))
    before = lower.reach(claim(), SIZE, 1e-4)

    lower.judge(claim(), found=40, late=0.12, size=SIZE)
    after = lower.reach(claim(), SIZE, 1e-4)

    assert before.tokens == after.tokens == 30 * SIZE
    assert before.seconds == pytest.approx(UNMEASURED * 1e-4 * 30 * SIZE)
    assert after.seconds == pytest.approx(0.12)


def test_the_tier_that_reaches_furthest_is_the_one_that_counts():
    lower = tiers(Removed(keys=OTHER, tier="CPU"), Removed(keys=OTHER, tier="STORAGE"))

    reach = lower.reach(Claim(gpu=1, with_tier={"CPU": 5, "STORAGE": 9}), SIZE, 1e-4)

    assert reach.blocks == 9


@pytest.fixture
def engine():
    """An engine with a host tier, whose prompt 1 is there and no more on the GPU."""
    engine = Engine()
    engine.serve(1)
    engine.events(Stored(keys=keys(1), tier="CPU"), Removed(keys=keys(1)))
    return engine


def test_a_tier_that_was_never_seen_to_lose_anything_is_credited_once_it_was_right(engine):
    first = engine.serve(1, found=WHOLE)
    second = engine.serve(1, found=WHOLE)

    assert first == (0, WHOLE)
    assert second == (WHOLE, WHOLE)
    assert engine.price.loaded_tokens == WHOLE


def test_a_load_is_priced_as_long_as_loads_took(engine):
    engine.events(Stored(keys=OTHER, tier="CPU"), Removed(keys=OTHER, tier="CPU"))
    for _ in range(30):
        engine.serve(1, found=WHOLE, ttft=0.7)

    assert engine.price.cached_tokens == engine.price.loaded_tokens == WHOLE
    assert engine.price.ttft == pytest.approx(0.7, rel=0.1)
    assert engine.price.load > 0.5


def test_a_tier_that_lets_requests_down_costs_no_trust_of_the_gpu(engine):
    engine.events(Stored(keys=OTHER, tier="CPU"), Removed(keys=OTHER, tier="CPU"))

    said = [engine.serve(1, found=0, says=False)[0] for _ in range(6)]

    assert said[0] == WHOLE
    assert said[-1] == 0
    assert engine.state.belief.doubt is None


def test_what_left_the_tier_is_not_brought_from_it(engine):
    engine.serve(1, found=WHOLE)

    engine.events(Removed(keys=keys(1)[1:2], tier="CPU"))

    assert engine.fleet.index.reach(W, keys(1), "CPU") == 1
    assert engine.fleet.index.reach(W, keys(1), "STORAGE") == 0


def test_a_reset_of_one_tier_leaves_the_others(engine):
    engine.events(Stored(keys=keys(2)))

    engine.events(Cleared(tier="CPU"))

    assert engine.fleet.index.reach(W, keys(1), "CPU") == 0
    assert engine.credit(2) == WHOLE
