import asyncio
import json

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from leadsman_engines.discovery import EventSource, UnknownSettingError, discover
from leadsman_engines.engine_pages import info_settings, reachable
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.profile import EngineProfile

SCHEDULER = {
    "max_num_batched_tokens": 4096,
    "max_num_seqs": 64,
    "long_prefill_token_threshold": 0,
    "enable_chunked_prefill": True,
    "policy": "priority",
    "watermark": 0.01,
    "scheduler_reserve_full_isl": False,
    "async_scheduling": False,
}
SOURCE = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://0.0.0.0:5558", "topic": "kv"}
STATED = EngineProfile(max_num_batched_tokens=2048, max_num_seqs=16)


def metrics(*ranks, blocks=1001):
    config = f'block_size="16",num_gpu_blocks="{blocks}",enable_prefix_caching="True"'
    lines = ["# HELP vllm:cache_config_info Information of the engine"]
    for rank in ranks:
        lines += [
            f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} 1.0',
            f'vllm:num_requests_waiting{{engine="{rank}",model_name="m"}} 0.0',
            f'vllm:cache_config_info{{{config},hash_block_size="None",engine="{rank}"}} 1.0',
        ]
    return "\n".join(lines) + "\n"


PAGES = {
    "/metrics": metrics(0),
    "/version": {"version": "0.33.0"},
    "/v1/models": {
        "data": [
            {"id": "adapter", "parent": "m", "max_model_len": 1},
            {"id": "m", "parent": None, "max_model_len": 8192},
        ]
    },
    "/server_info": {"vllm_config": {"scheduler_config": SCHEDULER}},
    "/kv_event_sources": [SOURCE],
}


async def found(pages, profile=STATED, patience=None):
    def answer(page):
        async def handle(request):
            if callable(page):
                return await page(request)
            if isinstance(page, int):
                return web.Response(status=page)
            return web.Response(body=page if isinstance(page, str) else json.dumps(page))

        return handle

    app = web.Application()
    app.add_routes([web.get(path, answer(page)) for path, page in pages.items()])
    async with (
        TestServer(app) as server,
        aiohttp.ClientSession(timeout=patience or aiohttp.ClientTimeout()) as http,
    ):
        return await discover(http, str(server.make_url("/")), profile)


async def test_an_engine_in_development_mode_needs_no_profile():
    engine = await found(PAGES, EngineProfile())

    (rank,) = engine.ranks
    assert rank.dp_rank is None
    assert rank.settings.model == "m"
    assert rank.settings.version == "0.33.0"
    assert rank.settings.max_model_len == 8192
    assert rank.settings.max_num_batched_tokens == 4096
    assert rank.settings.max_num_seqs == 64
    assert rank.settings.long_prefill_token_threshold is None
    assert rank.settings.policy == "priority"
    assert rank.settings.watermark == 0.01
    assert rank.settings.reserve_full_isl is False
    assert rank.settings.async_scheduling is False
    assert rank.settings.block_size == 16


@pytest.mark.parametrize(
    ("version", "known"), [("0.32.0", True), ("0.33.1", True), ("0.34.0rc1", False), ("1.0", False)]
)
async def test_an_engine_newer_than_any_known_is_told_apart(version, known):
    engine = await found(PAGES | {"/version": {"version": version}})

    assert engine.is_known is known


async def test_an_engine_that_first_describes_its_machine_is_waited_for():
    async def describe(_):
        await asyncio.sleep(1.2)
        return web.json_response(PAGES["/server_info"])

    hasty = aiohttp.ClientTimeout(total=1.0)

    engine = await found(PAGES | {"/server_info": describe}, EngineProfile(), hasty)

    assert engine.ranks[0].settings.max_num_batched_tokens == 4096


async def test_the_null_block_is_not_a_usable_one():
    engine = await found(PAGES | {"/metrics": metrics(0, blocks=1001)})

    assert engine.ranks[0].settings.num_blocks == 1000


async def test_the_blocks_of_an_endpoint_are_shared_out_over_its_ranks():
    engine = await found(PAGES | {"/metrics": metrics(0, 1, 2, 3, blocks=4004)})

    assert [rank.dp_rank for rank in engine.ranks] == [0, 1, 2, 3]
    assert {rank.settings.num_blocks for rank in engine.ranks} == {1000}


