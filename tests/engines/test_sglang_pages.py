import json

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from leadsman.records import GPU, Removed, Stored
from leadsman.units import WorkerId
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.discovery import EventSource, UnknownSettingError, discover
from leadsman_engines.kv_wire import decode_batch
from leadsman_engines.metrics import read_metrics
from leadsman_engines.profile import EMPTY_PROFILE, EngineProfile
from leadsman_engines.sglang_pages import is_sglang, sglang_event_sources, sglang_settings

INFO = {
    "version": "0.5.23",
    "served_model_name": "tiny",
    "page_size": 16,
    "max_prefill_tokens": 16384,
    "chunked_prefill_size": 4096,
    "schedule_policy": "lpm",
    "schedule_conservativeness": 0.8,
    "enable_mixed_chunk": False,
    "enable_priority_scheduling": False,
    "disable_overlap_schedule": False,
    "dp_size": 1,
    "context_length": None,
    "internal_states": [
        {
            "effective_max_running_requests_per_dp": 48,
            "memory_usage": {"token_capacity": 160_007},
        }
    ],
    "kv_events": {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "replay_endpoint_port_base": 5600,
        "topic": "kv",
        "block_size": 16,
        "dp_size": 1,
    },
}
MODELS = {"data": [{"id": "tiny", "max_model_len": 8192}]}
METRICS = """\
sglang:num_running_reqs{model_name="tiny",dp_rank="0"} 3.0
sglang:num_queue_reqs{model_name="tiny",dp_rank="0"} 2.0
sglang:token_usage{model_name="tiny",dp_rank="0"} 0.25
sglang:num_running_reqs{model_name="tiny",dp_rank="1"} 5.0
sglang:num_queue_reqs{model_name="tiny",dp_rank="1"} 0.0
sglang:prompt_tokens_total{model_name="tiny",is_streaming="True"} 100.0
sglang:prompt_tokens_total{model_name="tiny",is_streaming="False"} 20.0
"""
W = WorkerId("w:1")


async def found(info, profile=EMPTY_PROFILE):
    pages = {"/server_info": json.dumps(info), "/v1/models": json.dumps(MODELS)}
    pages["/metrics"] = METRICS

    def answer(page):
        async def handle(_):
            return web.Response(body=page)

        return handle

    app = web.Application()
    app.add_routes([web.get(path, answer(page)) for path, page in pages.items()])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        return await discover(http, str(server.make_url("/")), profile)


