import asyncio
import json
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from leadsman.budget import Budget
from leadsman.fleet import Fleet
from leadsman.policy import PolicyError
from leadsman.records import LoadSample, WorkerSeen
from leadsman.units import WorkerId
from leadsman_cli import serve
from leadsman_cli.config import Config, FleetSpec, check_stores, policies, read_config
from leadsman_cli.serve import Plan, serving
from leadsman_cli.tokenize import EngineTokenizer
from leadsman_engines.profile import SharedStore
from leadsman_extproc.asking import Question
from leadsman_extproc.settings import Settings
from leadsman_fleet.client import FleetClient, Target
from leadsman_operator.manifest import EndpointSpec, ManifestError

from tests.settings import SETTINGS

PATIENCE = 20.0


def plan(endpoint, **fleet):
    config = Config(
        endpoints=(EndpointSpec(url=endpoint.url),),
        picker=Settings(listen="127.0.0.1:0", drain=0.0),
        fleet=FleetSpec(**fleet),
    )
    return Plan(config=config, endpoints=(endpoint,), models=())


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
            await asyncio.sleep(0.01)


async def test_what_a_collector_finds_reaches_the_picker_by_the_stream(engine):
    async with serving(plan(engine)) as running:
        await until(running.service.workers.any_ready)

        (worker,) = running.fleet.workers.values()

    assert worker.endpoint == engine.address
    assert worker.settings.max_num_seqs == 16


async def test_what_a_coordinator_lists_reaches_every_picker_by_the_stream(engine):
    golden = Path(__file__).parents[1] / "engines/golden/lmcache_coordinator.json"
    told = json.loads(golden.read_text())["stored"]
    app = web.Application()

    async def say(request):
        return web.json_response(told[request.path.removeprefix("/directory/")])

    app.router.add_get("/directory/keys", say)
    app.router.add_post("/directory/lookup", say)
    async with TestServer(app) as server:
        store = SharedStore(
            lmcache=str(server.make_url("/")), model="m", stored_as="org/m", block_size=4
        )
        shares = plan(engine, listen="127.0.0.1:0")
        shares = replace(shares, config=replace(shares.config, stores=(store,)))
        async with serving(shares) as running:
            await until(lambda: running.fleet.index.distinct_blocks)
            late = Fleet()
            target = Target(address=f"127.0.0.1:{running.fleet_ports[0]}", replica="late")
            client = FleetClient(target, lambda record: late.apply(record, time.monotonic()))
            follower = asyncio.create_task(client.run())
            await until(lambda: late.index.distinct_blocks)
            follower.cancel()

    assert running.fleet.index.distinct_blocks == late.index.distinct_blocks == 14
    assert len(late.workers) == 1


@pytest.mark.parametrize(
    ("where", "size", "words"),
    [
        ({"lmcache": "host:9300"}, 16, "stores[0].lmcache: expected the URL of a store"),
        ({"mooncake": "host:9003"}, 16, "stores[0].mooncake: expected the URL of a store"),
        ({"mooncake": "http://a", "lmcache": "http://b"}, 16, "stores[0]: expected one of"),
        ({}, 16, "stores[0]: expected one of lmcache and mooncake"),
        ({"lmcache": "http://a"}, 0, "stores[0].block_size: expected a number of tokens above 0"),
    ],
)
def test_a_store_that_cannot_be_is_a_mistake_in_the_file(where, size, words):
    with pytest.raises(ManifestError) as caught:
        check_stores([SharedStore(**where, model="m", block_size=size)])

    assert words in str(caught.value)


async def test_a_further_replica_follows_the_same_fleet(engine):
    heard = asyncio.Queue()
    async with serving(plan(engine, listen="127.0.0.1:0")) as running:
        (port,) = running.fleet_ports
        target = Target(address=f"127.0.0.1:{port}", replica="another")
        follower = asyncio.create_task(FleetClient(target, heard.put_nowait).run())

        async with asyncio.timeout(PATIENCE):
            first = await heard.get()

        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
    assert isinstance(first, WorkerSeen)
    assert first.endpoint == engine.address


CHAT = "/v1/chat/completions"
ASKED = Question(path=CHAT, sent=b'{"sent": 1}', tokenize=b'{"asked": 1}')


@asynccontextmanager
async def asked(routes, question=ASKED):
    """An engine with these routes, and what it says; the bodies it got are beside its answers."""
    got = []

    def handler(path, status, body):
        async def handle(request):
            got.append((path, await request.read()))
            return web.Response(text=json.dumps(body), status=status)

        return handle

    app = web.Application(client_max_size=8 << 20)
    app.add_routes([web.post(path, handler(path, *answer)) for path, answer in routes.items()])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        engine = f"127.0.0.1:{server.port}"
        tokenizer = EngineTokenizer(http=http, ready=lambda model: [engine] * (model == "m"))
        yield tokenizer, got


