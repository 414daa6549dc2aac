"""What the doctor says of engines and gateways, by engines that answer and Envoy's own words."""

import json

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_cli.doctor import command, engines, gateway
from leadsman_engines.profile import EMPTY_PROFILE
from leadsman_extproc.settings import Settings
from leadsman_operator.endpoint import Endpoint


async def found_at(endpoint, *, may_request=True):
    async with aiohttp.ClientSession() as http:
        looked = engines.look(http, endpoint, (), may_request=may_request)
        return [finding async for finding in looked]


def said(findings, level):
    return [finding.what for finding in findings if finding.level == level]


def answer(cached, date="Mon, 01 Jan 2024 00:00:00 GMT"):
    async def handle(_):
        details = None if cached is None else {"cached_tokens": cached}
        usage = {"prompt_tokens": 50, "prompt_tokens_details": details}
        return web.json_response({"usage": usage}, headers={"Date": date})

    return handle


@pytest.fixture
async def engine_that(answering, pages):
    """Serve the pages of a vLLM, with chat as a test wants it."""
    servers = []

    async def make(chat, **other):
        app = web.Application()
        served = pages | {f"/{name}": page for name, page in other.items()}
        app.add_routes([web.get(path, answering(page)) for path, page in served.items()])
        app.add_routes([web.post("/v1/chat/completions", chat)])
        server = TestServer(app)
        await server.start_server()
        servers.append(server)
        return Endpoint(url=str(server.make_url("")).rstrip("/"))

    yield make
    for server in servers:
        await server.close()


async def test_an_engine_without_events_and_usage_is_told_which_flags_to_take(engine_that):
    findings = await found_at(await engine_that(answer(None)))

    changes = " ".join(finding.change or "" for finding in findings)
    assert any("publishes no KV events" in what for what in said(findings, "warning"))
    assert any("does not report cached tokens" in what for what in said(findings, "warning"))
    assert "--kv-events-config" in changes
    assert "--enable-prompt-tokens-details" in changes


@pytest.mark.parametrize(
    ("address", "is_heard"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("ipc:///tmp/events", True),
        ("tcp://0.0.0.0:5557", False),
        ("tcp://localhost:5557", False),
    ],
)
async def test_an_engine_whose_events_connect_instead_of_listening_is_a_fault(
    engine_that, pages, address, is_heard
):
    info = pages["/server_info"]["vllm_config"]
    events = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": address}
    told = {"vllm_config": info | {"kv_events_config": events}}

    findings = await found_at(await engine_that(answer(48), server_info=told))

    faults = [finding for finding in findings if "connect to" in finding.what]
    assert [finding.level for finding in faults] == ([] if is_heard else ["fault"])
    assert all(address in finding.what and "tcp://*:" in finding.change for finding in faults)


async def test_what_is_as_it_should_be_is_said_to_be(engine_that):
    findings = await found_at(await engine_that(answer(48)))

    assert "reports cached tokens (48 of a repeated prompt)" in said(findings, "fine")
    assert any(what.startswith("vllm 0.33.0 serves m") for what in said(findings, "fine"))


async def test_a_clock_that_is_off_is_said_to_be(engine_that):
    findings = await found_at(await engine_that(answer(48)))

    assert any("behind" in what for what in said(findings, "warning"))


async def test_no_request_is_sent_where_none_is_wanted(engine_that):
    async def handle(_):
        pytest.fail("a request came")

    findings = await found_at(await engine_that(handle), may_request=False)

    assert said(findings, "fault") == []


async def test_an_engine_that_is_not_there_is_a_fault_with_its_address():
    [finding] = await found_at(Endpoint(url="http://127.0.0.1:9", profile=EMPTY_PROFILE))

    assert (finding.level, finding.where) == ("fault", "127.0.0.1:9")


async def test_an_address_for_events_at_which_nobody_listens_is_a_fault():
    assert not await engines._connects("tcp://127.0.0.1:9")
    assert await engines._connects("inproc://x")


def bootstrap(profile="buffered"):
    return EnvoyConfig(engines=["127.0.0.1:1"], picker="127.0.0.1:2", profile=profile).bootstrap()


def edited(old, new):
    text = json.dumps(bootstrap())
    assert old in text
    return json.loads(text.replace(old, new))


@pytest.mark.parametrize("profile", ["buffered", "duplex"])
def test_our_own_bootstrap_has_nothing_to_change(profile):
    assert list(gateway.look(bootstrap(profile), Settings())) == []


@pytest.mark.parametrize(
    ("held", "longest", "says"),
    [(60.0, 3.5, []), (60.0, 20.0, ["which may take 21 s"]), (2.0, 20.0, [])],
)
def test_a_gateway_must_wait_for_as_long_as_requests_may_be_held(held, longest, says):
    settings = Settings(longest_hold=longest)

    found = [one.what for one in gateway.look(bootstrap("buffered"), settings, held)]

    assert [told for told in says if any(told in what for what in found)] == says
    assert len(found) == len(says)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"message_timeout": "5s"', '"message_timeout": "0.2s"', "waits 0.2 s for the picker"),
        ('"message_timeout": "5s",', "", "waits 0.2 s for the picker"),
        ('"max_requests": 100000', '"max_requests": 1024', "1,024 requests at once"),
        ('"timeout": "0s", "retry_policy": {"retry_on": "connect-failure,refused-stream"',
         '"retry_policy": {"retry_on": "connect-failure,refused-stream"', "after 15 s"),
        ('"request_body_buffer_limit": 67108864, ', "", "holds 1 MB of a request"),
        ('"request_body_mode": "BUFFERED"', '"request_body_mode": "STREAMED"', "as STREAMED"),
        ('"response_body_mode": "STREAMED"', '"response_body_mode": "NONE"', "as NONE"),
        ('"failure_mode_allow": true', '"failure_mode_allow": false', "answers with 500"),
        (".ExternalProcessor", ".Other", "has no ext_proc filter"),
    ],
)  # fmt: skip
def test_a_limit_that_breaks_prompts_or_waits_is_found(old, new, problem):
    findings = list(gateway.look(edited(old, new), Settings()))

    assert any(problem in finding.what for finding in findings)
    assert all(finding.change for finding in findings)


def test_the_command_says_all_and_ends_with_1_where_something_does_not_work(tmp_path, capsys):
    config, envoy = tmp_path / "fleet.yaml", tmp_path / "envoy.json"
    config.write_text("endpoints: [{url: 'http://127.0.0.1:9'}]")
    envoy.write_text(json.dumps(bootstrap()))

    status = command.main(["--config", str(config), "--envoy", str(envoy)])

    told = capsys.readouterr().out
    assert status == 1
    assert "FAULT    127.0.0.1:9  cannot be asked" in told
    assert "1 faults, 0 warnings, 1 fine" in told


def test_a_file_that_is_wrong_is_said_with_its_field(tmp_path, capsys):
    config = tmp_path / "fleet.yaml"
    config.write_text("endpoints: [{url: a}]")

    assert command.main(["--config", str(config)]) == 2
    assert "endpoints[0].url" in capsys.readouterr().err
