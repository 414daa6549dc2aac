import json

import aiohttp
import pytest

from .cluster import SERVED
from .conftest import NAMESPACE
from .traffic import LONG, is_whole, until_answered


async def test_a_request_goes_to_the_pod_that_was_picked(cluster, engines):
    served = [(await cluster.ask(to=engine)).served for engine in engines * 5]

    assert served == engines * 5


async def test_the_gateway_says_that_it_has_taken_the_pool(cluster):
    [parent] = cluster.get("InferencePool", "chat")["status"]["parents"]

    conditions = {one["type"]: one["status"] for one in parent["conditions"]}
    assert conditions == {"Accepted": "True", "ResolvedRefs": "True"}
    assert parent["parentRef"]["name"] == "gw"


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize("size", [0, 8 << 20])
async def test_a_refusal_reaches_the_client_whole(cluster, status, size):
    name = f"hasty-{status}-{size}"
    spec = {"match": {"headers": [{"name": "x-case", "value": name}]}, "ttft": "1ms"}
    cluster.create(
        {
            "apiVersion": "leadsman.dev/v1alpha1",
            "kind": "LatencyBudget",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": spec | {"statuses": {"wouldMissTtft": status}},
        }
    )

    body = {"user": "x" * size}
    answer = await until_answered(cluster, lambda one: one.status == status, x_case=name, body=body)

    error = json.loads(answer.body)["error"]
    assert len(answer.body) == int(answer.headers["content-length"])
    assert error["reason"] == "would_miss_ttft"
    assert answer.headers["x-llm-d-request-dropped-reason"] == error["reason"]
    assert answer.headers["x-should-retry"] == str(error["retry"]).lower()
    assert int(answer.headers["retry-after-ms"]) == round(error["retry_after_s"] * 1000)
    assert answer.served is None
    cluster.delete("LatencyBudget", name)


async def test_a_model_that_nobody_serves_is_503(cluster):
    answer = await cluster.ask(body={"model": "nobody's"})

    assert (answer.status, json.loads(answer.body)["error"]["reason"]) == (503, "no_endpoint")


async def test_a_body_of_8_mb_arrives_whole(cluster, engines):
    small = await cluster.ask()

    large = await cluster.ask(body={"user": "x" * (8 << 20)})

    assert (large.status, large.served in engines) == (200, True)
    assert json.loads(large.body)["usage"] == json.loads(small.body)["usage"]


async def test_a_request_without_a_body_is_served(cluster, engines):
    answer = await cluster.get_models()

    assert (answer.status, answer.served in engines) == (200, True)
    assert json.loads(answer.body)["data"][0]["id"] == cluster.model


async def test_a_stream_of_events_flows_while_the_engine_is_still_at_it(cluster, engines):
    body = {"model": cluster.model, "prompt": "x", **LONG}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{cluster.url}/v1/completions", json=body) as answer,
    ):
        first = await answer.content.readuntil(b"\n\n")
        async with session.get(f"http://{answer.headers[SERVED]}/metrics") as page:
            meanwhile = await page.text()
        rest = await answer.content.read()

    assert first.startswith(b"data: {")
    assert "vllm:num_requests_running{" in meanwhile
    assert running(meanwhile) == 1
    assert rest.endswith(b"data: [DONE]\n\n")
    assert (first + rest).count(b"data: {") >= LONG["max_tokens"]


def running(page):
    lines = [line for line in page.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


async def test_all_that_was_granted_is_over_once_all_is_answered(cluster):
    before = cluster.counted("chat")
    answers = [await cluster.ask(body={"stream": True}) for _ in range(10)]

    after = cluster.counted("chat")

    assert all(is_whole(one) for one in answers)
    more = {
        name: count
        for name, count in (after - before).items()
        if name.startswith(("decisions", "outcomes", "fallbacks", "refusals", "errors"))
    }
    assert more == {"decisions admitted": 10, "outcomes finished": 10}