async def test_an_sglang_tells_all_that_its_replay_needs():
    engine = await found(INFO)

    (rank,) = engine.ranks
    settings = rank.settings
    assert settings.sglang is not None
    assert (settings.model, settings.version, settings.max_model_len) == ("tiny", "0.5.23", 8192)
    assert (settings.block_size, settings.num_blocks) == (16, 160_007 // 16)
    assert (settings.max_num_seqs, settings.max_num_batched_tokens) == (48, 4096)
    assert settings.async_scheduling
    assert settings.sglang.chunked_prefill_size == 4096
    assert settings.sglang.schedule_policy == "lpm"
    assert settings.sglang.schedule_conservativeness == 0.8


async def test_its_events_are_reached_at_the_server_s_own_host():
    engine = await found(INFO)

    assert engine.ranks[0].events == EventSource(
        events="tcp://127.0.0.1:5557", replay="tcp://127.0.0.1:5600", topic="kv"
    )


async def test_each_rank_has_its_own_port():
    info = INFO | {"dp_size": 2, "kv_events": INFO["kv_events"] | {"dp_size": 2}}

    engine = await found(info)

    assert [rank.dp_rank for rank in engine.ranks] == [0, 1]
    assert engine.ranks[1].events.events == "tcp://127.0.0.1:5558"


async def test_what_it_does_not_tell_is_asked_of_the_profile():
    info = INFO | {"internal_states": []}

    with pytest.raises(UnknownSettingError, match=r"profile\.max_num_seqs"):
        await found(info)

    stated = EngineProfile(max_num_seqs=7, num_blocks=100)
    assert (await found(info, stated)).ranks[0].settings.max_num_seqs == 7


def test_chunking_that_is_off_is_absent_and_not_a_number():
    settings = sglang_settings(INFO | {"chunked_prefill_size": -1})

    assert settings["sglang"].chunked_prefill_size is None
    assert settings["max_num_batched_tokens"] == 16384


def test_an_order_that_no_replay_knows_is_taken_for_first_come(caplog):
    assert sglang_settings(INFO | {"schedule_policy": "hrrn"})["sglang"].schedule_policy == "fcfs"


def test_a_vllm_page_is_none_of_its_pages():
    assert is_sglang(INFO)
    assert not is_sglang({"vllm_config": {}})
    assert not is_sglang(None)


def test_where_nothing_is_published_there_is_no_source():
    assert sglang_event_sources(INFO | {"kv_events": None}, "h") == {}
    assert sglang_event_sources(INFO | {"kv_events": {"publisher": "null"}}, "h") == {}


def test_its_load_is_read_by_rank():
    page = read_metrics(METRICS.encode())

    first, second = page.load(0, W, 1.0), page.load(1, W, 1.0)

    assert (first.running, first.waiting, first.kv_usage) == (3, 2, 0.25)
    assert (second.running, second.waiting, second.kv_usage) == (5, 0, None)
    assert page.ranks[0].prompt_tokens == 120.0


# -- events ------------------------------------------------------------------------------------


def resolve(blocks, *events):
    batch = decode_batch(msgspec.msgpack.encode([1.0, list(events), 0]), W)
    assert batch.problems == ()
    return blocks.resolve(batch.events)


def stored(hashes, tokens, **fields):
    usual = {"type": "BlockStored", "block_hashes": hashes, "token_ids": tokens, "block_size": 4}
    return usual | {"parent_block_hash": None, "medium": "GPU"} | fields


def fresh():
    return EngineBlocks(secret=b"s", model="m")


def test_a_copy_in_host_memory_outlives_the_one_on_the_gpu():
    blocks, tokens = fresh(), [5, 6, 7, 8]

    on_gpu, on_host, left = resolve(
        blocks,
        stored([-9], tokens),
        stored([-9], tokens, medium="CPU_PINNED"),
        {"type": "BlockRemoved", "block_hashes": [-9], "medium": "GPU"},
    )

    assert isinstance(on_gpu, Stored)
    assert (on_gpu.tier, on_host.tier, left.tier) == (GPU, "CPU_PINNED", GPU)
    assert on_gpu.keys.tolist() == on_host.keys.tolist() == left.keys.tolist()
    assert blocks.known == 1
    (gone,) = resolve(
        blocks, {"type": "BlockRemoved", "block_hashes": [-9], "medium": "CPU_PINNED"}
    )
    assert isinstance(gone, Removed)
    assert blocks.known == 0


def test_pairs_name_the_same_blocks_as_the_tokens_that_they_begin_with():
    tokens = list(range(10, 18))
    pairs = [[token, token + 1] for token in tokens]

    (plain,) = resolve(fresh(), stored([1, 2], tokens))
    (paired,) = resolve(fresh(), stored([1, 2], pairs))

    assert np.array_equal(plain.keys, paired.keys)


def test_absent_defaults_and_a_parent_that_is_signed_are_read():
    blocks = fresh()
    root = {"type": "BlockStored", "block_hashes": [-1], "token_ids": [1, 2, 3, 4], "block_size": 4}

    (first,) = resolve(blocks, root | {"parent_block_hash": None})
    (second,) = resolve(blocks, stored([77], [5, 6, 7, 8], parent_block_hash=-1))

    assert blocks.known == 2
    assert first.keys.tolist() != second.keys.tolist()


def test_salts_keep_equal_prompts_apart():
    blocks = fresh()

    (plain,) = resolve(blocks, stored([1], [1, 2, 3, 4]))
    (salted,) = resolve(blocks, stored([2], [1, 2, 3, 4], cache_salt="mine"))

    assert plain.keys.tolist() != salted.keys.tolist()
