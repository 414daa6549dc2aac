import asyncio
import json
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from leadsman.records import WorkerSeen
from leadsman_cli.config import Config, FleetSpec, read_config
from leadsman_cli.serve import Plan, serving
from leadsman_cli.tokenize import EngineTokenizer
from leadsman_extproc.settings import Settings
from leadsman_fleet.client import FleetClient, Target
from leadsman_operator.manifest import EndpointSpec

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


async def test_an_engine_says_which_tokens_a_body_becomes(engine):
    async with aiohttp.ClientSession() as http:
        tokenizer = EngineTokenizer(http=http, endpoint_of=lambda _: engine.address)

        ids = await tokenizer("m", "/v1/chat/completions", b"{}")

    assert ids.dtype == np.uint32
    assert ids.tolist() == [5, 6]


async def test_a_body_of_megabytes_is_tokenized_too(engine):
    async with aiohttp.ClientSession() as http:
        tokenizer = EngineTokenizer(http=http, endpoint_of=lambda _: engine.address)

        ids = await tokenizer("m", "/v1/completions", b"x" * (3 << 20))

    assert ids is not None


@pytest.mark.parametrize(
    ("answer", "status", "path", "is_there"),
    [
        ({"tokens": [1]}, 500, "/v1/completions", True),
        ({"tokens": "abc"}, 200, "/v1/completions", True),
        ({"tokens": [-1]}, 200, "/v1/completions", True),
        ({"tokens": [1]}, 200, "/v1/messages", True),
        ({"tokens": [1]}, 200, "/v1/completions", False),
    ],
)
async def test_where_no_engine_can_say_there_are_no_tokens(
    answering, answer, status, path, is_there
):
    app = web.Application()
    app.add_routes([web.post("/tokenize", answering(answer, status))])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        address = f"127.0.0.1:{server.port}" if is_there else None
        tokenizer = EngineTokenizer(http=http, endpoint_of=lambda _: address)

        ids = await tokenizer("m", path, b"{}")

    assert ids is None


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


def test_the_example_is_a_sound_file():
    root = Path(str(files("leadsman_cli"))).parents[1]

    config = read_config(root / "docs" / "fleet.example.yaml")

    assert len(config.targets()) == 3
    assert config.budget.max_queue_wait == 30.0
