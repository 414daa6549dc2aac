import asyncio
import contextlib
import time
from itertools import pairwise

import aiohttp
import msgspec
import pytest
import zmq
import zmq.asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from leadsman.records import (
    Cleared,
    KvEvents,
    LoadSample,
    Stored,
    Trust,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
)
from leadsman_engines.profile import EngineProfile
from leadsman_operator.collector import busy_turn
from leadsman_operator.collectors import Collectors
from leadsman_operator.endpoint import CollectorTiming, Endpoint, Surroundings

PATIENCE = 20.0
PROFILE = EngineProfile(max_num_batched_tokens=2048, max_num_seqs=16)
QUICK = CollectorTiming(poll=0.01, idle_poll=0.01, health=0.0, recheck=0.02, retry=0.01)


class ScriptedEngine:
    """An engine that says what a test tells it to."""

    def __init__(self):
        self.ranks = [0]
        self.running = 0
        self.blocks = 1001
        self.block_size = 16
        self.started = 1000
        self.is_healthy = True
        self.is_awake = True
        self.is_reachable = True
        self.events = None
        self.context = 8192

    def metrics(self):
        lines = [f"process_start_time_seconds {self.started}"]
        for rank in self.ranks:
            lines += [
                f'vllm:num_requests_running{{engine="{rank}"}} {self.running}',
                f'vllm:num_requests_waiting{{engine="{rank}"}} 0',
                (
                    f'vllm:engine_sleep_state{{engine="{rank}",sleep_state="awake"}}'
                    f" {int(self.is_awake)}"
                ),
                (
                    f'vllm:cache_config_info{{block_size="{self.block_size}",num_gpu_blocks="{self.blocks}",'
                    f'engine="{rank}"}} 1'
                ),
            ]
        return "\n".join(lines)

    def app(self):
        def page(said):
            async def handle(_):
                if not self.is_reachable:
                    return web.Response(status=502)
                body = said()
                if isinstance(body, int):
                    return web.Response(status=body)
                text = body if isinstance(body, str) else msgspec.json.encode(body).decode()
                return web.Response(text=text)

            return handle

        card = {"id": "m", "parent": None}
        pages = {
            "/metrics": self.metrics,
            "/version": lambda: {"version": "0.33.0"},
            "/v1/models": lambda: {"data": [card | {"max_model_len": self.context}]},
            "/kv_event_sources": lambda: {"0": {"endpoint": self.events}} if self.events else {},
            "/health": lambda: 200 if self.is_healthy else 503,
        }
        app = web.Application()
        app.add_routes([web.get(path, page(said)) for path, said in pages.items()])
        return app


class Stage:
    def __init__(self, collectors, engine, endpoint, heard):
        self.collectors = collectors
        self.engine = engine
        self.endpoint = endpoint
        self.heard = heard

    async def hear(self, kind, matches=lambda _: True):
        async with asyncio.timeout(PATIENCE):
            while True:
                record = await self.heard.get()
                if isinstance(record, kind) and matches(record):
                    return record


@pytest.fixture
async def stage():
    engine = ScriptedEngine()
    heard = asyncio.Queue()
    async with TestServer(engine.app()) as server, aiohttp.ClientSession() as http:
        around = Surroundings(
            http=http, publish=heard.put_nowait, clock=time.monotonic, timing=QUICK
        )
        collectors = Collectors(around)
        endpoint = Endpoint(url=str(server.make_url("/")), profile=PROFILE)
        yield Stage(collectors, engine, endpoint, heard)
        await collectors.stop()


async def test_an_engine_that_is_there_is_a_worker(stage):
    await stage.collectors.set([stage.endpoint])

    seen = await stage.hear(WorkerSeen)

    assert seen.worker == seen.endpoint == stage.endpoint.address
    assert seen.ready
    assert seen.settings.num_blocks == 1000
    assert seen.dp_rank is None


