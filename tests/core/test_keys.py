import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman.keys import (
    _FEW,
    MultimodalItem,
    _content_word,
    _multipliers,
    block_keys,
    extend_keys,
    mix,
    namespace_seed,
    root_key,
    unmix,
)

WORD = 2**64 - 1
STEP = 0xD1342543DE82EF95
words = st.integers(0, WORD)
token_ids = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1, 2, 3, 8, 16, 64])


def ids(tokens):
    return np.array(tokens, dtype=np.uint32)


@st.composite
def prompts(draw):
    size = draw(sizes)
    more = draw(st.sampled_from([0, _FEW])) if size <= 3 else 0
    tokens = draw(st.lists(token_ids, min_size=more * size, max_size=(more + 6) * size))
    offsets = st.integers(-size, max(len(tokens), 1))
    items = draw(
        st.lists(st.builds(MultimodalItem, content=st.text(max_size=3), offset=offsets), max_size=3)
    )
    return tokens, size, items


def naive_chain(running, tokens, size, items):
    multipliers = [int(m) for m in _multipliers(size)]
    keys = []
    for start in range(0, len(tokens) - size + 1, size):
        total = sum(t * m for t, m in zip(tokens[start : start + size], multipliers, strict=True))
        total += mix(size)
        for item in items:
            if start <= item.offset < start + size:
                total += mix(
                    (_content_word(item.content) + STEP * (item.offset - start + 1)) & WORD
                )
        running = (running * STEP + mix(total & WORD)) & WORD
        keys.append(mix(running))
    return keys


@given(prompts(), words)
@settings(deadline=None)
def test_keys_equal_those_of_a_scalar_loop(prompt, seed):
    tokens, size, items = prompt
    start = unmix(root_key(seed, size))

    keys = block_keys(ids(tokens), size, seed, items)

    assert keys.tolist() == naive_chain(start, tokens, size, items)


@given(words)
@settings(deadline=None)
def test_mixing_can_be_undone(word):
    mixed = mix(word)

    back = unmix(mixed)

    assert back == word


@given(prompts(), words, st.data())
@settings(deadline=None)
def test_a_chain_goes_on_from_any_key_as_if_it_had_never_stopped(prompt, seed, data):
    tokens, size, items = prompt
    whole = block_keys(ids(tokens), size, seed, items)
    cut = data.draw(st.integers(0, len(whole)))
    moved = [MultimodalItem(content=i.content, offset=i.offset - cut * size) for i in items]

    parent = int(whole[cut - 1]) if cut else root_key(seed, size)
    rest = extend_keys(parent, ids(tokens[cut * size :]), size, moved)

    assert rest.tolist() == whole[cut:].tolist()


@given(prompts(), prompts(), words)
@settings(deadline=None)
def test_two_prompts_share_keys_exactly_as_far_as_they_share_blocks(first, second, seed):
    (tokens, size, _), (other, _, _) = first, second
    mine = block_keys(ids(tokens), size, seed)
    theirs = block_keys(ids(other), size, seed)
    shared = 0
    while (
        shared < min(len(mine), len(theirs))
        and tokens[shared * size : (shared + 1) * size]
        == other[shared * size : (shared + 1) * size]
    ):
        shared += 1

    both = set(mine.tolist()) & set(theirs.tolist())

    assert both == set(mine[:shared].tolist())


@given(st.lists(token_ids, min_size=12, max_size=12), words)
@settings(deadline=None)
def test_the_block_size_enters_every_key(tokens, seed):
    by_size = {size: set(block_keys(ids(tokens), size, seed).tolist()) for size in (1, 2, 3, 4, 6)}

    together = set().union(*by_size.values())

    assert len(together) == 12 + 6 + 4 + 3 + 2


def test_every_part_of_the_namespace_separates_and_absent_is_not_empty():
    spaces = [
        {"secret": b"s", "model": "m"},
        {"secret": b"t", "model": "m"},
        {"secret": b"s", "model": "n"},
        {"secret": b"s", "model": "m", "lora": "m"},
        {"secret": b"s", "model": "m", "lora": ""},
        {"secret": b"s", "model": "m", "cache_salt": "m"},
        {"secret": b"s", "model": "m", "cache_salt": ""},
        {"secret": b"s", "model": "mm"},
        {"secret": b"s", "model": "", "lora": "m"},
    ]

    keys = [block_keys(ids(range(4)), 4, namespace_seed(**space)) for space in spaces]

    assert len({int(key[0]) for key in keys}) == len(spaces)


@pytest.mark.parametrize(
    "changed",
    [
        MultimodalItem(content="dog", offset=5),
        MultimodalItem(content="cat", offset=6),
        MultimodalItem(content="cat", offset=9),
    ],
)
def test_another_item_or_another_place_changes_the_keys_from_its_block_on(changed):
    tokens = ids([7] * 16)
    cat = block_keys(tokens, 4, 1, [MultimodalItem(content="cat", offset=5)])

    other = block_keys(tokens, 4, 1, [changed])

    assert (cat == other).tolist() == [True, False, False, False]


def test_prompts_of_one_length_and_other_content_never_share_a_key():
    lengths = [block_keys(ids([1, 2, 3, 4]), 4, 0), block_keys(ids([1, 2, 3, 5]), 4, 0)]

    same = lengths[0] == lengths[1]

    assert same.tolist() == [False]


def test_a_prompt_shorter_than_a_block_has_no_key():
    tokens = ids([1, 2, 3])

    keys = block_keys(tokens, 4, 0)

    assert keys.shape == (0,)


def test_keys_are_the_same_in_every_process_and_release():
    tokens = ids(range(8))

    keys = block_keys(tokens, 4, namespace_seed(secret=b"s", model="m", lora="a"))

    assert keys.tolist() == [5295419531481117071, 8018868619002594755]
