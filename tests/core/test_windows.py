"""Which prefixes an engine with several cache groups can go on from."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from leadsman.copies import Copies
from leadsman.prefixes import Prefixes
from leadsman.records import Cleared, Removed, Stored
from leadsman.windows import Windows, group_tier

from .served import BLOCKS, SIZE, Engine, keys

PROMPT = [int(key) for key in keys(3, 12)]
places = st.sets(st.integers(0, len(PROMPT) - 1))


def named(some):
    return np.array([PROMPT[place] for place in sorted(some)], dtype=np.uint64)


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(2, 30), places), min_size=1, max_size=3))
def test_it_finds_what_the_exact_replay_of_vllm_finds(whole, groups):
    size = 4
    windows = (None, *(window for window, _ in groups))
    copies = Copies(len(PROMPT) * len(windows))
    held = [set(range(whole)), *(some for _, some in groups)]
    for group, some in enumerate(held):
        taken = zip(some, copies.take(len(some)), strict=True)
        copies.name(group, [(place, PROMPT[n]) for n, place in taken])
    exact = Prefixes(copies, windows, size, drops=False)

    ours = Windows()
    for group, (window, some) in enumerate(groups, start=1):
        ours.move(Stored(keys=named(some), tier=group_tier(group, -(-(window - 1) // size))))

    found = exact.find(PROMPT.__getitem__, len(PROMPT), len(PROMPT)).rows[0]
    assert ours.usable(PROMPT, whole) == len(found)


@given(st.lists(st.tuples(st.booleans(), places), max_size=12))
def test_a_group_holds_what_was_stored_and_not_removed(history):
    windows, naive = Windows(), Counter()
    for is_stored, some in history:
        kind = Stored if is_stored else Removed
        windows.move(kind(keys=named(some), tier=group_tier(1, 1)))
        for place in some:
            naive[place] = max(0, naive[place] + (1 if is_stored else -1))

    ends = [place + 1 for place in naive if naive[place]]
    depth = windows.usable(PROMPT, len(PROMPT))
    assert depth == (max(ends, default=0) if history else len(PROMPT))


def test_a_clear_of_the_gpu_clears_its_groups_and_one_below_does_not():
    windows = Windows()
    windows.move(Stored(keys=named(range(12)), tier=group_tier(1, 3)))

    windows.move(Cleared(tier="CPU"))
    before = windows.usable(PROMPT, 12)
    windows.move(Cleared())

    assert (before, windows.usable(PROMPT, 12)) == (12, 0)


def test_a_sibling_finds_a_shared_prefix_only_where_its_window_was_kept():
    engine, size = Engine(), SIZE
    prompt = keys(1)
    tier = group_tier(1, 4)
    engine.events(Stored(keys=prompt), Stored(keys=prompt[-4:], tier=tier))

    whole, _ = engine.serve(1)
    engine.events(Removed(keys=prompt[-1:], tier=tier), Stored(keys=prompt[6:10], tier=tier))
    part, _ = engine.serve(1)

    assert whole == BLOCKS * size
    assert part == 10 * size
