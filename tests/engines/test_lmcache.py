"""A directory as LMCache's own coordinator tells it.

golden/lmcache_coordinator.json holds the answers of LMCache 0.5.6's coordinator, of its
`/directory/keys` and `/directory/lookup`, after stores and deletions were reported to its `/events`
with chunk names by its own `TokenHasher`; chunks of 8 tokens, two ranks. The server here says them
again: the coordinator itself does not start without torch.

Stored: prompt a; c for another model; b, which shares a's first chunk; one rank's part of c; c of
the salt "acme"; one chunk on a server's own memory. Deleted: a's last chunk.
"""

import json
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from leadsman.index import CacheIndex
from leadsman.keys import block_keys, namespace_seed, root_key
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.lmcache_chains import Chains
from leadsman_engines.lmcache_directory import TIER, LmcacheDirectory
from leadsman_engines.profile import SharedStore

GOLDEN = json.loads((Path(__file__).parent / "golden/lmcache_coordinator.json").read_text())
SIZE = 4
CHUNK = 8


def keys(prompt, salt=None):
    seed = namespace_seed(secret=b"s", model="m", cache_salt=salt)
    return block_keys(np.array(prompt, dtype=np.uint32), SIZE, seed)


class Coordinator:
    """Says what is in `told`, by pages of at most `page` keys."""

    def __init__(self, told, page=10_000):
        self.told, self.page, self.looked_up, self.hides = told, page, 0, 0
        self.status = 200

    async def list(self, request):
        if self.status != 200:
            return web.Response(status=self.status)
        rows = self.told["keys"]["keys"]
        start = int(request.query["offset"])
        stop = start + min(self.page, int(request.query["limit"]))
        shown = rows[: len(rows) - self.hides]
        return web.json_response({"total": len(rows), "keys": shown[start:stop]})

    async def look_up(self, request):
        asked = (await request.json())["keys"]
        self.looked_up += len(asked)
        by_key = {tuple(one["key"].values()): one for one in self.told["lookup"]["results"]}
        results = [by_key[tuple(key.values())] for key in asked]
        return web.json_response({"chunks": len(asked), "results": results})


@pytest.fixture
async def followed():
    coordinator, index = Coordinator(GOLDEN["stored"]), CacheIndex()
    app = web.Application()
    app.router.add_get("/directory/keys", coordinator.list)
    app.router.add_post("/directory/lookup", coordinator.look_up)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        store = SharedStore(
            lmcache=str(server.make_url("/")), model="m", stored_as="org/m", block_size=SIZE
        )
        reader = LmcacheDirectory(
            store, lambda said: index.apply(said.worker, said.events), lambda: 7.0, secret=b"s"
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
    assert reader.counts["unplaced"] == 0


async def test_what_was_deleted_is_no_more_there_and_the_rest_is_not_looked_up_again(followed):
    coordinator, reader, index, read = followed
    await read()
    looked_up = coordinator.looked_up

    coordinator.told = GOLDEN["deleted"]
    await read()

    assert held(index, reader, GOLDEN["a"]) == 4
    assert held(index, reader, GOLDEN["b"]) == 6
    assert coordinator.looked_up == looked_up


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
