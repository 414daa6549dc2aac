import json

import pytest
from leadsman_engines.simulated.generation import FrontEnd

from .sglang_server import serving

PROMPT = "the same words at the beginning of every prompt, many of them, again and again. "


def ask(text=PROMPT, output=5, **more):
    said = [{"role": "user", "content": text}]
    return {"model": "m", "messages": said, "custom_params": {"output_tokens": output}} | more


async def test_the_native_and_the_openai_api_find_the_same_cache():
    async with serving() as served:
        body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 4}}
        _, first = await served.post("/generate", body)

        _, again = await served.post("/generate", body)
        _, plain = await served.post(
            "/v1/completions", {"model": "m", "prompt": PROMPT, "max_tokens": 2}
        )

    tokens = len(PROMPT)
    found = (tokens - 1) // 16 * 16
    assert json.loads(first)["meta_info"]["cached_tokens"] == 0
    assert json.loads(again)["meta_info"]["cached_tokens"] == found
    assert json.loads(again)["meta_info"]["completion_tokens"] == 4
    assert json.loads(plain)["usage"]["prompt_tokens_details"] == {"cached_tokens": found}


async def test_usage_tells_of_the_cache_only_where_the_server_is_so_set():
    async with serving(front=FrontEnd(reports_cache=False)) as served:
        _, text = await served.post("/v1/chat/completions", ask())

    assert json.loads(text)["usage"]["prompt_tokens_details"] is None


async def test_a_request_goes_to_the_rank_that_it_names():
    async with serving(dp_size=3) as served:
        for _ in range(2):
            await served.post("/v1/chat/completions", ask(), **{"x-data-parallel-rank": "2"})
        _, loads = await served.get("/v1/loads")
        status, text = await served.post("/v1/chat/completions", ask(routed_dp_rank=7))

    computed = [one["total_prefill_uncached_tokens"] for one in loads["loads"]]
    assert computed[:2] == [0, 0] < computed[2:]
    assert status == 400
    assert "no rank 7" in text


@pytest.mark.parametrize("streams", [False, True])
async def test_a_full_queue_is_told_by_a_status_or_within_the_stream(streams):
    async with serving(max_queued=0) as served:
        status, text = await served.post("/v1/chat/completions", ask(stream=streams))

    assert status == (200 if streams else 503)
    assert "queue" in text


async def test_the_cache_is_flushed_when_nothing_runs():
    async with serving() as served:
        await served.post("/v1/chat/completions", ask())
        status, _ = await served.post("/flush_cache", {})
        _, text = await served.post("/v1/chat/completions", ask())

    assert status == 200
    assert json.loads(text)["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
