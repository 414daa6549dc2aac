import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.lower import UNMEASURED, Claim, LowerTiers
from leadsman.records import (
    GPU,
    STORE,
    Cleared,
    KvEvents,
    Removed,
    Stored,
    Trust,
    WorkerGone,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId

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


class Shared:
    """The engine, and another worker, or a store, that says what it put into a tier."""

    def __init__(self, store=None, **fields):
        self.engine = Engine(**fields)
        self.batches = 0
        self.other = WorkerId(store or "other:8000")
        if store is not None:
            return
        seen = WorkerSeen(
            worker=self.other, endpoint=self.other, settings=self.engine.settings, ready=False
        )
        self.engine.tell(seen)

    def put(self, *seeds):
        self.batches += 1
        self.engine.tell(
            KvEvents(
                worker=self.other,
                sequence=self.batches,
                engine_time=self.engine.now,
                received_at=self.engine.now,
                events=tuple(Stored(keys=keys(seed), tier="STORAGE") for seed in seeds),
            )
        )


def test_what_a_store_lists_is_credited_once_found_and_the_store_is_no_worker():
    shared = Shared(store=f"{STORE}http://coordinator m")
    shared.put(*range(10))

    served = [shared.engine.serve(seed, found=WHOLE) for seed in range(2)]

    assert served == [(0, WHOLE), (WHOLE, WHOLE)]
    assert list(shared.engine.fleet.workers) == [W]


def test_what_others_put_into_a_tier_is_credited_once_a_request_was_seen_to_find_it():
    shared = Shared()
    shared.put(*range(10))

    first = shared.engine.serve(0, found=WHOLE)
    second = shared.engine.serve(1, found=WHOLE)

    assert first == (0, WHOLE)
    assert second == (WHOLE, WHOLE)
    assert shared.engine.price.loaded_tokens == WHOLE


def test_a_load_from_a_shared_tier_is_priced_as_long_as_loads_took():
    shared, load = Shared(), 0.4
    shared.put(*range(60))
    for seed in range(40):
        alone = shared.engine.serve(1000 + seed)
        shared.engine.serve(seed, found=WHOLE, ttft=load)

    assert alone == (0, 0)
    assert shared.engine.price.ttft == pytest.approx(load, rel=0.2)


def test_tiers_that_others_have_for_themselves_are_never_credited():
    shared = Shared()
    shared.put(*range(10))

    served = [shared.engine.serve(seed) for seed in range(10)]

    assert served == [(0, 0)] * 10


def test_a_shared_tier_that_lets_requests_down_is_no_longer_credited():
    shared = Shared()
    shared.put(*range(20))
    for seed in range(4):
        shared.engine.serve(seed, found=WHOLE)

    served = [shared.engine.serve(seed, found=0)[0] for seed in range(4, 12)]

    assert served[0] == WHOLE
    assert served[-1] == 0
    assert shared.engine.state.belief.trust is Trust.LIVE


def test_what_another_worker_takes_with_it_is_no_longer_claimed():
    shared = Shared()
    shared.put(*range(10))
    shared.engine.serve(0, found=WHOLE)

    shared.engine.tell(WorkerGone(worker=shared.other))

    assert shared.engine.serve(5, found=0) == (0, 0)


def test_the_floor_of_a_price_knows_of_shared_tiers():
    shared = Shared()
    shared.put(*range(10))
    shared.engine.serve(0, found=WHOLE)

    candidates = shared.engine.fleet.candidates(asked(3), shared.engine.now)

    assert candidates.cached.tolist() == [WHOLE, 0]


def asked(seed):
    return Request(
        id=RequestId("asked"),
        model="m",
        prompt_tokens=SIZE * BLOCKS + 5,
        arrived_at=0.0,
        keys={SIZE: keys(seed)},
    )
