"""The Envoy that stands beside a picker in one pod: it knows no engine but those it is sent to."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from leadsman.records import Outcome
from leadsman_bench import standalone

CHART = Path(__file__).parents[2] / "helm" / "leadsman"
CHAT = "/v1/chat/completions"
NAMED = "x-gateway-destination-endpoint"


def chat(model):
    return {"model": model, "stream": True, "messages": [{"role": "user", "content": "hello"}]}


async def post(stack, model, **headers):
    async with (
        aiohttp.ClientSession() as session,
        session.post(stack.url + CHAT, json=chat(model), headers=headers) as answer,
    ):
        return answer.status, await answer.read()


def test_what_the_chart_carries_is_what_the_definition_makes():
    carried = (CHART / "files" / "envoy.yaml").read_text()

    assert carried == standalone.written(), "run `make generate`"


@pytest.mark.envoy
async def test_a_request_goes_where_the_picker_says_and_is_followed_to_its_end(behind):
    stack, _ = behind("buffered", lists=False, engines=2)

    answers = [await post(stack, f"on-{number}") for number in (0, 1, 1)]

    assert [(status, body.endswith(b"[DONE]\n\n")) for status, body in answers] == [(200, True)] * 3
    assert await asyncio.to_thread(stack.is_settled)
    # Each thread of Envoy's sends its access log when it likes.
    assert sorted(grant.worker for grant in stack.keeps.grants) == ["0", "1", "1"]
    assert {grant.outcome for grant in stack.keeps.grants} == {Outcome.FINISHED}


@pytest.mark.envoy
async def test_a_client_cannot_name_the_engine_not_even_while_the_picker_is_away(behind):
    other, _ = behind("buffered", engines=1)
    named = {NAMED: other.picker.seen["0"].endpoint}
    stack, stop = behind("buffered", lists=False, engines=1)

    served, _ = await post(stack, "any", **named)
    await asyncio.to_thread(stop)
    refused, _ = await post(stack, "any", **named)

    assert (served, refused) == (200, 503)
    assert other.engine.bodies == []
