"""What a request is believed to find, where more than the presence of blocks decides."""

import pytest
from leadsman.records import Stored

from .served import BLOCKS, SIZE, Engine, keys

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
