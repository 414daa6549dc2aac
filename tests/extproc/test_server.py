"""A picker in trouble, behind a real Envoy: no engines, dead ones, and its own end."""

import asyncio

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from leadsman.records import Outcome

pytestmark = pytest.mark.envoy
CHAT = "/v1/chat/completions"
BODY = {"model": "any", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
SERVING = health_pb2.HealthCheckResponse.SERVING
NAMES = [
    "",
    "liveness",
    "readiness",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "inference-extension",
]


async def post(stack, **headers):
    async with (
        aiohttp.ClientSession() as session,
        session.post(stack.url + CHAT, json=BODY, headers=headers) as answer,
    ):
        return answer.status, await answer.read()


async def health(stack, name):
    async with grpc.aio.insecure_channel(f"127.0.0.1:{stack.server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status


@pytest.mark.parametrize("profile", ["buffered", "duplex"])
async def test_where_every_engine_is_dead_envoys_503_gives_the_grant_back(behind, profile):
    stack, _ = behind(profile, engines=0, dead=2)

    status, body = await post(stack)

    assert (status, b"upstream connect error" in body) == (503, True)
    assert stack.is_settled()
    assert [grant.outcome for grant in stack.keeps.grants] == [Outcome.ENGINE_GONE]


@pytest.mark.parametrize("profile", ["buffered", "duplex"])
async def test_without_any_worker_the_answer_is_503_and_readiness_is_lost(behind, profile):
    stack, _ = behind(profile, engines=0, dead=0)

    status, body = await post(stack)
    serving = {name for name in NAMES if await health(stack, name) == SERVING}

    assert (status, b"no_endpoint" in body) == (503, True)
    assert serving == {"liveness"}


async def test_health_answers_under_every_name_that_gateways_ask_for(behind):
    stack, _ = behind("duplex", engines=1)

    statuses = [await health(stack, name) for name in NAMES]

    assert statuses == [SERVING] * len(NAMES)


@pytest.mark.parametrize("profile", ["buffered", "duplex"])
async def test_a_picker_that_is_stopped_lets_streams_in_flight_finish(behind, profile):
    stack, stop = behind(profile, engines=1)
    stack.picker.witnesses = True

    streaming = asyncio.create_task(post(stack, **{"x-pace": "0.02", "x-chunks": "50"}))
    await asyncio.to_thread(stack.comes, lambda: len(stack.tokens()))
    await asyncio.to_thread(stop)
    status, body = await streaming

    assert status == 200
    assert body.endswith(b"data: [DONE]\n\n")
    assert [grant.outcome for grant in stack.keeps.grants] == [Outcome.FINISHED]


async def test_a_stream_that_was_ended_early_outlives_its_picker(behind):
    stack, stop = behind("buffered", engines=1)

    streaming = asyncio.create_task(post(stack, **{"x-pace": "0.02", "x-chunks": "50"}))
    await asyncio.to_thread(stack.comes, lambda: len(stack.tokens()))
    await asyncio.to_thread(stop)
    _, body = await streaming

    assert body.endswith(b"data: [DONE]\n\n")


async def test_after_readiness_is_lost_new_calls_are_taken_for_as_long_as_is_given_notice(behind):
    stack, stop = behind("duplex", engines=1, notice=3.0)

    stopping = asyncio.create_task(asyncio.to_thread(stop))
    while await health(stack, "readiness") == SERVING:  # noqa: ASYNC110  # it tells nobody
        await asyncio.sleep(0.01)
    status, body = await post(stack)
    await stopping

    assert (status, body.endswith(b"data: [DONE]\n\n")) == (200, True)
    assert stack.picking.counts.decisions == {"admitted": 1}