async def test_each_rank_of_an_endpoint_is_a_worker(stage):
    stage.engine.ranks = [0, 1]

    await stage.collectors.set([stage.endpoint])
    first, second = await stage.hear(WorkerSeen), await stage.hear(WorkerSeen)

    assert [first.worker[-2:], second.worker[-2:]] == ["#0", "#1"]
    assert first.endpoint == second.endpoint == stage.endpoint.address
    assert [first.dp_rank, second.dp_rank] == [0, 1]


async def test_an_engine_that_comes_later_is_found(stage):
    stage.engine.is_reachable = False
    await stage.collectors.set([stage.endpoint])

    stage.engine.is_reachable = True
    seen = await stage.hear(WorkerSeen)

    assert seen.ready


async def test_a_worker_without_events_is_blind(stage):
    await stage.collectors.set([stage.endpoint])

    changed = await stage.hear(TrustChanged)

    assert changed.trust is Trust.BLIND


async def test_the_load_is_told_as_it_changes(stage):
    await stage.collectors.set([stage.endpoint])
    await stage.hear(LoadSample, lambda sample: sample.running == 0)

    stage.engine.running = 3
    busy = await stage.hear(LoadSample)

    assert busy.running == 3


@pytest.mark.parametrize("ability", ["is_reachable", "is_healthy", "is_awake"])
async def test_an_engine_that_cannot_serve_is_not_ready_until_it_can(stage, ability):
    await stage.collectors.set([stage.endpoint])
    await stage.hear(WorkerSeen, lambda seen: seen.ready)

    setattr(stage.engine, ability, False)
    await stage.hear(WorkerSeen, lambda seen: not seen.ready)
    setattr(stage.engine, ability, True)
    again = await stage.hear(WorkerSeen)

    assert again.ready


async def test_an_engine_that_sleeps_has_an_empty_cache(stage):
    await stage.collectors.set([stage.endpoint])
    await stage.hear(WorkerSeen)

    stage.engine.is_awake = False
    batch = await stage.hear(KvEvents)

    assert batch.events == (Cleared(),)


async def test_an_idle_engine_that_started_anew_has_an_empty_cache(stage):
    await stage.collectors.set([stage.endpoint])
    await stage.hear(LoadSample)

    stage.engine.started += 1
    changed = await stage.hear(TrustChanged, lambda said: said.trust is Trust.SUSPECT)
    batch = await stage.hear(KvEvents)

    assert changed.reason == "engine started anew"
    assert batch.events == (Cleared(),)


@pytest.mark.parametrize(("setting", "value"), [("blocks", 501), ("context", 4096)])
async def test_other_settings_are_said(stage, setting, value):
    await stage.collectors.set([stage.endpoint])
    first = await stage.hear(WorkerSeen)

    setattr(stage.engine, setting, value)
    second = await stage.hear(WorkerSeen, lambda seen: seen.settings != first.settings)

    assert value in (second.settings.num_blocks + 1, second.settings.max_model_len)


async def test_a_rank_that_is_no_more_is_gone(stage):
    stage.engine.ranks = [0, 1]
    await stage.collectors.set([stage.endpoint])
    await stage.hear(WorkerSeen)

    stage.engine.ranks = [0]
    gone = {(await stage.hear(WorkerGone)).worker[-2:] for _ in range(2)}

    assert gone == {"#0", "#1"}


async def test_an_endpoint_that_is_removed_takes_its_workers_with_it(stage):
    await stage.collectors.set([stage.endpoint])
    seen = await stage.hear(WorkerSeen)

    await stage.collectors.set([])
    gone = await stage.hear(WorkerGone)

    assert gone.worker == seen.worker
    assert len(stage.collectors) == 0


async def test_collectors_that_stop_leave_the_workers_where_they_are(stage):
    await stage.collectors.set([stage.endpoint])
    await stage.hear(WorkerSeen)

    await stage.collectors.stop()

    left = [stage.heard.get_nowait() for _ in range(stage.heard.qsize())]
    assert not [record for record in left if isinstance(record, WorkerGone)]


