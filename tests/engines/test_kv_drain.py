import asyncio

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from leadsman.index import CacheIndex
from leadsman.keys import block_keys, namespace_seed
from leadsman.records import KvEvents, Stored, Trust, TrustChanged
from leadsman.units import WorkerId
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_drain import KvDrain
from leadsman_engines.kv_follower import KvSource

W = WorkerId("w:8000")
SIZE = 4
PROMPT = list(range(100, 120))
KEYS = block_keys(np.array(PROMPT, dtype=np.uint32), SIZE, namespace_seed(secret=b"", model="m"))


def block(number, tokens=None, *, level=0, extra=0):
    ids = PROMPT[SIZE * number : SIZE * (number + 1)] if tokens is None else tokens
    said = [{"token_id": token, "token_extra_id": extra} for token in ids]
    return {
        "type": "stored_block",
        "block_hash": 1000 + number,
        "tokens": said,
        "cache_level": level,
        "priority": 35,
    }


def stored(*blocks, parent=None):
    return {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}


def removed(*numbers):
    return {"type": "removed", "block_hashes": [1000 + number for number in numbers]}


def moved(number, old, new):
    change = {"type": "event_diff", "old_value": old, "new_value": new}
    return {"type": "updated", "block_hash": 1000 + number, "cache_level": change, "priority": None}


CREATED = {"type": "created", "num_blocks_per_cache_level": [100, 50]}


def said(first, *data, window=4096, **more):
    events = [
        {"event_id": first + n, "data": one, "window_size": window, **more}
        for n, one in enumerate(data)
    ]
    return msgspec.json.encode(events)


class Heard:
    """A drain and what an index makes of it."""

    def __init__(self):
        self.index, self.trust, self.batches = CacheIndex(), [], []
        self.blocks = EngineBlocks(secret=b"", model="m")
        self.drain = self.over("http://nowhere")

    def over(self, url):
        source = KvSource(worker=W, events=url)
        return KvDrain(source, self.blocks, self.hear, lambda: 7.0, block_size=SIZE)

    def hear(self, record):
        if isinstance(record, TrustChanged):
            self.trust.append(record.trust)
            self.index.set_trust(W, record.trust)
        else:
            assert isinstance(record, KvEvents)
            self.batches.append(record)
            self.index.apply(W, record.events)

    def depth(self, tier=None):
        return self.index.reach(W, KEYS, tier or "GPU")


@pytest.fixture
def heard():
    return Heard()


def test_stored_chains_are_the_prompts_blocks_and_partial_ones_are_left_out(heard):
    heard.drain.take(said(0, CREATED, stored(block(0), block(1), block(2, PROMPT[8:10]))))
    heard.drain.take(said(2, stored(block(2), block(3), parent=1001)))

    assert heard.depth() == 4
    assert heard.drain.counts == {}


def test_a_removed_block_ends_the_prefix(heard):
    heard.drain.take(said(0, stored(block(0), block(1), block(2)), removed(1, 2)))

    assert heard.depth() == 1


def test_a_block_that_moves_to_the_host_is_there_and_comes_back(heard):
    heard.drain.take(said(0, stored(block(0), block(1)), moved(1, 0, 1)))
    away = heard.depth(), heard.depth("CPU")
    heard.drain.take(said(2, moved(1, 1, 0)))
    back = heard.depth(), heard.index.blocks(W, "CPU")
    heard.drain.take(said(3, moved(1, 0, 1), removed(1)))

    assert away == (1, 2)
    assert back == (2, 0)
    assert (heard.depth(), heard.depth("CPU")) == (1, 1)


def test_only_the_longest_window_counts(heard):
    heard.drain.take(said(0, CREATED))
    heard.drain.take(said(1, stored(block(0)), window=512))
    heard.drain.take(said(2, stored(block(0)), removed(0), stored(block(0), block(1))))
    heard.drain.take(said(5, removed(0, 1), window=512))

    assert heard.depth() == 2
    assert heard.drain.counts["other_window"] == 2


