import asyncio
import hashlib
import io
import json
import urllib.parse

import aiohttp
import pytest
from leadsman.records import Outcome
from leadsman_extproc.grants import Usage

pytestmark = pytest.mark.envoy
CHAT = "/v1/chat/completions"


def chat(model="any", *, stream=True, text="hello"):
    return {
        "model": model,
        "stream": stream,
        "messages": [{"role": "user", "content": text}],
    }


async def post(stack, body, *, path=CHAT, headers=None):
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with (
        aiohttp.ClientSession() as session,
        session.post(stack.url + path, data=data, headers=headers or {}) as answer,
    ):
        return answer.status, answer.headers, await answer.read()


async def test_a_stream_of_events_comes_whole_and_is_graded(stack):
    status, headers, body = await post(stack, chat())

    assert status == 200
    assert [f"word{n} ".encode() in body for n in range(5)] == [True] * 5
    assert body.endswith(b"data: [DONE]\n\n")
    assert stack.is_settled()
    [grant] = stack.keeps.grants
    assert grant.outcome is Outcome.FINISHED
    assert 0 < grant.ttft < 5
    assert grant.usage == Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=7)
    assert headers["x-session"] == grant.request.id


async def test_an_answer_in_one_piece_has_its_usage_but_no_first_token(stack):
    status, _, body = await post(stack, chat(stream=False))

    assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 5)
    assert stack.is_settled()
    [grant] = stack.keeps.grants
    assert grant.outcome is Outcome.FINISHED
    assert grant.first_token_at is None
    assert grant.usage == Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=7)


@pytest.mark.parametrize("size", [1 << 20, 8 << 20])
async def test_a_long_body_reaches_the_engine_byte_for_byte(stack, size):
    body = json.dumps(chat(text="x" * size)).encode()

    status, _, _ = await post(stack, body)

    assert status == 200
    assert stack.engine.bodies == [hashlib.sha256(body).hexdigest()]


async def test_a_body_above_the_cap_is_refused_with_413(stack):
    status, headers, body = await post(stack, chat(text="x" * (17 << 20)))

    assert status == 413
    assert headers["x-should-retry"] == "false"
    assert json.loads(body)["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
async def test_a_request_without_a_body_passes(stack, method):
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, stack.url + "/v1/models") as answer,
    ):
        status = answer.status

    assert status == 200
    assert stack.keeps.decisions == []


async def test_traffic_that_is_not_for_a_model_passes(stack):
    status, _, _ = await post(stack, {"anything": 1}, path="/v1/unknown")

    assert status == 200
    assert stack.keeps.decisions == []


@pytest.mark.parametrize("body", [b'{"model":"m"', b"\xff", b"[]", b"[" * 2000 + b"]" * 2000])
async def test_a_body_that_nobody_can_read_is_a_400_in_the_apis_shape(stack, body):
    status, headers, answer = await post(stack, body)

    assert status == 400
    assert headers["content-type"] == "application/json"
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_a_refusal_reaches_the_client_with_all_its_headers(stack, status):
    got, headers, body = await post(stack, chat(f"refuse-{status}"))

    assert got == status
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1250")
    assert headers["x-should-retry"] == "true"
    error = json.loads(body)["error"]
    assert headers["x-llm-d-request-dropped-reason"] == error["reason"]
    assert (error["predicted_wait_s"], error["bound_s"]) == (9.5, 5.0)


