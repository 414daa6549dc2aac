"""A collector beside a simulated SGLang: what the one holds, the other has to know."""

import asyncio
import contextlib
import json
import time

import aiohttp
import numpy as np
import pytest
from leadsman.index import CacheIndex
from leadsman.keys import block_keys, namespace_seed
from leadsman.records import GPU, KvEvents, LoadSample, WorkerSeen
from leadsman_operator.collectors import Collectors
from leadsman_operator.endpoint import CollectorTiming, Endpoint, Surroundings

from ..engines.sglang_server import serving  # noqa: TID252  # tests are no package

PATIENCE = 30.0
LONG = {"max_new_tokens": 3000, "ignore_eos": True}
QUICK = CollectorTiming(poll=0.05, idle_poll=0.05, health=0.0, recheck=5.0, retry=0.01)
PROMPT = np.arange(1_000, 1_200, dtype=np.uint32)


@contextlib.asynccontextmanager
async def collecting(url, timing=QUICK):
    heard = []
    async with aiohttp.ClientSession() as http:
        around = Surroundings(http=http, publish=heard.append, clock=time.monotonic, timing=timing)
        collectors = Collectors(around)
        await collectors.set([Endpoint(url=url)])
        try:
            yield heard
        finally:
            await collectors.stop()


async def until(condition):
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # records come when they come
            await asyncio.sleep(0.01)


def seen(heard):
    return {one.worker: one for one in heard if isinstance(one, WorkerSeen)}


def held(heard, page=16):
    """Pages of the prompt that each worker is known to hold in its device's memory."""
    index, keys = CacheIndex(), block_keys(PROMPT, page, namespace_seed(secret=b"", model="m"))
    workers = list(seen(heard))
    for one in heard:
        if isinstance(one, KvEvents):
            index.apply(one.worker, one.events)
    return dict(zip(workers, index.match(keys, workers).gpu.tolist(), strict=True))


async def generate(served, **more):
    body = {"input_ids": PROMPT.tolist(), "sampling_params": {"max_new_tokens": 3}}
    _, text = await served.post("/generate", body | more)
    return json.loads(text)["meta_info"]["cached_tokens"]


@pytest.mark.parametrize("arrays", [False, True])
async def test_what_a_server_caches_is_known(arrays):
    async with serving(arrays=arrays) as served, collecting(served.url) as heard:
        await until(lambda: seen(heard))
        await generate(served)

        await until(lambda: max(held(heard).values()) >= len(PROMPT) // 16)

        reused = await generate(served)
        ((worker, pages),) = held(heard).items()
        settings = seen(heard)[worker].settings
        assert settings.sglang.chunked_prefill_size == 512
        assert reused == min(pages, (len(PROMPT) - 1) // 16) * 16


async def test_pages_named_by_pairs_are_known_by_their_tokens():
    async with serving(is_eagle=True) as served, collecting(served.url) as heard:
        await until(lambda: seen(heard))
        await generate(served)

        await until(lambda: max(held(heard).values()) >= (len(PROMPT) - 1) // 16)

        reused = await generate(served)
        (settings,) = [one.settings for one in seen(heard).values()]
        assert settings.is_eagle
        assert reused == (len(PROMPT) - 2) // 16 * 16


async def test_each_rank_of_a_server_is_a_worker_with_a_cache_of_its_own():
    async with serving(dp_size=3) as served, collecting(served.url) as heard:
        await until(lambda: len(seen(heard)) == 3)
        await generate(served, routed_dp_rank=1)

        await until(lambda: max(held(heard).values()) >= len(PROMPT) // 16)

        ranks = {seen(heard)[worker].dp_rank: pages for worker, pages in held(heard).items()}
        assert ranks[1] >= len(PROMPT) // 16
        assert ranks[0] == ranks[2] == 0


async def test_a_page_in_both_memories_is_there_until_it_left_the_device():
    async with serving(host_tokens=4_000) as served, collecting(served.url) as heard:
        await until(lambda: seen(heard))
        await generate(served)

        tiers = {}

        def both():
            stored = (e for one in heard if isinstance(one, KvEvents) for e in one.events)
            for event in stored:
                tiers.setdefault(getattr(event, "tier", None), 0)
            return {GPU, "CPU_PINNED"} <= tiers.keys()

        await generate(served)
        await until(both)

        assert max(held(heard).values()) >= len(PROMPT) // 16


async def test_load_that_is_pushed_comes_as_load_samples():
    rarely = CollectorTiming(poll=60.0, idle_poll=60.0, health=60.0, recheck=60.0, retry=0.01)
    async with serving(dp_size=2, speed=1.0) as served, collecting(served.url, rarely) as heard:
        await until(lambda: len(seen(heard)) == 2)
        body = {"text": "x" * 64, "sampling_params": LONG}
        long = asyncio.create_task(served.post("/generate", body | {"routed_dp_rank": 1}))

        def busy():
            loads = [one for one in heard if isinstance(one, LoadSample) and one.running]
            return [seen(heard)[one.worker].dp_rank for one in loads]

        await until(busy)

        assert set(busy()) == {1}
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)


async def test_load_is_asked_for_where_it_is_not_pushed():
    async with serving(pushes_load=False, speed=1.0) as served, collecting(served.url) as heard:
        await until(lambda: seen(heard))
        body = {"text": "x" * 64, "sampling_params": LONG}
        long = asyncio.create_task(served.post("/generate", body))

        await until(lambda: any(isinstance(one, LoadSample) and one.running for one in heard))

        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
