"""Refusals as the real client libraries see them."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anthropic
import anyio
import openai
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from leadsman.prediction import Reason, Refused
from leadsman.units import RequestId
from leadsman_extproc.body import Api, BadRequest
from leadsman_extproc.refusals import Reply, bad_request, explain, refusal, too_large

SDKS = [Api.OPENAI, Api.ANTHROPIC]
ANSWERS = {
    "/v1/chat/completions": {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "served"},
            }
        ],
    },
    "/v1/messages": {
        "id": "x",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "served"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}


def refused(status: int = 429, retry_after: float = 7.25, *, retry: bool = True) -> Refused:
    return Refused(
        request=RequestId("r-1"),
        reason=Reason.WOULD_WAIT_TOO_LONG,
        status=status,
        retry_after=retry_after,
        should_retry=retry,
        bound=30.0,
        predicted_wait=41.5,
    )


@dataclass(slots=True)
class Gateway:
    """Refuses the first requests, serves the rest; notes what the client slept."""

    port: int
    replies: list[Reply]
    tried: int = 0
    slept: list[float] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.tried += 1
        if not self.replies:
            return web.json_response(ANSWERS[request.path])
        reply = self.replies.pop(0)
        return web.Response(status=reply.status, headers=reply.headers, body=reply.body)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def ask(self, api: Api, **options: Any) -> str:
        """Ask by the real client; return the text that was served."""
        base = f"http://127.0.0.1:{self.port}"
        talk: Any = [{"role": "user", "content": "hi"}]
        if api is Api.OPENAI:
            async with openai.AsyncOpenAI(api_key="k", base_url=base + "/v1", **options) as client:
                answer = await client.chat.completions.create(model="m", messages=talk)
                return answer.choices[0].message.content or ""
        async with anthropic.AsyncAnthropic(api_key="k", base_url=base, **options) as claude:
            message = await claude.messages.create(model="m", messages=talk, max_tokens=5)
            return message.content[0].text  # type: ignore[union-attr]


@pytest.fixture
async def gateway(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    gateway = Gateway(port=0, replies=[])
    app = web.Application()
    app.router.add_post("/{path:.*}", gateway.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    gateway.port = runner.addresses[0][1]
    monkeypatch.setattr(anyio, "sleep", gateway.sleep)
    yield gateway
    await runner.cleanup()


@asynccontextmanager
async def refusing(error: type[Exception]) -> AsyncIterator[list[Any]]:
    caught: list[Any] = []
    with pytest.raises(error) as raised:
        yield caught
    caught.append(raised.value)


@pytest.mark.parametrize("api", SDKS)
async def test_a_client_waits_what_it_was_told_and_is_served(gateway, api):
    gateway.replies = [refusal(refused(retry_after=7.25), api)]

    served = await gateway.ask(api)

    assert (served, gateway.slept, gateway.tried) == ("served", [7.25], 2)


@pytest.mark.parametrize(
    ("api", "status", "error"),
    [
        (Api.OPENAI, 429, openai.RateLimitError),
        (Api.OPENAI, 503, openai.InternalServerError),
        (Api.OPENAI, 529, openai.InternalServerError),
        (Api.ANTHROPIC, 429, anthropic.RateLimitError),
        (Api.ANTHROPIC, 529, anthropic._exceptions.OverloadedError),
        (Api.ANTHROPIC, 503, anthropic._exceptions.ServiceUnavailableError),
    ],
)
async def test_a_client_that_must_not_retry_raises_its_own_error_with_our_fields(
    gateway, api, status, error
):
    gateway.replies = [refusal(refused(status, retry=False), api)]

    async with refusing(error) as caught:
        await gateway.ask(api)

    told = caught[0].body if api is Api.OPENAI else caught[0].body["error"]
    assert told["reason"] == "would_wait_too_long"
    assert (told["predicted_wait_s"], told["bound_s"]) == (41.5, 30.0)
    assert (told["retry_after_s"], told["retry"]) == (7.25, False)
    assert (gateway.slept, gateway.tried) == ([], 1)


def test_a_refusal_explains_itself_in_fields():
    share = replace(refused(), reason=Reason.OVER_SHARE, policy="shares", read={"tenant_used": 0.5})

    told = explain(replace(share, predicted_wait=None, bound=None))

    assert told == {
        "reason": "over_share",
        "policy": "shares",
        "predicted_wait_s": None,
        "bound_s": None,
        "retry_after_s": 7.25,
        "retry": True,
        "read": {"tenant_used": 0.5},
    }
    assert json.loads(refusal(share, Api.OPENAI).body)["error"]["read"] == told["read"]


@pytest.mark.parametrize("api", SDKS)
async def test_a_client_falls_back_at_once_from_a_wait_that_it_would_not_honour(gateway, api):
    gateway.replies = [refusal(refused(retry_after=121.0), api)]

    async with refusing(openai.RateLimitError if api is Api.OPENAI else anthropic.RateLimitError):
        await gateway.ask(api)

    assert (gateway.slept, gateway.tried) == ([], 1)


@pytest.mark.parametrize("api", SDKS)
async def test_a_bad_request_names_the_field_and_is_not_tried_again(gateway, api):
    bad = BadRequest(api=api, message="max_queue_wait_s must be …", param="max_queue_wait_s")
    gateway.replies = [bad_request(bad)]

    kind = openai.BadRequestError if api is Api.OPENAI else anthropic.BadRequestError
    async with refusing(kind) as caught:
        await gateway.ask(api)

    told = caught[0].body if api is Api.OPENAI else caught[0].body["error"]
    assert (told["type"], told["param"]) == ("invalid_request_error", "max_queue_wait_s")
    assert gateway.tried == 1


@pytest.mark.parametrize("api", SDKS)
async def test_a_body_above_the_cap_is_413_and_not_tried_again(gateway, api):
    gateway.replies = [bad_request(too_large(api, 1000))]

    kind = openai.APIStatusError if api is Api.OPENAI else anthropic.APIStatusError
    async with refusing(kind) as caught:
        await gateway.ask(api)

    assert (caught[0].status_code, gateway.tried) == (413, 1)


@pytest.mark.parametrize("api", SDKS)
@given(wait=st.floats(allow_nan=True), asks_retry=st.booleans())
def test_a_wait_is_always_told_finite_and_in_whole_numbers(api, wait, asks_retry):
    reply = refusal(refused(retry_after=wait, retry=asks_retry), api)

    seconds, millis = int(reply.headers["retry-after"]), int(reply.headers["retry-after-ms"])
    assert 1 <= seconds <= 86400
    assert (seconds - 1) * 1000 < millis <= seconds * 1000
    assert (reply.headers["x-should-retry"] == "true") == (asks_retry and seconds <= 120)
    assert json.loads(reply.body)["error"]["retry_after_s"] == millis / 1000


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("api", SDKS)
def test_every_reason_is_told_to_people_and_to_machines(api, reason):
    said = Refused(
        request=RequestId("r"), reason=reason, status=503, retry_after=2.0, should_retry=True
    )

    reply = refusal(said, api)

    error = json.loads(reply.body)["error"]
    assert error["reason"] == reply.headers["x-llm-d-request-dropped-reason"] == reason
    assert error["message"].endswith("Retry after 2 s.")
    assert (error["predicted_wait_s"], error["bound_s"]) == (None, None)