async def test_what_an_engine_stores_is_heard(stage):
    publisher = zmq.asyncio.Context.instance().socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    stage.engine.events = f"tcp://*:{port}"
    event = {
        "type": "BlockStored",
        "block_hashes": [7],
        "parent_block_hash": None,
        "token_ids": list(range(16)),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "session_id": "s",
    }

    async def keep_publishing():
        for sequence in range(1_000_000):
            payload = msgspec.msgpack.encode([1.0, [event], 0])
            await publisher.send_multipart([b"", sequence.to_bytes(8), payload])
            await asyncio.sleep(0.01)

    publishing = asyncio.create_task(keep_publishing())
    await stage.collectors.set([stage.endpoint])
    batch = await stage.hear(KvEvents, lambda batch: batch.events and batch.events != (Cleared(),))

    publishing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await publishing
    publisher.close(linger=0)
    (stored,) = batch.events
    assert isinstance(stored, Stored)
    assert stored.session == "s"
    assert len(stored.keys) == 1


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000/", "10.0.0.1:8000"),
        ("http://[fd00::1]:8000", "[fd00::1]:8000"),
        ("https://10.0.0.1", "10.0.0.1:443"),
        ("http://engine", "engine:80"),
    ],
)
def test_an_address_is_what_the_url_says(url, address):
    assert Endpoint(url=url).address == address


async def test_a_name_is_resolved_to_what_a_gateway_can_send_to():
    assert await Endpoint(url="http://localhost:8000").resolve() == "127.0.0.1:8000"


async def test_an_endpoint_that_is_closed_takes_no_requests_until_it_is_opened(stage):
    await stage.collectors.set([stage.endpoint], closed=[stage.endpoint])
    closed = await stage.hear(WorkerSeen)

    await stage.collectors.set([stage.endpoint])
    opened = await stage.hear(WorkerSeen)

    assert not closed.ready
    assert opened.ready
    assert opened.worker == closed.worker


async def test_an_endpoint_that_is_closed_and_opened_keeps_what_its_engine_says_of_itself(stage):
    await stage.collectors.set([stage.endpoint])
    await stage.hear(WorkerSeen)
    stage.engine.is_healthy = False
    await stage.hear(WorkerSeen, lambda seen: not seen.ready)

    await stage.collectors.set([stage.endpoint], closed=[stage.endpoint])
    await stage.collectors.set([stage.endpoint])
    stage.engine.is_healthy = True

    assert (await stage.hear(WorkerSeen)).ready


async def problem(stage, is_so):
    async with asyncio.timeout(PATIENCE):
        while True:
            found = stage.collectors.found()[stage.endpoint]
            if is_so(found):
                return found
            await asyncio.sleep(0.01)


async def test_why_an_engine_is_not_followed_is_told_until_it_is(stage):
    stage.engine.is_reachable = False
    await stage.collectors.set([stage.endpoint])

    found = await problem(stage, lambda found: found.problem)
    assert "502" in found.problem
    assert found.workers == ()

    stage.engine.is_reachable = True
    found = await problem(stage, lambda found: found.problem is None)
    assert [worker.endpoint for worker in found.workers] == [stage.endpoint.address]

    stage.engine.is_healthy = False
    found = await problem(stage, lambda found: found.problem)
    assert found.problem == "/health does not say that the engine is well"


@given(st.floats(0, 1e6), st.lists(st.floats(0, 0.24), min_size=1), st.floats(0, 0.999))
def test_a_busy_engine_is_asked_once_a_turn_at_its_own_phase(begun, late, phase):
    poll = 0.5
    first = busy_turn(begun, poll, phase)

    turns = [first]
    for wait in late:
        turns.append(busy_turn(turns[-1] + wait, poll, phase))

    assert poll / 2 <= first - begun <= 1.5 * poll
    assert turns == pytest.approx([first + poll * n for n in range(len(turns))])
    assert (first - phase * poll + poll / 2) % poll == pytest.approx(poll / 2, abs=1e-6)


def test_engines_that_began_to_work_together_are_asked_apart():
    poll, phases = 0.5, [n / 64 for n in range(64)]

    turns = sorted(busy_turn(1000.0, poll, phase) for phase in phases)

    gaps = [later - sooner for sooner, later in pairwise(turns)]
    assert min(gaps) == pytest.approx(poll / 64)