async def send(stack, body, *headers):
    """Send a request by hand, so that the connection can be dropped at any moment."""
    url = urllib.parse.urlsplit(stack.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    raw = json.dumps(body).encode()
    lines = ["host: x", f"content-length: {len(raw)}", *headers]
    writer.write("\r\n".join([f"POST {CHAT} HTTP/1.1", *lines, "", ""]).encode() + raw)
    return reader, writer


async def test_a_client_that_leaves_before_the_response_gives_its_grant_back(stack):
    _, writer = await send(stack, chat(), "x-status: hang")
    await asyncio.to_thread(stack.comes, lambda: stack.engine.hanging)

    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    assert await asyncio.to_thread(stack.is_settled)
    assert [grant.outcome for grant in stack.keeps.grants] == [Outcome.CLIENT_GONE]
    assert stack.comes(lambda: stack.engine.gone)


def broken_off(stack, witness, known=Outcome.CLIENT_GONE):
    """Say what is known of a broken stream: the access log has the last word where we ended it."""
    return known if stack.profile == "buffered" and not witness else Outcome.CUT_OFF


@pytest.mark.parametrize("witness", [False, True])
async def test_a_client_that_leaves_during_the_response_gives_its_grant_back(stack, witness):
    stack.picker.witnesses = witness
    reader, writer = await send(stack, chat(), "x-pace: 0.05", "x-chunks: 1000")
    await reader.readuntil(b"word1")

    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    assert await asyncio.to_thread(stack.is_settled)
    assert [grant.outcome for grant in stack.keeps.grants] == [broken_off(stack, witness)]
    assert stack.comes(lambda: stack.engine.gone)


@pytest.mark.parametrize("witness", [False, True])
async def test_an_engine_that_dies_in_the_middle_of_its_answer_gives_the_grant_back(stack, witness):
    stack.picker.witnesses = witness

    with pytest.raises(aiohttp.ClientPayloadError):
        await post(stack, chat(), headers={"x-pace": "0.05", "x-dies": "2"})

    assert stack.is_settled()
    known = Outcome.ENGINE_GONE
    assert [grant.outcome for grant in stack.keeps.grants] == [broken_off(stack, witness, known)]


async def test_the_grant_moves_to_the_engine_that_served_in_place_of_a_dead_one(stack):
    status, _, _ = await post(stack, chat("on-2"))

    assert status == 200
    assert stack.is_settled()
    first, last = stack.ended()
    assert (first.worker, first.outcome) == ("2", Outcome.ENGINE_GONE)
    assert last.worker in {"0", "1"}
    assert last.outcome is Outcome.FINISHED


@pytest.mark.parametrize("status", [400, 429, 503])
async def test_what_the_engine_itself_refuses_is_its_own_refusal(stack, status):
    got, _, body = await post(stack, chat(), headers={"x-status": str(status)})

    assert (got, json.loads(body)) == (status, {"error": {"message": "no"}})
    assert stack.is_settled()
    assert [grant.outcome for grant in stack.keeps.grants] == [Outcome.ENGINE_REFUSED]


@pytest.mark.parametrize(("model", "cause"), [("slow", "deadline"), ("broken", "error")])
async def test_without_a_decision_in_time_the_least_loaded_serves(stack, model, cause):
    status, _, _ = await post(stack, chat(model))

    assert status == 200
    assert stack.picking.counts.fallbacks == {cause: 1}
    assert [decision.because for decision in stack.keeps.decisions] == ["least_loaded"]


async def test_only_a_witness_is_read_chunk_by_chunk(stack):
    await post(stack, chat(), headers={"x-pace": "0.02"})
    stack.is_settled()
    unread = [record.tokens for record in stack.tokens()]
    stack.forget()
    stack.picker.witnesses = True

    await post(stack, chat(), headers={"x-pace": "0.02"})

    assert stack.is_settled()
    assert unread == [1]
    assert [record.tokens for record in stack.tokens()] == [1, 2, 3, 4, 5]


async def test_many_paced_streams_at_once_come_whole(stack):
    pace = {"x-pace": "0.001", "x-chunks": "20"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(number):
            stack.picker.witnesses = number % 10 == 0
            body = chat(f"on-{number % 2}", text=f"{number} " * 100)
            async with session.post(stack.url + CHAT, json=body, headers=pace) as answer:
                return (await answer.read()).count(b"data: ")

        counts = await asyncio.gather(*(one(number) for number in range(150)))

    assert counts == [23] * 150
    assert await asyncio.to_thread(stack.is_settled)
    assert {grant.outcome for grant in stack.keeps.grants} == {Outcome.FINISHED}
    assert len(stack.keeps.grants) == 150


async def test_an_id_that_is_in_flight_already_is_not_used_twice(stack):
    headers = {"x-request-id": "mine", "x-pace": "0.05"}

    answers = await asyncio.gather(*(post(stack, chat(), headers=headers) for _ in range(3)))

    assert [status for status, _, _ in answers] == [200, 200, 200]
    assert stack.is_settled()
    assert len({grant.request.id for grant in stack.keeps.grants}) == 3


async def test_a_request_in_chunks_without_a_length_is_read_whole(stack):
    body = json.dumps(chat(text="y" * 300_000)).encode()

    async def pieces():
        for start in range(0, len(body), 10_000):
            yield body[start : start + 10_000]

    async with (
        aiohttp.ClientSession() as session,
        session.post(stack.url + CHAT, data=pieces()) as answer,
    ):
        status = answer.status

    assert status == 200
    assert stack.engine.bodies == [hashlib.sha256(body).hexdigest()]


async def test_a_request_with_trailers_is_read_whole(stack):
    url = urllib.parse.urlsplit(stack.url)
    body = json.dumps(chat(stream=False)).encode()
    reader, writer = await asyncio.open_connection(url.hostname, url.port)

    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        b"trailer: x-last\r\nconnection: close\r\n\r\n"
        + b"%x\r\n%s\r\n0\r\nx-last: 1\r\n\r\n"
        % (len(body), body)
    )
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert stack.engine.bodies == [hashlib.sha256(body).hexdigest()]