def test_an_overflow_is_a_gap_in_the_numbers_and_makes_the_view_suspect(heard):
    heard.drain.take(said(0, stored(block(0))))

    heard.drain.take(said(5, stored(block(1), parent=1000)))

    assert heard.trust[-1] is Trust.SUSPECT
    assert heard.index.holds(W, KEYS[:2]).all()
    assert heard.depth() == 0


def test_numbers_that_come_again_are_a_new_engine_that_holds_nothing(heard):
    heard.drain.take(said(0, stored(block(0), block(1)), removed(1)))

    heard.drain.take(said(0, CREATED, stored(block(3), parent=77)))

    assert heard.index.blocks(W) == 0
    assert heard.batches[-1].sequence == 1


def test_content_that_is_no_token_is_another_prompts(heard):
    heard.drain.take(said(0, stored(block(0, extra=9))))

    assert heard.index.blocks(W) == 1
    assert heard.depth() == 0


def test_what_cannot_be_read_is_counted_and_the_rest_is_kept(heard):
    heard.drain.take(said(0, {"type": "exploded"}, stored(block(0))))
    heard.drain.take(b"<html>")

    assert heard.drain.counts == {"bad_event": 1, "bad_batch": 1}
    assert heard.trust[-1] is Trust.SUSPECT
    assert heard.index.holds(W, KEYS[:1]).all()


def test_events_of_another_rank_are_not_this_workers(heard):
    heard.drain.take(said(0, stored(block(0)), attention_dp_rank=1))

    assert heard.index.blocks(W) == 0
    assert heard.drain.counts["other_rank"] == 1


@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(1, 5), max_size=8))
def test_it_does_not_matter_how_a_history_is_cut_into_answers(path, cuts):
    history, there = [], set()
    for number in path:
        is_there = number in there
        parent = None if number == 0 else 999 + number
        history.append(removed(number) if is_there else stored(block(number), parent=parent))
        there ^= {number}
    whole, parts = Heard(), Heard()

    whole.drain.take(said(0, *history))
    at = 0
    for cut in [*cuts, len(history)]:
        parts.drain.take(said(at, *history[at : at + cut]))
        at = min(at + cut, len(history))

    assert whole.index.holds(W, KEYS).tolist() == parts.index.holds(W, KEYS).tolist()


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_drain_asks_again_and_again_until_it_is_stopped(heard, method):
    waiting = [said(0, stored(block(0))), said(1, stored(block(1), parent=1000))]
    is_drained = asyncio.Event()

    async def page(_):
        if not waiting:
            is_drained.set()
        return web.Response(body=waiting.pop(0) if waiting else b"[]")

    app = web.Application()
    app.add_routes([web.route(method, "/kv_cache_events", page)])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        drain = heard.over(str(server.make_url("/kv_cache_events")))
        task = asyncio.create_task(drain.run(http, every=0.001))
        async with asyncio.timeout(20):
            await is_drained.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert heard.depth() == 2
    assert heard.trust == [Trust.LIVE]
    kinds = {type(event) for batch in heard.batches for event in batch.events}
    assert kinds == {Stored}


async def test_an_engine_that_does_not_answer_is_suspect_until_its_numbers_go_on(heard):
    answers = [said(0, stored(block(0))), None, said(1, stored(block(1), parent=1000))]
    is_over = asyncio.Event()

    async def page(_):
        if not answers:
            is_over.set()
            return web.json_response([])
        body = answers.pop(0)
        return web.Response(status=502) if body is None else web.Response(body=body)

    app = web.Application()
    app.add_routes([web.post("/kv_cache_events", page)])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        drain = heard.over(str(server.make_url("/kv_cache_events")))
        task = asyncio.create_task(drain.run(http, every=0.001))
        async with asyncio.timeout(20):
            await is_over.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert heard.trust == [Trust.LIVE, Trust.SUSPECT, Trust.LIVE]
    assert heard.depth() == 2
