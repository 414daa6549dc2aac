"""The reader of a directory, held against what LMCache's own coordinator tells."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import numpy as np
import pytest
from aiohttp.test_utils import TestServer
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from leadsman.fleet import Fleet
from leadsman.keys import block_keys, namespace_seed, root_key
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.lmcache_chains import Chains
from leadsman_engines.lmcache_directory import TIER, LmcacheDirectory
from leadsman_engines.profile import SharedStore

from .coordinator import GOLDEN, Coordinator

SIZE = 4
CHUNK = 8


def keys(prompt, salt=None):
    seed = namespace_seed(secret=b"s", model="m", cache_salt=salt)
    return block_keys(np.array(prompt, dtype=np.uint32), SIZE, seed)


@pytest.fixture
async def followed():
    coordinator, fleet = Coordinator(GOLDEN["stored"]), Fleet()
    index = fleet.index
    async with TestServer(coordinator.app()) as server, aiohttp.ClientSession() as http:
        store = SharedStore(
            lmcache=str(server.make_url("/")), model="m", stored_as="org/m", block_size=SIZE
        )
        reader = LmcacheDirectory(
            store, lambda said: fleet.apply(said, 7.0), lambda: 7.0, secret=b"s"
        )

        async def read():
            await reader.read(http)
            index.check()

        yield coordinator, reader, index, read


def held(index, reader, prompt, salt=None):
    return index.reach(reader.worker, keys(prompt, salt), TIER)


@pytest.mark.parametrize("page", [10_000, 3])
async def test_prompts_that_every_rank_stored_are_found_by_their_blocks(followed, page):
    coordinator, reader, index, read = followed
    coordinator.page = page

    await read()

    assert held(index, reader, GOLDEN["a"]) == held(index, reader, GOLDEN["b"]) == 6
    assert held(index, reader, GOLDEN["c"], "acme") == 4
    assert held(index, reader, GOLDEN["c"]) == 0
    assert held(index, reader, range(700, 708)) == 0
    assert index.blocks(reader.worker, TIER) == 6 + 4 + 4
    assert reader.seen.problem is None
    assert reader.seen.chunks == (6 + 4 + 4) * SIZE / CHUNK
    assert reader.seen.unused == {"without_tokens": 0, "uneven": 0, "unplaced": 0}


async def test_what_was_deleted_is_no_more_there_and_the_rest_is_not_looked_up_again(followed):
    coordinator, reader, index, read = followed
    await read()
    looked_up = coordinator.looked_up

    coordinator.told = GOLDEN["deleted"]
    await read()

    assert held(index, reader, GOLDEN["a"]) == 4
    assert held(index, reader, GOLDEN["b"]) == 6
    assert coordinator.looked_up == looked_up


async def test_what_another_reader_told_before_is_told_once(followed):
    coordinator, reader, index, read = followed
    await read()
    heir = LmcacheDirectory(reader._store, reader._emit, reader._now, secret=b"s")

    async with aiohttp.ClientSession() as http:
        await heir.read(http)
        coordinator.told = GOLDEN["deleted"]
        await heir.read(http)

    assert held(index, reader, GOLDEN["a"]) == 4


@pytest.mark.parametrize(
    ("size", "tokens", "unused"), [(3, None, {"uneven": 7}), (4, 0, {"without_tokens": 9})]
)
async def test_chunks_that_cannot_be_used_are_counted_once_by_reason(
    followed, size, tokens, unused
):
    coordinator, reader, index, _ = followed
    told = json.loads(json.dumps(GOLDEN["stored"]))
    for row in told["keys"]["keys"]:
        row["num_tokens"] = row["num_tokens"] if tokens is None else tokens
    coordinator.told = told
    other = LmcacheDirectory(
        replace(reader._store, block_size=size), reader._emit, reader._now, secret=b"s"
    )

    async with aiohttp.ClientSession() as http:
        await other.read(http)
        await other.read(http)

    assert index.blocks(other.worker, TIER) == other.seen.chunks == 0
    assert {why: n for why, n in other.seen.unused.items() if n} == unused


async def test_a_listing_that_lacks_keys_of_its_total_takes_nothing_away(followed):
    coordinator, reader, index, read = followed
    await read()
    before = index.blocks(reader.worker, TIER)

    coordinator.hides = 12
    await read()

    assert index.blocks(reader.worker, TIER) == before


async def test_a_coordinator_that_fails_changes_nothing_and_one_that_is_back_is_read(followed):
    coordinator, reader, index, read = followed
    await read()

    coordinator.status = 503
    with pytest.raises(aiohttp.ClientResponseError):
        await read()
    kept = held(index, reader, GOLDEN["a"])
    coordinator.status, coordinator.told = 200, GOLDEN["deleted"]
    await read()

    assert (kept, held(index, reader, GOLDEN["a"])) == (6, 4)


async def test_a_coordinator_that_is_away_is_said_and_that_it_is_back(followed):
    coordinator, reader, index, _ = followed
    said = asyncio.Queue()
    other = LmcacheDirectory(reader._store, said.put_nowait, reader._now, secret=b"s")
    coordinator.status = 503
    async with aiohttp.ClientSession() as http:
        reading = asyncio.create_task(other.run(http, 0.01))
        away = await said.get()

        coordinator.status = 200
        events, back = await said.get(), await said.get()
        reading.cancel()

    index.apply(events.worker, events.events)
    assert "503" in away.problem
    assert back.problem is None
    assert held(index, reader, GOLDEN["a"]) == 6


@pytest.mark.parametrize(
    ("page", "where", "wrong"),
    [
        ("keys", "chunk_hash_hex", "no hash"),
        ("keys", "kv_rank", "first"),
        ("lookup", "token_ids", [2**32]),
    ],
)
async def test_a_page_of_another_shape_is_the_coordinators_mistake(followed, page, where, wrong):
    coordinator, reader, index, read = followed
    told = json.loads(json.dumps(GOLDEN["stored"]))
    rows = told[page]["keys" if page == "keys" else "results"]
    for row in rows:
        (row["key"] if page == "keys" else row)[where] = wrong
    coordinator.told = told

    with pytest.raises(EngineProtocolError, match=where):
        await read()
    coordinator.told = GOLDEN["stored"]
    await read()

    assert held(index, reader, GOLDEN["a"]) == 6


PROMPTS = st.lists(st.lists(st.sampled_from([1, 2]), max_size=4), min_size=1, max_size=6)


@given(PROMPTS, st.randoms(), st.integers(1, 40))
def test_chunks_in_any_order_are_placed_where_their_prompts_have_them(prompts, rng, tries):
    expected, names = {}, []
    for prompt in prompts:
        tokens = np.repeat(np.array(prompt, dtype=np.uint32), CHUNK)
        parent, blocks = blake3(bytes(12)).digest(), keys(tokens).reshape(-1, CHUNK // SIZE)
        for chunk, span in zip(tokens.reshape(-1, CHUNK), blocks, strict=True):
            parent = blake3(parent + chunk.astype(">u4").tobytes()).digest()
            if parent not in expected:
                names.append((parent, chunk))
            expected[parent] = span.tolist()
    rng.shuffle(names)
    seed = namespace_seed(secret=b"s", model="m")
    chains = Chains(lambda _: root_key(seed, SIZE), SIZE)
    for name, chunk in names:
        chains.add(("", name), chunk)

    for _ in range(sum(range(3 * len(names) + 2))):
        chains.place(tries)

    assert {name: span.tolist() for (_, name), span in chains.placed.items()} == expected
    assert chains.unplaced == 0


def test_a_chunk_whose_parent_is_not_there_waits_for_it():
    first, second = np.arange(CHUNK, dtype=np.uint32), np.arange(CHUNK, dtype=np.uint32) + 9
    a = blake3(blake3(bytes(12)).digest() + first.astype(">u4").tobytes()).digest()
    b = blake3(a + second.astype(">u4").tobytes()).digest()
    chains = Chains(lambda _: root_key(namespace_seed(secret=b"s", model="m"), SIZE), SIZE)

    chains.add(("", b), second)
    alone = chains.place(99)
    chains.add(("other", a), first)
    other = chains.place(99)
    chains.add(("", a), first)
    found = chains.place(99)[0] + chains.place(99)[0]

    assert (alone, len(other[0])) == (([], False), 1)
    assert np.concatenate(found).tolist() == keys(np.concatenate([first, second])).tolist()
