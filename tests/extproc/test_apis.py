"""Every API through a real Envoy, by the real client libraries where there are such."""

import json
import urllib.error
import urllib.request

import anthropic
import openai
import pytest
from leadsman.records import Outcome

pytestmark = pytest.mark.envoy
MESSAGES = [{"role": "user", "content": "hello"}]
LONG = {"vllm_xargs": {"output_tokens": 4}}


@pytest.fixture
def client(stack):
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def post(stack, path, body):
    """Status, headers and body of an answer."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(stack.url + path, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.headers, answer.read()


def only_grant(stack):
    assert stack.is_settled()
    [grant] = stack.keeps.grants
    assert grant.outcome is Outcome.FINISHED
    return grant


def counted(usage):
    return usage.prompt_tokens, usage.completion_tokens


def test_a_response_streams_and_its_first_delta_is_its_first_token(stack, client):
    events = list(client.responses.create(model="any", input="hello", stream=True, extra_body=LONG))

    assert [event.sequence_number for event in events] == list(range(len(events)))
    whole = events[-1].response
    assert (whole.status, events[-1].type) == ("completed", "response.completed")
    assert whole.output_text == "".join(
        event.delta for event in events if event.type == "response.output_text.delta"
    )
    grant = only_grant(stack)
    assert grant.ttft is not None
    assert counted(grant.usage) == (whole.usage.input_tokens, whole.usage.output_tokens)


def test_a_response_in_one_piece_has_its_usage(stack, client):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "7"},
    ]
    tool = {"type": "function", "name": "f", "parameters": {}, "strict": None}

    whole = client.responses.create(
        model="any", instructions="Be brief.", input=items, tools=[tool], extra_body=LONG
    )

    grant = only_grant(stack)
    assert counted(grant.usage) == (whole.usage.input_tokens, 4)
    assert grant.first_token_at is None


def test_a_response_that_goes_on_is_sent_on_and_refused_by_the_engine_alone(stack, client):
    with pytest.raises(openai.NotFoundError, match="resp_1"):
        client.responses.create(model="any", input="go on", previous_response_id="resp_1")

    assert stack.is_settled()
    [grant] = stack.keeps.grants
    assert grant.outcome is Outcome.ENGINE_REFUSED


def test_embeddings_have_their_first_token_with_their_answer(stack, client):
    answer = client.embeddings.create(model="any", input=["a", "b", "c"], encoding_format="float")

    assert len(answer.data) == 3
    grant = only_grant(stack)
    assert grant.ttft is not None
    assert grant.usage.prompt_tokens == answer.usage.prompt_tokens
    assert not grant.usage.completion_tokens


@pytest.mark.parametrize("prompt", [["a", "bc"], [[1, 2], [3]]])
def test_several_prompts_of_one_completion_are_one_request_here(stack, client, prompt):
    answer = client.completions.create(model="any", prompt=prompt, extra_body=LONG)

    assert [choice.index for choice in answer.choices] == [0, 1]
    assert counted(only_grant(stack).usage) == (answer.usage.prompt_tokens, 8)


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_in_and_tokens_out_are_seen(stack, stream):
    body = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 4}, **LONG, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}

    status, *_ = post(stack, "/inference/v1/generate", body)

    assert status == 200
    grant = only_grant(stack)
    assert counted(grant.usage) == (3, 4)
    assert (grant.ttft is not None) == stream


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", [{"text": "hello"}, {"input_ids": [1, 2, 3, 4, 5]}])
def test_sglangs_own_api_is_seen_as_the_engine_answers_it(stack, prompt, stream):
    sampling = {"max_new_tokens": 4, "ignore_eos": True}

    status, *_ = post(stack, "/generate", {**prompt, "sampling_params": sampling, "stream": stream})

    assert status == 200
    grant = only_grant(stack)
    assert (counted(grant.usage), grant.usage.cached_tokens) == ((5, 4), 0)
    assert (grant.ttft is not None) == stream


def test_tokens_are_counted_without_being_priced(stack):
    with anthropic.Anthropic(base_url=stack.url, api_key="x", max_retries=0) as client:
        counted = client.messages.count_tokens(model="any", messages=MESSAGES)

    assert counted.input_tokens > 0
    assert stack.keeps.decisions == []


def test_an_unknown_path_goes_to_the_least_loaded(stack):
    status, *_ = post(stack, "/v1/rerank", {"model": "any", "query": "q"})

    assert status == 200
    assert stack.keeps.decisions == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "a"}),
        ("/v1/embeddings", {"input": "a"}),
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/inference/v1/generate", {"token_ids": [1]}),
        ("/generate", {"text": "a"}),
        ("/v1/messages", {"messages": MESSAGES}),
    ],
)
def test_every_api_is_refused_in_its_shape_and_told_what_nobody_can_read(stack, path, body):
    refused, headers, told = post(stack, path, body | {"model": "refuse-429"})
    broken, _, wrong = post(stack, path, body | {"model": "any", "max_queue_wait_s": 1})

    of_anthropic = path == "/v1/messages"
    assert (refused, broken, headers["retry-after"]) == (429, 400, "2")
    assert [("type" in json.loads(said)) for said in (told, wrong)] == [of_anthropic] * 2
    assert json.loads(told)["error"]["type"] == "rate_limit_error"
    assert json.loads(wrong)["error"]["param"] == "max_queue_wait_s"


def test_the_sdk_raises_our_refusal_of_a_response(client):
    with pytest.raises(openai.RateLimitError) as raised:
        client.responses.create(model="refuse-429", input="hello")

    assert raised.value.code == "would_wait_too_long"
    assert json.loads(raised.value.response.content)["error"]["bound_s"] == 5.0
