from collections import Counter
from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from leadsman_fleet import residency
from leadsman_fleet.residency import Residency

changes = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 6), max_size=5)), max_size=30)


@given(changes, st.integers(0, 8))
def test_a_residency_counts_like_a_bag_that_never_goes_below_zero(changes, slack):
    bag = Counter()
    held = Residency()

    with patch.object(residency, "_SLACK", slack):
        for is_stored, keys in changes:
            (held.add if is_stored else held.remove)(np.array(keys, dtype=np.uint64))
            for key in keys:
                bag[key] = max(0, bag[key] + (1 if is_stored else -1))

    keys, copies = held.copies()
    assert dict(zip(keys.tolist(), copies.tolist(), strict=True)) == dict(+bag)


def test_blocks_come_in_the_order_in_which_they_were_stored():
    held = Residency()
    held.add(np.array([30, 10, 20], dtype=np.uint64))
    held.add(np.array([5], dtype=np.uint64))

    keys, _ = held.copies()

    assert keys.tolist() == [30, 10, 20, 5]


def test_churn_does_not_grow_the_log():
    held = Residency()
    blocks = np.arange(1000, dtype=np.uint64)

    for _ in range(200):
        held.add(blocks)
        held.remove(blocks)

    assert len(held._keys) <= 2 * len(blocks) + residency._SLACK


def test_a_key_that_its_caller_overwrites_stays_what_it_was():
    held = Residency()
    keys = np.array([1], dtype=np.uint64)
    held.add(keys)

    keys[0] = 2

    assert held.copies()[0].tolist() == [1]