@pytest.mark.parametrize("label", [11, 0])
async def test_the_only_rank_of_an_endpoint_may_have_any_global_number(label):
    sources = [SOURCE | {"data_parallel_rank": 11}]

    engine = await found(PAGES | {"/metrics": metrics(label), "/kv_event_sources": sources})

    (rank,) = engine.ranks
    assert (rank.index, rank.dp_rank) == (label, None)
    assert rank.events is not None


@pytest.mark.parametrize("page", [404, 403, "<html>not found</html>", {"detail": "no"}])
async def test_outside_development_mode_the_profile_states_the_scheduler(page):
    engine = await found(PAGES | {"/server_info": page})

    assert engine.ranks[0].settings.max_num_batched_tokens == 2048
    assert engine.ranks[0].settings.max_num_seqs == 16


async def test_what_the_engine_says_goes_before_what_is_stated():
    engine = await found(PAGES, EngineProfile(max_num_batched_tokens=1, block_size=1, model="x"))

    settings = engine.ranks[0].settings
    assert (settings.max_num_batched_tokens, settings.block_size, settings.model) == (4096, 16, "m")


@pytest.mark.parametrize(
    ("missing", "field", "source"),
    [
        ("/server_info", "max_num_batched_tokens", "VLLM_SERVER_DEV_MODE=1"),
        ("/metrics", "block_size", "vllm:cache_config_info"),
        ("/version", "version", "/version"),
        ("/v1/models", "model", "/v1/models"),
    ],
)
async def test_what_nobody_says_is_named_with_both_ways_to_say_it(missing, field, source):
    with pytest.raises(UnknownSettingError) as error:
        await found(PAGES | {missing: 404}, EngineProfile())

    assert error.value.field == field
    assert source in str(error.value)
    assert f"profile.{field}" in str(error.value)


@pytest.mark.parametrize(
    "config",
    [
        str({"scheduler_config": SCHEDULER}),
        json.dumps({"scheduler_config": SCHEDULER}),
        "SchedulerConfig(" + ", ".join(f"{k}={v!r}" for k, v in SCHEDULER.items()) + ")",
    ],
)
def test_a_printed_configuration_says_the_same_as_a_nested_one(config):
    nested = info_settings({"vllm_config": {"scheduler_config": SCHEDULER}})

    printed = info_settings({"vllm_config": config})

    assert printed == nested


DRAFTERS = [("ngram", False, 0), ("draft_model", False, 3), ("eagle3", True, 3), ("mtp", True, 3)]


@pytest.mark.parametrize(("method", "is_eagle", "ahead"), DRAFTERS)
@pytest.mark.parametrize("is_printed", [False, True])
def test_the_drafts_of_a_step_are_told_with_their_drafter(method, is_eagle, ahead, is_printed):
    drafter = {"method": method, "num_speculative_tokens": 3, "model": "d"}
    config = {"scheduler_config": {}, "speculative_config": drafter}
    if is_printed:
        shown = f"SpeculativeConfig(method={method!r}, model='d', num_spec_tokens=3)"
        config = f"model='m', speculative_config={shown}, tokenizer='m'"

    settings = info_settings({"vllm_config": config})

    assert settings["num_speculative_tokens"] == 3
    assert settings.get("is_eagle", False) is is_eagle
    assert settings.get("num_lookahead_tokens", 0) == ahead


@pytest.mark.parametrize(
    "config",
    [
        {"scheduler_config": {}, "speculative_config": None},
        "speculative_config=None, other_config=Other(method='eagle', num_spec_tokens=3)",
    ],
)
def test_an_engine_without_a_drafter_tells_of_no_drafts(config):
    assert info_settings({"vllm_config": config}) == {}


async def test_what_nobody_tells_of_drafts_and_retention_the_profile_states():
    stated = EngineProfile(
        max_num_batched_tokens=2048,
        max_num_seqs=16,
        num_speculative_tokens=2,
        num_lookahead_tokens=2,
        retention_interval=512,
    )

    (rank,) = (await found(PAGES, stated)).ranks

    assert rank.settings.num_speculative_tokens == rank.settings.num_lookahead_tokens == 2
    assert rank.settings.retention_interval == 512


@pytest.mark.parametrize(("label", "interval"), [("0", 0), ("640", 640), ("None", None)])
async def test_the_retention_interval_that_an_engine_tells_goes_before_a_stated_one(
    label, interval
):
    page = PAGES["/metrics"].replace(
        'hash_block_size="None"', f'prefix_cache_retention_interval="{label}"'
    )
    stated = EngineProfile(max_num_batched_tokens=2048, max_num_seqs=16, retention_interval=512)

    (rank,) = (await found(PAGES | {"/metrics": page}, stated)).ranks

    assert rank.settings.retention_interval == interval


