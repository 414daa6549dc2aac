import contextlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman.keys import MultimodalItem
from leadsman.records import GPU
from leadsman.units import WorkerId
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from leadsman_engines.kv_wire import decode_batch

W = WorkerId("w:1")
STORED = {
    "type": "BlockStored",
    "block_hashes": [11, 12],
    "parent_block_hash": 10,
    "token_ids": [1, 2, 3, 4],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


def decode(*events, rank=None):
    return decode_batch(msgspec.msgpack.encode([1.5, list(events), rank]), W)


def one(event):
    batch = decode(event)
    assert batch.problems == ()
    return batch.events[0]


def test_a_map_and_a_positional_array_say_the_same():
    array = ["BlockStored", [11, 12], 10, [1, 2, 3, 4], 2, None, "GPU", None]

    by_map, by_array = one(STORED), one(array)

    for event in (by_map, by_array):
        assert event.hashes == (11, 12)
        assert event.parent == 10
        assert event.tokens.tolist() == [1, 2, 3, 4]
        assert event.tokens.dtype == np.uint32
        assert (event.block_size, event.tier, event.is_dense) == (2, GPU, True)


def test_removals_and_clears_are_read_in_both_encodings():
    events = [
        {"type": "BlockRemoved", "block_hashes": [1], "medium": "cpu", "group_idx": 2},
        ["BlockRemoved", [1], "GPU"],
        {"type": "AllBlocksCleared"},
        ["AllBlocksCleared"],
    ]

    batch = decode(*events)

    assert batch.events == (
        BlockRemoved(hashes=(1,), tier="CPU", group=2),
        BlockRemoved(hashes=(1,), tier=GPU),
        AllBlocksCleared(),
        AllBlocksCleared(),
    )


def test_the_batch_says_its_time_and_rank_and_may_leave_the_rank_out():
    with_rank = decode(rank=11)
    without = decode_batch(msgspec.msgpack.encode([2.5, []]), W)

    assert (with_rank.engine_time, with_rank.dp_rank) == (1.5, 11)
    assert (without.engine_time, without.dp_rank) == (2.5, None)


@pytest.mark.parametrize(
    ("wire", "name"), [(2**64 - 1, 2**64 - 1), (-1, 2**64 - 1), (-(2**63), 2**63), (b"x" * 32,) * 2]
)
def test_hashes_are_unsigned_words_or_digests(wire, name):
    event = STORED | {"block_hashes": [wire], "parent_block_hash": wire}

    stored = one(event)

    assert (stored.hashes, stored.parent) == ((name,), name)


def test_fields_that_are_not_known_are_ignored():
    event = STORED | {"lookahead_token_ids": [[1]], "ownership": "s3", "invented": {"a": 1}}

    stored = one(event)

    assert stored.hashes == (11, 12)


def test_the_session_and_the_cache_group_are_read():
    event = STORED | {"session_id": "r-1", "group_idx": 1, "kv_cache_spec_kind": "sliding_window"}

    stored = one(event)

    assert (stored.session, stored.group, stored.windowed) == ("r-1", 1, True)


def test_a_group_says_how_much_of_a_prefix_it_sees():
    spec = {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128}

    seen = [one(STORED | said).window for said in (spec, {"kv_cache_spec_kind": "mamba"}, {})]

    assert seen == [128, 2, None]


def test_the_adapters_name_is_no_item_of_the_prompt():
    event = STORED | {
        "lora_id": 117,
        "lora_name": "adapter-116",
        "extra_keys": [["adapter-116"], ["adapter-116", ["cat", 1]]],
        "parent_block_hash": None,
    }

    stored = one(event)

    assert (stored.lora, stored.lora_id, stored.cache_salt) == ("adapter-116", 117, None)
    assert stored.items == (MultimodalItem(content="cat", offset=3),)


def test_an_adapter_without_a_name_goes_by_its_number():
    event = STORED | {"lora_id": 3}

    stored = one(event)

    assert stored.lora == "#3"


def test_an_item_that_began_in_an_earlier_block_is_not_said_again():
    event = STORED | {"extra_keys": [[["cat", -1]], [["cat", -3], ["dog", 0]]]}

    stored = one(event)

    assert stored.items == (MultimodalItem(content="dog", offset=2),)


def test_a_cache_salt_stands_only_in_a_prompts_first_block():
    root = one(STORED | {"parent_block_hash": None, "extra_keys": [[["cat", 0], "salt"], None]})
    later = one(STORED | {"extra_keys": [["salt"], None]})

    assert root.cache_salt == "salt"
    assert later.cache_salt is None
    assert [item.offset for item in later.items] == [0]


def test_pairs_of_tokens_stand_for_their_first():
    event = STORED | {"token_ids": [[0, 128803], [128803, 71271]], "block_size": 1}

    stored = one(event)

    assert stored.tokens.tolist() == [0, 128803]
    assert stored.is_dense


def test_an_offload_event_may_come_without_tokens():
    event = STORED | {"token_ids": [], "block_size": 0, "parent_block_hash": None, "medium": "cpu"}

    stored = one(event)

    assert (stored.tokens.size, stored.is_dense, stored.tier) == (0, False, "CPU")


def test_a_list_of_hashes_shorter_than_its_tokens_is_not_dense():
    event = STORED | {"block_hashes": [11], "group_idx": 1}

    stored = one(event)

    assert not stored.is_dense


@pytest.mark.parametrize(
    "bad",
    [
        STORED | {"token_ids": [1, -1]},
        STORED | {"token_ids": [1, 2**32]},
        STORED | {"token_ids": [1, 2.0]},
        STORED | {"token_ids": [[1, 2], 3]},
        STORED | {"token_ids": [3, [1, 2]]},
        STORED | {"token_ids": [[], []]},
        STORED | {"block_size": -2},
        STORED | {"block_hashes": ["a"]},
        STORED | {"type": "BlockMoved"},
        {"block_hashes": [1]},
        ["BlockStored", [1]],
        ["BlockMoved", 1],
        [],
        7,
        None,
        "BlockStored",
    ],
)
def test_a_malformed_event_is_skipped_with_its_reason_and_the_others_are_kept(bad):
    batch = decode(STORED, bad, {"type": "AllBlocksCleared"})

    assert [type(event) for event in batch.events] == [BlockStored, AllBlocksCleared]
    assert len(batch.problems) == 1
    assert batch.problems[0].startswith("event 1: ")


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x93\x01", b"\xc0", b"\x92\x01\x02", b"\x80"])
def test_a_malformed_batch_is_the_engines_mistake_and_names_the_worker(payload):
    with pytest.raises(EngineProtocolError, match="w:1: KV event batch"):
        decode_batch(payload, W)


@given(st.binary(max_size=60))
@settings(deadline=None)
def test_no_bytes_break_the_reader_in_any_other_way(noise):
    with contextlib.suppress(EngineProtocolError):
        decode_batch(noise, W)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(set(STORED) | {"extra_keys", "group_idx"})), json_like)
@settings(deadline=None)
def test_any_value_in_any_field_is_read_or_skipped(field, value):
    batch = decode(STORED | {field: value}, STORED)

    assert len(batch.events) + len(batch.problems) == 2
    assert batch.events[-1].hashes == (11, 12)
