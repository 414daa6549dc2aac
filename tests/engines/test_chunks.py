"""Blocks of a lower tier that span several of the engine's own."""

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from leadsman.index import CacheIndex
from leadsman.keys import block_keys, namespace_seed
from leadsman.units import WorkerId
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_wire import decode_batch

W = WorkerId("w:8000")
SIZE, SPAN = 4, 16
PROMPT = np.arange(500, 500 + 5 * SPAN, dtype=np.uint32)
KEYS = block_keys(PROMPT, SIZE, namespace_seed(secret=b"", model="m"))


class Listener:
    """An index that hears an engine's batches as they come by the wire."""

    def __init__(self, block_size=SIZE):
        self.blocks = EngineBlocks(secret=b"", model="m", block_size=block_size)
        self.index = CacheIndex()

    def hear(self, *events):
        batch = decode_batch(msgspec.msgpack.encode([1.0, list(events), 0]), W)
        assert batch.problems == ()
        self.index.apply(W, self.blocks.resolve(batch.events))

    def depths(self):
        return self.index.reach(W, KEYS, "GPU"), self.index.reach(W, KEYS, "CPU")


def stored(first, count, *, size=SPAN, medium="cpu", **more):
    """So many consecutive blocks of a size; names tell size and place."""
    return {
        "type": "BlockStored",
        "block_hashes": [size * 1000 + first + n for n in range(count)],
        "parent_block_hash": size * 1000 + first - 1 if first else None,
        "token_ids": PROMPT[size * first : size * (first + count)].tolist(),
        "block_size": size,
        "lora_id": None,
        "medium": medium,
    } | more


def removed(*places, size=SPAN, medium="cpu"):
    names = [size * 1000 + place for place in places]
    return {"type": "BlockRemoved", "block_hashes": names, "medium": medium}


def test_a_chunk_holds_every_block_that_it_spans():
    listener = Listener()

    listener.hear(stored(0, 2), stored(2, 1))

    assert listener.depths() == (0, 3 * SPAN // SIZE)


def test_blocks_of_the_gpu_and_chunks_below_it_are_one_prefix():
    listener = Listener()

    listener.hear(stored(0, 5, size=SIZE, medium="GPU"), stored(0, 3))

    assert listener.depths() == (5, 12)


def test_a_chunk_that_is_removed_takes_all_its_blocks_with_it():
    listener = Listener()
    listener.hear(stored(0, 3), stored(0, 1, size=SIZE, medium="cpu"))

    listener.hear(removed(1))
    after = listener.depths()
    listener.hear(removed(0))

    assert after == (0, SPAN // SIZE)
    assert listener.depths() == (0, 1)


def test_each_copy_of_a_chunk_is_removed_by_itself():
    listener = Listener()
    listener.hear(stored(0, 1), stored(0, 1), removed(0))

    assert listener.depths() == (0, SPAN // SIZE)


def test_a_chunk_whose_parent_is_not_known_is_counted_and_never_a_root():
    listener = Listener()

    listener.hear(stored(1, 2))

    assert listener.index.blocks(W, "CPU") == 0
    assert listener.blocks.counts["orphan_chunk"] == 2


def test_chunks_of_an_adapter_or_a_salt_are_not_the_bases():
    listener = Listener()

    listener.hear(stored(0, 1, lora_name="a"), stored(0, 1, cache_salt="s"))

    assert listener.depths() == (0, 0)
    assert listener.index.blocks(W, "CPU") > 0


def test_a_clear_forgets_chunks():
    listener = Listener()
    listener.hear(stored(0, 2), {"type": "AllBlocksCleared"}, stored(2, 1))

    assert listener.depths() == (0, 0)
    assert listener.blocks.counts["orphan_chunk"] == 1


@given(st.lists(st.integers(0, 4), max_size=20))
def test_what_is_held_is_what_the_chunks_that_are_there_span(places):
    listener, there = Listener(), set()

    for place in places:
        if place in there:
            listener.hear(removed(place))
            there.discard(place)
        elif place == 0 or place - 1 in there:
            listener.hear(stored(place, 1))
            there.add(place)

    held = listener.index.holds(W, KEYS, "CPU").tolist()
    assert held == [block * SIZE // SPAN in there for block in range(len(KEYS))]


def test_a_servers_chunks_are_withdrawn_and_said_again_after_a_loss():
    """As LMCache 0.5.6's adapter tells a server's: one chunk an event, names of 32 bytes.

    Source: LMCache 0.5.6 integration/vllm/vllm_multi_process_adapter.py, _resync_kv_events.
    """
    listener, names = Listener(), [bytes([n]) * 32 for n in range(3)]
    chunks = [
        stored(n, 1, medium="CPU")
        | {"block_hashes": [names[n]], "parent_block_hash": names[n - 1] if n else None}
        for n in range(3)
    ]
    withdrawn = {"type": "BlockRemoved", "block_hashes": names, "medium": "CPU"}

    listener.hear(*chunks)
    before = listener.depths()
    listener.hear(withdrawn)
    between = listener.depths()
    listener.hear(*chunks)

    assert before == listener.depths() == (0, 3 * SPAN // SIZE)
    assert between == (0, 0)
