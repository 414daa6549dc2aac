import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from leadsman_bench.player import Planned, Play
from leadsman_bench.traces import TraceRequest


def row(number):
    return TraceRequest(
        at=0.0, input_tokens=40, output_tokens=3, pieces=(0, number, 1000 + number), piece_tokens=16
    )


def planned(number, **more):
    return Planned(id=f"p{number}", at=0.0, row=row(number), model="m", **more)


@asynccontextmanager
async def gateway(answer):
    asked = []

    async def handle(request):
        asked.append((request.headers["x-request-id"], msgspec.json.decode(await request.read())))
        return await answer(request)

    app = web.Application()
    app.router.add_post("/v1/chat/completions", handle)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), asked


def streaming(*chunks):
    async def answer(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            data = chunk if isinstance(chunk, bytes) else msgspec.json.encode(chunk)
            await response.write(b"data: " + data + b"\n\n")
        await response.write_eof()
        return response

    return answer


def delta(**fields):
    return {"choices": [{"delta": fields}], "usage": None}


async def test_a_stream_is_read_to_its_usage():
    usage = {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 16}}
    last = {"choices": [], "usage": usage}
    answer = streaming(delta(role="assistant", content=""), delta(content="a"), last, b"[DONE]")

    async with gateway(answer) as (url, _):
        (one,) = await Play(url, [planned(1)]).run()

    assert (one.status, one.cached_tokens, one.broke) == (200, 16, False)
    assert 0 < one.ttft <= one.ended_at - one.sent_at


async def test_a_role_without_content_is_no_first_token():
    answer = streaming(delta(role="assistant", content=""), b"[DONE]")

    async with gateway(answer) as (url, _):
        (one,) = await Play(url, [planned(1)]).run()

    assert one.ttft is None


async def test_the_body_is_the_conversation_with_its_wishes():
    async with gateway(streaming(b"[DONE]")) as (url, asked):
        await Play(url, [planned(1, max_queue_wait=5.0, max_tokens=256)]).run()

    ((name, body),) = asked
    assert name == "p1"
    assert body["max_queue_wait_s"] == 5.0
    assert body["stream"] is True
    assert body["max_tokens"] == 256
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]


async def test_a_refusal_keeps_its_reason_and_when_to_come_back():
    async def answer(_request):
        headers = {"x-llm-d-request-dropped-reason": "would_wait_too_long", "retry-after": "7"}
        return web.Response(status=429, headers=headers)

    async with gateway(answer) as (url, _):
        play = Play(url, [planned(1)])
        (one,) = await play.run()

    assert (one.status, one.reason, one.retry_after) == (429, "would_wait_too_long", 7.0)
    assert (play.tally.refused, play.tally.served, play.tally.in_flight) == (1, 0, 0)


async def test_milliseconds_go_before_seconds_as_sdks_read_them():
    async def answer(_request):
        return web.Response(status=429, headers={"retry-after": "3", "retry-after-ms": "2250"})

    async with gateway(answer) as (url, _):
        (one,) = await Play(url, [planned(1)]).run()

    assert one.retry_after == 2.25


async def test_a_broken_stream_is_a_failure():
    async def answer(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + msgspec.json.encode(delta(content="a")) + b"\n\n")
        request.transport.abort()
        return response

    async with gateway(answer) as (url, _):
        play = Play(url, [planned(1)])
        (one,) = await play.run()

    assert one.broke
    assert play.tally.failed == 1


async def test_requests_go_out_at_their_time_whoever_still_waits():
    release = asyncio.Event()
    waiting = []

    async def answer(request):
        waiting.append(request)
        if len(waiting) == 3:
            release.set()
        await release.wait()
        return await streaming(delta(content="a"), b"[DONE]")(request)

    async with gateway(answer) as (url, _):
        played = await Play(url, [planned(number) for number in range(3)]).run()

    assert len(waiting) == 3
    assert all(one.status == 200 for one in played)


async def test_a_gateway_that_hangs_up_is_a_failure():
    async def answer(request):
        request.transport.abort()
        return web.Response()

    async with gateway(answer) as (url, _):
        (one,) = await Play(url, [planned(1)]).run()

    assert one.status is None
    assert one.broke


@pytest.mark.parametrize("number", [1, 2])
def test_one_row_makes_one_prompt(number):
    first, second = planned(number), planned(number)

    assert first.body() == second.body()
