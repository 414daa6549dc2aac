"""Reading bodies: the shapes that clients send, and the ones that nobody can read."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.keys import MultimodalItem
from leadsman_extproc.bodies import read_body
from leadsman_extproc.body import (
    Api,
    BadRequest,
    Body,
    ChatPrompt,
    NotForUs,
    RawPrompts,
    ResponsesPrompt,
)

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"
VLLM = "/inference/v1/generate"
SGLANG = "/generate"
USER = [{"role": "user", "content": "hi"}]


def read(path: str, **fields: object) -> Body | NotForUs | BadRequest:
    return read_body(path, json.dumps(fields).encode())


def prompts(prompt: object) -> RawPrompts:
    body = read(COMPLETION, model="m", prompt=prompt)
    assert isinstance(body, Body)
    assert isinstance(body.prompt, RawPrompts)
    return body.prompt


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b'{"model":"test-model"', id="cut short"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b'{"model":"m","messages":[],"user":"\xff"}', id="invalid UTF-8 inside"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'"text"', id="a string"),
        pytest.param(b"[" * 2000 + b"]" * 2000, id="2,000 lists in each other"),
        pytest.param(b'{"x":' * 10**5 + b"1" + b"}" * 10**5, id="100,000 objects in each other"),
        pytest.param(b'{"model":"m","messages":[{"role":"user"}]} {}', id="two bodies"),
    ],
)
@pytest.mark.parametrize(
    ("path", "api"), [(CHAT, Api.OPENAI), (COMPLETION, Api.OPENAI), (MESSAGES, Api.ANTHROPIC)]
)
def test_a_body_that_is_no_json_object_is_a_bad_request_in_the_shape_of_the_api(path, api, raw):
    read = read_body(path, raw)

    assert isinstance(read, BadRequest)
    assert (read.status, read.api, read.param) == (400, api, None)


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        pytest.param("/v1/embeddings", b'{"model":"m"}', id="a path that is not ours"),
        pytest.param("/v1/messages/count_tokens", b"{}", id="a path below ours"),
        pytest.param("/healthz", b"not json", id="not JSON where nobody said JSON"),
        pytest.param(CHAT, b"", id="no body"),
        pytest.param(CHAT, b'{"messages":[{"role":"user"}]}', id="no model"),
        pytest.param(CHAT, b'{"model":null,"messages":[]}', id="the model is null"),
        pytest.param(CHAT, b'{"model":"m","prompt":"x"}', id="no messages"),
        pytest.param(COMPLETION, b'{"model":"m"}', id="no prompt"),
        pytest.param(MESSAGES, b'{"model":"m","max_tokens":5}', id="no conversation"),
    ],
)
def test_what_is_no_prompt_for_a_model_passes_through(path, raw):
    read = read_body(path, raw)

    assert isinstance(read, NotForUs)


@pytest.mark.parametrize(
    "path",
    [
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v2/embed",
        "/tokenize",
        "/v1/audio/transcriptions",
        "/v1/messages/count_tokens",
        "/v1/responses/resp_1/cancel",
        "/v1/chat/completions/render",
        "/inference/v1/abort_requests",
        "/abort_requests",
    ],
)
def test_what_is_asked_of_an_engine_beside_its_answers_passes_through(path):
    read_ = read(path, model="m", messages=USER, prompt="x", input="x", query="x", text="x")

    assert isinstance(read_, NotForUs)


def priced(path: str, **fields: object) -> Body:
    body = read(path, **fields)
    assert isinstance(body, Body)
    return body


def raw(path: str, **fields: object) -> RawPrompts:
    body = priced(path, **fields)
    assert isinstance(body.prompt, RawPrompts)
    return body.prompt


def test_a_responses_request_is_read_with_its_own_words_for_limits():
    body = priced(
        RESPONSES,
        model="m",
        input="hi",
        max_output_tokens=7,
        stream=True,
        prompt_cache_key="c",
        max_queue_wait_s=30,
    )

    assert isinstance(body.prompt, ResponsesPrompt)
    assert body.prompt.items == [{"role": "user", "content": "hi"}]
    assert (body.max_tokens, body.stream, body.session, body.max_queue_wait) == (7, True, "c", 30)
    assert not body.prompt.goes_on


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_a_responses_request_that_goes_on_says_so(name):
    body = priced(RESPONSES, model="m", input=[*USER], **{name: "resp_1"})

    assert isinstance(body.prompt, ResponsesPrompt)
    assert body.prompt.goes_on


@pytest.mark.parametrize("given", [5, {"a": 1}, ["hi"], [None]])
def test_an_input_that_is_no_list_of_items_is_a_bad_request_that_names_it(given):
    read_ = read(RESPONSES, model="m", input=given)

    assert isinstance(read_, BadRequest)
    assert (read_.api, read_.param) == (Api.OPENAI, "input")


@pytest.mark.parametrize(
    ("given", "texts", "ids"),
    [
        ("a", ("a",), []),
        (["a", "b"], ("a", "b"), []),
        ([1, 2], (), [[1, 2]]),
        ([[1], [2, 3]], (), [[1], [2, 3]]),
    ],
)
def test_what_is_to_be_embedded_has_any_of_four_shapes_and_ends_with_its_prefill(given, texts, ids):
    body = priced(EMBEDDINGS, model="m", input=given)

    assert isinstance(body.prompt, RawPrompts)
    assert body.prompt.texts == texts
    assert [list(part) for part in body.prompt.ids] == ids
    assert body.max_tokens == 1


def test_a_conversation_to_be_embedded_is_not_asked_to_go_on():
    body = priced(EMBEDDINGS, model="m", messages=USER)

    assert isinstance(body.prompt, ChatPrompt)
    assert body.prompt.fields["add_generation_prompt"] is False


@pytest.mark.parametrize("given", [5, [], [[]], ["a", 1], [-1]])
def test_an_input_of_a_wrong_type_is_a_bad_request_that_names_it(given):
    read_ = read(EMBEDDINGS, model="m", input=given)

    assert isinstance(read_, BadRequest)
    assert read_.param == "input"


def test_tokens_in_are_read_with_where_the_images_stand():
    features = {
        "mm_hashes": {"image": ["a", "b"], "audio": ["c"]},
        "mm_placeholders": {
            "image": [{"offset": 1, "length": 2}, {"offset": 7, "length": 2}],
            "audio": [{"offset": 5, "length": 1}],
        },
    }
    body = priced(VLLM, token_ids=list(range(9)), features=features, sampling_params={})

    assert isinstance(body.prompt, RawPrompts)
    assert [list(ids) for ids in body.prompt.ids] == [list(range(9))]
    assert set(body.prompt.items) == {
        MultimodalItem(content="a", offset=1),
        MultimodalItem(content="b", offset=7),
        MultimodalItem(content="c", offset=5),
    }
    assert (body.model, body.max_tokens) == (None, 16)


@pytest.mark.parametrize(
    "features", [5, {}, {"mm_hashes": {"image": 5}}, {"mm_hashes": {}, "mm_placeholders": 1}]
)
def test_features_that_say_nothing_are_no_images(features):
    assert raw(VLLM, token_ids=[1], features=features).items == ()


@pytest.mark.parametrize(
    ("sampling", "limit", "reads"),
    [
        ({"max_tokens": 5}, 5, True),
        ({"max_tokens": None}, None, True),
        ({"prompt_logprobs": 1}, 16, False),
        (None, 16, True),
    ],
)
def test_tokens_in_are_sampled_as_vllm_samples_them(sampling, limit, reads):
    body = priced(VLLM, token_ids=[1], sampling_params=sampling)

    assert (body.max_tokens, body.reads_cache) == (limit, reads)


@pytest.mark.parametrize(
    ("fields", "texts", "ids"),
    [
        ({"text": "a"}, ("a",), []),
        ({"text": ["a", "b"]}, ("a", "b"), []),
        ({"input_ids": [1, 2]}, (), [[1, 2]]),
        ({"input_ids": [[1], [2, 3]]}, (), [[1], [2, 3]]),
    ],
)
def test_sglangs_own_api_takes_texts_and_ids_one_or_many(fields, texts, ids):
    prompt = raw(SGLANG, **fields)

    assert prompt.texts == texts
    assert [list(part) for part in prompt.ids] == ids


@pytest.mark.parametrize(
    ("sampling", "limit"),
    [
        (None, 128),
        ({"max_new_tokens": 5}, 5),
        ([{"max_new_tokens": 5}, {"max_new_tokens": 9}], 9),
        ([], 128),
    ],
)
def test_sglangs_own_api_has_its_own_limits(sampling, limit):
    assert priced(SGLANG, text="a", sampling_params=sampling).max_tokens == limit


@pytest.mark.parametrize(
    ("fields", "media"),
    [
        ({}, 0),
        ({"image_data": "a"}, 1),
        ({"image_data": ["a", "b"]}, 2),
        ({"image_data": [["a"], ["b", "c"]], "audio_data": "d"}, 4),
    ],
)
def test_sglangs_media_are_counted_one_or_many(fields, media):
    assert raw(SGLANG, text="a", **fields).media == media


@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ({"return_logprob": True}, True),
        ({"return_logprob": True, "logprob_start_len": -1}, True),
        ({"return_logprob": True, "logprob_start_len": 0}, False),
        ({"logprob_start_len": 0}, True),
    ],
)
def test_sglang_reads_no_cache_where_the_prompts_probabilities_are_asked(fields, reads):
    assert priced(SGLANG, text="a", **fields).reads_cache is reads


@pytest.mark.parametrize("fields", [{"text": 5}, {"input_ids": "a"}, {"input_ids": ["a"]}])
def test_what_sglangs_own_api_cannot_read_is_a_bad_request(fields):
    assert isinstance(read(SGLANG, **fields), BadRequest)


@pytest.mark.parametrize("path", [CHAT + "?api-version=1", "/gateway/prod" + CHAT, CHAT + "/"])
def test_what_stands_before_and_behind_the_path_does_not_matter(path):
    body = read(path, model="m", messages=USER)

    assert isinstance(body, Body)


def test_a_prompt_may_have_any_of_its_four_shapes_and_none_is_taken_for_another():
    text, ids, texts, lists = (prompts(p) for p in ("1, 2", [1, 2], ["1", "2"], [[1], [2]]))

    assert text.texts == ("1, 2",)
    assert [list(part) for part in ids.ids] == [[1, 2]]
    assert texts.texts == ("1", "2")
    assert [list(part) for part in lists.ids] == [[1], [2]]


@pytest.mark.parametrize(
    "prompt",
    [
        5,
        {"a": 1},
        [],
        [[]],
        [1, "a"],
        [1.5],
        [-1],
        [2**32],
        [True],
        [[1], 2],
        [["a"]],
        [None],
        [10**30],
    ],
)
def test_a_prompt_of_a_wrong_type_is_a_bad_request_that_names_it(prompt):
    read_ = read(COMPLETION, model="m", prompt=prompt)

    assert isinstance(read_, BadRequest)
    assert read_.param == "prompt"


@pytest.mark.parametrize("messages", [[], "hi", {}, ["hi"], [{"content": "hi"}], [{"role": 5}]])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_messages_that_are_none_are_a_bad_request(path, messages):
    read_ = read(path, model="m", messages=messages)

    assert isinstance(read_, BadRequest)
    assert (read_.param or "").startswith("messages")


def test_a_tool_loop_is_read_as_it_stands():
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {}}]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "7"}]},
    ]

    body = read(CHAT, model="m", messages=messages)

    assert isinstance(body, Body)
    assert isinstance(body.prompt, ChatPrompt)
    assert body.prompt.messages == messages


@given(st.floats(5, 300) | st.integers(5, 300))
def test_a_bound_within_its_range_is_read(bound):
    body = read(CHAT, model="m", messages=USER, max_queue_wait_s=bound)

    assert isinstance(body, Body)
    assert body.max_queue_wait == bound


@pytest.mark.parametrize("bound", [4.99, 301, 0, -5, True, "60", [60], {}, 10**400, 1e300])
@pytest.mark.parametrize(("path", "api"), [(CHAT, Api.OPENAI), (MESSAGES, Api.ANTHROPIC)])
def test_a_bound_that_is_none_is_a_bad_request_that_names_the_field(path, api, bound):
    read_ = read(path, model="m", messages=USER, max_queue_wait_s=bound)

    assert isinstance(read_, BadRequest)
    assert (read_.api, read_.param) == (api, "max_queue_wait_s")


def test_a_bound_of_nan_is_not_json():
    read_ = read(CHAT, model="m", messages=USER, max_queue_wait_s=math.nan)

    assert isinstance(read_, BadRequest)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9, "max_tokens": 7}, 9),
        ({"max_tokens": "7"}, 7),
        ({"max_tokens": 7.0}, 7),
        ({"max_tokens": 7.5}, None),
        ({"max_tokens": True}, None),
        ({}, None),
    ],
)
def test_limits_are_read_as_leniently_as_engines_read_them(fields, limit):
    body = read(CHAT, model="m", messages=USER, **fields)

    assert isinstance(body, Body)
    assert body.max_tokens == limit


@pytest.mark.parametrize(
    ("fields", "least", "ignores"),
    [
        ({}, 0, False),
        ({"min_tokens": 7}, 7, False),
        ({"min_tokens": -7}, 0, False),
        ({"min_tokens": "many"}, 0, False),
        ({"ignore_eos": True}, 0, True),
        ({"ignore_eos": False, "min_tokens": 3}, 3, False),
        ({"ignore_eos": True, "stop": ["\n"], "min_tokens": 3}, 3, False),
        ({"ignore_eos": True, "stop_token_ids": [5]}, 0, False),
    ],
)
def test_what_keeps_an_answer_going_is_read_on_every_api_that_has_it(fields, least, ignores):
    native = {name: value for name, value in fields.items() if name != "min_tokens"}
    if "min_tokens" in fields:
        native["min_new_tokens"] = fields["min_tokens"]

    bodies = [
        priced(CHAT, model="m", messages=USER, **fields),
        priced(COMPLETION, model="m", prompt="x", **fields),
        priced(VLLM, token_ids=[1], sampling_params=fields),
        priced(SGLANG, text="a", sampling_params=native),
        priced(SGLANG, text=["a", "b"], sampling_params=[native, native]),
    ]

    assert {(body.min_tokens, body.ignores_eos) for body in bodies} == {(least, ignores)}


def test_of_several_answers_the_least_that_holds_for_all_is_read():
    each = [{"min_new_tokens": 5, "ignore_eos": True}, {"min_new_tokens": 9}]

    body = priced(SGLANG, text=["a", "b"], sampling_params=each)

    assert (body.min_tokens, body.ignores_eos) == (5, False)


@pytest.mark.parametrize(
    ("fields", "limit"), [({}, 16), ({"max_tokens": None}, None), ({"max_tokens": 5}, 5)]
)
def test_a_completion_without_a_limit_has_the_default_of_its_api(fields, limit):
    body = read(COMPLETION, model="m", prompt="x", **fields)

    assert isinstance(body, Body)
    assert body.max_tokens == limit


@pytest.mark.parametrize(
    ("path", "fields", "reads"),
    [
        (CHAT, {}, True),
        (CHAT, {"logprobs": True, "top_logprobs": 5}, True),
        (CHAT, {"prompt_logprobs": 0}, False),
        (CHAT, {"echo": True, "logprobs": True, "top_logprobs": 5}, False),
        (COMPLETION, {"logprobs": 5}, True),
        (COMPLETION, {"logprobs": 5, "echo": True}, False),
    ],
)
def test_logprobs_of_the_prompt_keep_the_engine_from_its_cache(path, fields, reads):
    body = read(path, model="m", messages=USER, prompt="x", **fields)

    assert isinstance(body, Body)
    assert body.reads_cache is reads


def test_the_fields_that_decide_cost_and_place_are_read():
    body = read(
        MESSAGES,
        model="m",
        messages=USER,
        max_tokens=5,
        stream=True,
        cache_salt="s",
        metadata={"user_id": "u"},
        session_id="c",
        system="unknown to us",
    )

    assert isinstance(body, Body)
    assert (body.api, body.max_tokens, body.stream) == (Api.ANTHROPIC, 5, True)
    assert (body.cache_salt, body.user, body.session) == ("s", "u", "c")