async def test_an_engine_is_asked_for_a_rendering_and_where_it_has_none_for_tokens():
    routes = {CHAT + "/render": (403, {}), "/tokenize": (200, {"count": 2, "tokens": [5, 6]})}
    async with asked(routes) as (tokenizer, got):
        first = await tokenizer("m", ASKED)

        second = await tokenizer("m", ASKED)

    assert first.dtype == np.uint32
    assert first.tolist() == second.tolist() == [5, 6]
    tokenize = ("/tokenize", b'{"asked": 1}')
    assert got == [(CHAT + "/render", b'{"sent": 1}'), tokenize, tokenize]


@pytest.mark.parametrize("answer", [{"token_ids": [7]}, [{"token_ids": [7]}]])
async def test_a_rendering_says_the_tokens_of_the_body_as_it_was_sent(answer):
    async with asked({CHAT + "/render": (200, answer)}) as (tokenizer, got):
        ids = await tokenizer("m", ASKED)

    assert ids.tolist() == [7]
    assert got == [(CHAT + "/render", b'{"sent": 1}')]


@pytest.mark.parametrize(
    ("answer", "status", "model"),
    [
        ({"tokens": [1]}, 500, "m"),
        ({"tokens": "abc"}, 200, "m"),
        ({"tokens": [-1]}, 200, "m"),
        ({"count": 1}, 200, "m"),
        ([], 200, "m"),
        ({"tokens": [1]}, 200, "another"),
    ],
)
async def test_where_no_engine_can_say_there_are_no_tokens(answer, status, model):
    async with asked({"/tokenize": (status, answer)}) as (tokenizer, _):
        ids = await tokenizer(model, ASKED)

    assert ids is None


async def test_a_body_of_megabytes_is_asked_about_too():
    large = Question(path=CHAT, sent=b"x" * (3 << 20), tokenize=b"{}")
    async with asked({CHAT + "/render": (200, {"token_ids": [7]})}) as (tokenizer, got):
        ids = await tokenizer("m", large)

    assert ids.tolist() == [7]
    assert got == [(CHAT + "/render", large.sent)]


async def test_what_tokenize_does_not_take_is_not_asked_of_it():
    question = Question(path="/v1/messages", sent=b"{}", tokenize=None)
    async with asked({"/tokenize": (200, {"tokens": [1]})}) as (tokenizer, got):
        ids = await tokenizer("m", question)

    assert ids is None
    assert got == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_it_is_told_to_stop(tmp_path, number):
    config = tmp_path / "fleet.yaml"
    config.write_text("endpoints: []\npicker: {listen: '127.0.0.1:0', drain: 0.0}\n")
    command = [sys.executable, "-c", "from leadsman_cli.main import main; raise SystemExit(main())"]
    process = subprocess.Popen(
        [*command, "serve", "--config", str(config)], stderr=subprocess.PIPE, text=True
    )

    with process:
        messages = []
        for line in process.stderr:
            messages.append(json.loads(line)["message"])
            if messages[-1] == "serving":
                process.send_signal(number)

    assert process.returncode == 0
    assert messages.index("draining") < messages.index("stopped")


def fleet_that_tells(usage):
    """A fleet of one ready worker whose engine reports its load so."""
    fleet = Fleet()
    fleet.apply(WorkerSeen(worker=WorkerId("w"), endpoint="w", settings=SETTINGS), 0.0)
    fleet.apply(
        LoadSample(worker=WorkerId("w"), at=time.monotonic(), running=0, waiting=0, kv_usage=usage),
        0.0,
    )
    return fleet


async def test_a_signal_that_no_engine_tells_ends_the_start_with_its_name(monkeypatch):
    monkeypatch.setattr(serve, "SIGNALS_WITHIN", 0.5)
    budget = Budget(policy="kv_threshold")

    with pytest.raises(PolicyError, match="kv_threshold needs kv_usage, which no engine tells"):
        await serve.find_signals(fleet_that_tells(None), budget)


async def test_a_policy_whose_signals_are_told_goes_on(monkeypatch):
    monkeypatch.setattr(serve, "SIGNALS_WITHIN", 0.1)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await serve.find_signals(fleet_that_tells(0.25), Budget(policy="kv_threshold"))


@pytest.mark.parametrize(
    ("settings", "budget", "words"),
    [
        (Settings(), Budget(policy="haggle"), "budget.policy: no policy 'haggle'"),
        (
            Settings(),
            Budget(policy="queue_cap", parameters={"most": 1}),
            "budget.policy: policy queue_cap: no parameter 'most'",
        ),
        (Settings(policies=("no_such:One",)), Budget(), "picker.policies: policy no_such:One"),
    ],
)
def test_a_policy_that_cannot_be_had_is_a_mistake_in_the_file(settings, budget, words):
    with pytest.raises(ManifestError) as caught:
        policies(settings, budget)

    assert words in str(caught.value)


def test_the_example_is_a_sound_file():
    root = Path(str(files("leadsman_cli"))).parents[1]

    config = read_config(root / "docs" / "fleet.example.yaml")

    assert len(config.targets()) == 3
    assert config.budget.max_queue_wait == 30.0
