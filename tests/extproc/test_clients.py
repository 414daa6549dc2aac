"""The real client libraries through a real Envoy: what they raise, wait for, and give up on."""

import anthropic
import openai
import pytest
from leadsman_extproc.grants import Usage

pytestmark = pytest.mark.envoy
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def openai_client(stack):
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="x", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(stack):
    with anthropic.Anthropic(base_url=stack.url, api_key="x", max_retries=0) as client:
        yield client


def ask(client, model="any", **more):
    return client.chat.completions.create(model=model, messages=MESSAGES, **more)


def tell(client, model="any", **more):
    return client.messages.create(model=model, max_tokens=9, messages=MESSAGES, **more)


@pytest.fixture
def naps(monkeypatch):
    naps = []
    monkeypatch.setattr("time.sleep", naps.append)
    return naps


def test_openai_streams_and_reads_usage(stack, openai_client):
    chunks = list(ask(openai_client, stream=True, stream_options={"include_usage": True}))

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "word0 word1 word2 word3 word4 "
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 7


def test_openai_reads_usage_of_an_answer_in_one_piece(stack, openai_client):
    answer = ask(openai_client)

    assert (answer.choices[0].message.content, answer.usage.completion_tokens) == ("hi", 5)


def test_openai_raises_its_rate_limit_error_with_our_fields(openai_client):
    with pytest.raises(openai.RateLimitError) as raised:
        ask(openai_client, "refuse-429")

    assert raised.value.code == "would_wait_too_long"
    assert raised.value.body["predicted_wait_s"] == 9.5
    assert raised.value.body["bound_s"] == 5.0
    assert raised.value.response.headers["retry-after"] == "2"


def test_openai_waits_what_was_said_and_comes_back(stack, openai_client, naps):
    with pytest.raises(openai.RateLimitError):
        ask(openai_client.with_options(max_retries=1), "refuse-429")

    assert 1.25 in [nap for nap in naps if nap > 0.1]
    assert len(stack.keeps.decisions) == 2


@pytest.mark.parametrize("status", [429, 529, 503])
def test_openai_falls_back_at_once_where_it_is_told_not_to_retry(stack, openai_client, status):
    with pytest.raises(openai.APIStatusError) as raised:
        ask(openai_client.with_options(max_retries=3), f"refuse-{status}-for-good")

    assert raised.value.status_code == status
    assert len(stack.keeps.decisions) == 1


def test_openai_is_told_which_field_is_wrong(openai_client):
    with pytest.raises(openai.BadRequestError) as raised:
        ask(openai_client, extra_body={"max_queue_wait_s": 1})

    assert raised.value.param == "max_queue_wait_s"


def test_anthropic_streams_and_reads_usage(stack, anthropic_client):
    with anthropic_client.messages.stream(model="any", max_tokens=9, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        usage = stream.get_final_message().usage

    assert text == "word0 word1 word2 word3 word4 "
    assert (usage.output_tokens, usage.cache_read_input_tokens) == (5, 7)
    assert stack.is_settled()
    assert [grant.usage for grant in stack.keeps.grants] == [
        Usage(prompt_tokens=11, completion_tokens=5, cached_tokens=7)
    ]


def test_anthropic_raises_its_overloaded_error_with_our_fields(anthropic_client):
    with pytest.raises(anthropic.OverloadedError) as raised:
        tell(anthropic_client, "refuse-529")

    error = raised.value.body["error"]
    assert (error["type"], error["reason"]) == ("overloaded_error", "overloaded")
    assert raised.value.response.headers["x-llm-d-request-dropped-reason"] == "overloaded"


def test_anthropic_raises_its_rate_limit_error(anthropic_client):
    with pytest.raises(anthropic.RateLimitError) as raised:
        tell(anthropic_client, "refuse-429")

    assert raised.value.body["error"]["retry_after_s"] == 1.25


def test_anthropic_waits_what_was_said_and_comes_back(stack, anthropic_client, naps):
    with pytest.raises(anthropic.OverloadedError):
        tell(anthropic_client.with_options(max_retries=1), "refuse-529")

    assert 1.25 in [nap for nap in naps if nap > 0.1]
    assert len(stack.keeps.decisions) == 2


def test_anthropic_falls_back_at_once_where_it_is_told_not_to_retry(stack, anthropic_client):
    with pytest.raises(anthropic.OverloadedError):
        tell(anthropic_client.with_options(max_retries=3), "refuse-529-for-good")

    assert len(stack.keeps.decisions) == 1


def test_anthropic_is_told_which_field_is_wrong(anthropic_client):
    with pytest.raises(anthropic.BadRequestError) as raised:
        tell(anthropic_client, extra_body={"max_queue_wait_s": "soon"})

    assert raised.value.body["error"]["param"] == "max_queue_wait_s"