@pytest.mark.parametrize(("mode", "aligns"), [("align", True), ("none", False)])
async def test_an_engine_that_keeps_states_where_blocks_end_says_so(mode, aligns):
    page = PAGES["/metrics"].replace('hash_block_size="None"', f'mamba_cache_mode="{mode}"')
    stated = EngineProfile(max_num_batched_tokens=2048, max_num_seqs=16)

    (rank,) = (await found(PAGES | {"/metrics": page}, stated)).ranks

    assert rank.settings.aligns_chunks == aligns


def test_a_setting_that_is_none_is_not_said():
    printed = info_settings({"vllm_config": "async_scheduling=None, max_num_seqs=7"})

    assert printed == {"max_num_seqs": 7}


def test_a_token_budget_that_is_no_number_is_a_mistake():
    info = {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": "many"}}}

    with pytest.raises(msgspec.ValidationError, match="max_num_batched_tokens"):
        info_settings(info)


async def test_nonsense_is_blamed_on_the_engine_that_said_it():
    info = {"vllm_config": {"scheduler_config": {"max_num_batched_tokens": [1]}}}

    with pytest.raises(EngineProtocolError, match="max_num_batched_tokens"):
        await found(PAGES | {"/server_info": info})


async def test_an_engine_that_fails_is_not_an_engine_that_does_not_say():
    with pytest.raises(aiohttp.ClientResponseError):
        await found(PAGES | {"/version": 500})


async def test_an_engine_says_its_hardware_in_development_mode():
    env = {"nvidia_gpu_models": "GPU 0: NVIDIA H100 80GB\nGPU 1: NVIDIA H100 80GB"}

    engine = await found(PAGES | {"/server_info": PAGES["/server_info"] | {"system_env": env}})

    assert engine.ranks[0].settings.hardware == "2 x NVIDIA H100 80GB"


@pytest.mark.parametrize(
    "page",
    [
        [SOURCE],
        {"sources": [SOURCE]},
        {"0": SOURCE | {"publisher": "zmq", "enable_kv_cache_events": True}},
        [SOURCE | {"data_parallel_rank": 0}],
    ],
)
async def test_event_sources_are_read_in_every_shape(page):
    engine = await found(PAGES | {"/kv_event_sources": page})

    source = engine.ranks[0].events
    assert source == EventSource(
        events="tcp://127.0.0.1:5557", replay="tcp://127.0.0.1:5558", topic="kv"
    )


@pytest.mark.parametrize("page", [404, {}, [], None, {"0": None}, {"0": {"endpoint": 7}}])
async def test_an_engine_without_event_sources_has_none(page):
    engine = await found(PAGES | {"/kv_event_sources": page})

    assert engine.ranks[0].events is None


async def test_stated_event_endpoints_go_up_by_one_port_a_rank():
    profile = EngineProfile(kv_events="tcp://10.0.0.1:5557", kv_replay="tcp://*:6000")

    engine = await found(PAGES | {"/metrics": metrics(4, 5)}, profile)

    first, second = (rank.events for rank in engine.ranks)
    assert first == EventSource(events="tcp://10.0.0.1:5557", replay="tcp://127.0.0.1:6000")
    assert second == EventSource(events="tcp://10.0.0.1:5558", replay="tcp://127.0.0.1:6001")


async def test_events_that_are_stated_to_be_off_are_not_looked_for():
    engine = await found(PAGES, EngineProfile(kv_events="off"))

    assert engine.ranks[0].events is None


@pytest.mark.parametrize(
    ("endpoint", "host", "address"),
    [
        ("tcp://*:5557", "10.1.2.3", "tcp://10.1.2.3:5557"),
        ("tcp://[::]:5557", "fd00::1", "tcp://[fd00::1]:5557"),
        ("tcp://10.9.9.9:5557", "10.1.2.3", "tcp://10.9.9.9:5557"),
        ("ipc:///tmp/events", "10.1.2.3", "ipc:///tmp/events"),
    ],
)
def test_an_address_that_binds_everywhere_is_reached_at_the_host(endpoint, host, address):
    assert reachable(endpoint, host) == address
