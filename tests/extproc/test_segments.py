"""The cache of segments: a next turn pays for what is new, and memory stays bounded."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from leadsman.keys import block_keys
from leadsman_extproc.segments import LONG, SHORTEST, SegmentCache

CUTS = re.compile(b"#")


class Counting:
    """Takes bytes for ids; counts what it was given."""

    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, text: bytes) -> np.ndarray:
        self.bytes += len(text)
        return np.frombuffer(text, np.uint8).astype(np.uint32)


def turns(lengths: list[int]) -> list[bytes]:
    pieces = [b"#" + bytes([65 + i % 26]) * length for i, length in enumerate(lengths)]
    return [b"".join(pieces[: i + 1]) for i in range(len(pieces))]


def test_each_turn_of_a_conversation_tokenizes_only_what_is_new():
    encode = Counting()
    cache = SegmentCache(encode, CUTS, 10**6)
    conversation = turns([1000, 600, 2000, 700])

    for text in conversation:
        cache.ids(text)

    assert encode.bytes == len(conversation[-1])


def test_a_plan_says_what_is_missing_before_it_is_paid():
    encode = Counting()
    cache = SegmentCache(encode, CUTS, 10**6)
    first, second = turns([1000, 600])
    cache.ids(first)

    plan = cache.plan(second)

    assert plan.missing_bytes == 601
    assert encode.bytes == len(first)


def test_the_piece_that_was_used_last_leaves_last():
    encode = Counting()
    piece = [b"#" + bytes([letter]) * 999 for letter in b"ABC"]
    cache = SegmentCache(encode, CUTS, 2 * (5 * 1000 + 300))
    for text in (piece[0], piece[1], piece[0], piece[2]):
        cache.ids(text)

    missing = [cache.plan(text).missing_bytes for text in piece]

    assert missing == [0, 1000, 0]


def test_a_piece_larger_than_the_cache_is_not_kept():
    cache = SegmentCache(Counting(), CUTS, 1000)

    cache.ids(b"#" + b"A" * 5000)

    assert (len(cache), cache.bytes_held) == (0, 0)


@given(
    st.lists(st.lists(st.integers(1, 3 * SHORTEST), max_size=6), max_size=6),
    st.integers(0, 40_000),
)
def test_the_ids_are_whole_and_memory_is_bounded_whatever_is_asked(talks, max_bytes):
    cache = SegmentCache(Counting(), CUTS, max_bytes)

    for lengths in talks:
        for text in turns(lengths):
            assert cache.ids(text).astype(np.uint8).tobytes() == text
            cache.check()


def test_many_short_pieces_are_not_cut_apart():
    cache = SegmentCache(Counting(), CUTS, 10**6)

    plan = cache.plan(b"#x" * 10_000)

    assert len(plan.pieces) <= 20_000 // SHORTEST + 1


def paired(text: bytes) -> np.ndarray:
    """Take two bytes for an id, and begin anew at each cut: cut anywhere else, ids differ."""
    ids: list[int] = []
    for piece in re.split(b"(?=#)", text):
        padded = piece + b"." * (len(piece) % 2)
        ids.extend(np.frombuffer(padded, np.uint16))
    return np.array(ids, np.uint32)


parts = st.tuples(st.sampled_from([b"#", b"-"]), st.sampled_from(b"AB"), st.integers(1, LONG))


@given(st.lists(st.lists(parts, min_size=1, max_size=8), min_size=2, max_size=6))
def test_a_prompt_that_begins_as_another_has_the_ids_and_the_keys_of_a_fresh_one(talks):
    cache = SegmentCache(paired, CUTS, 10**7)

    for talk in talks:
        beginning = b"#" + b"S" * LONG + b"#" + b"U" * SHORTEST
        text = beginning + b"".join(mark + bytes([letter]) * n for mark, letter, n in talk)
        prompt = cache.finish(cache.plan(text))

        assert np.array_equal(prompt.whole(), paired(text))
        for size in (16, 64):
            assert np.array_equal(prompt.keys(size, 7), block_keys(paired(text), size, 7))
    cache.check()


def test_a_long_next_turn_shares_the_pieces_of_the_last():
    cache = SegmentCache(Counting(), CUTS, 10**7)
    first, second = turns([LONG] * 9)[-2:]
    cache.finish(cache.plan(first))

    plan = cache.plan(second)

    assert (plan.shared, len(plan.pieces)) == (8, 1)
