"""From a body to what the core decides on: exact where it can be, an honest estimate elsewhere."""

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tokenizers
from leadsman.keys import MultimodalItem, block_keys, namespace_seed
from leadsman.prediction import Admitted
from leadsman.request import Request
from leadsman.units import RequestId, TokenIds, WorkerId
from leadsman_extproc.asking import Question
from leadsman_extproc.body import BadRequest, NotForUs
from leadsman_extproc.grants import Grant, Usage
from leadsman_extproc.guesses import NOTHING, Guess
from leadsman_extproc.models import ModelText, ServedModel, load_model
from leadsman_extproc.ports import Arrival, Read, ReadRequest, TokensBy
from leadsman_extproc.reading import Reader
from leadsman_extproc.shapes import Pending
from leadsman_extproc.wishes import HeaderNames
from tokenizers import AddedToken, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CHAT, COMPLETION, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
USER = [{"role": "user", "content": "the quick brown fox " * 60}]
SIZES = (16, 64)
SECRET = b"secret"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = tmp_path_factory.mktemp("model")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["the quick brown fox"], trainer)
    roles = [f"<|{role}|>" for role in ("system", "user", "assistant", "tool")]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ("<s>", *roles)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(made / "tokenizer.json"))
    config = {"bos_token": "<s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (made / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return made


@pytest.fixture(scope="module")
def text(directory: Any) -> ModelText:
    return load_model(directory)


@pytest.fixture(scope="module")
def oracle(directory: Any) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(directory)


@dataclass(slots=True)
class Engine:
    """Answers what its own tokenizer would, if it does."""

    ids: TokenIds | None
    asked: list[str] = field(default_factory=list)

    async def __call__(self, model: str, question: Question) -> TokenIds | None:
        self.asked.append(model)
        return self.ids


def arrival(path: str, fields: Mapping[str, Any], headers: Mapping[str, str]) -> Arrival:
    return Arrival(
        id=RequestId("r"),
        headers={":path": path, **headers},
        body=json.dumps({"model": "m", **fields}).encode(),
        at=5.0,
    )


def reader(text: ModelText | None, engine: Engine | None = None) -> Reader:
    served = ServedModel(name="m", text=text, aliases=["also-m"], adapters=["m-lora"])
    return Reader(models=[served], secret=SECRET, block_sizes=lambda model: SIZES, tokenize=engine)


async def waited_for(read: Awaitable[Read]) -> Read:
    return await read


def read(
    reading: Reader, path: str, headers: Mapping[str, str] | None = None, **fields: Any
) -> Request:
    answer = reading.read(arrival(path, fields, headers or {}))
    if isinstance(answer, Awaitable):
        answer = asyncio.run(waited_for(answer))
    assert isinstance(answer, ReadRequest)
    return answer.request


def keys(ids: Sequence[int], size: int, **names: str | None) -> list[int]:
    seed = namespace_seed(secret=SECRET, model="m", **names)
    return list(block_keys(np.array(ids, np.uint32), size, seed))


def held(request: Request) -> dict[int, list[int]]:
    return {size: list(found) for size, found in request.keys.items()}


def test_a_chat_has_the_tokens_that_transformers_gives_it(text, oracle):
    ids = oracle.apply_chat_template(USER, add_generation_prompt=True, return_dict=False)

    request = read(reader(text), CHAT, messages=USER)

    assert (request.prompt_tokens, request.tokens_are_exact) == (len(ids), True)
    assert held(request) == {size: keys(ids, size) for size in SIZES}


def test_the_same_conversation_has_the_same_keys_by_both_apis(text):
    system = {"role": "system", "content": "Be brief."}

    openai = read(reader(text), CHAT, messages=[system, *USER])
    anthropic = read(reader(text), MESSAGES, messages=USER, system="Be brief.", max_tokens=5)

    assert held(openai) == held(anthropic)


def test_a_completion_has_its_begin_token_and_token_ids_are_taken_as_they_are(text, oracle):
    ids = oracle("the fox " * 40)["input_ids"]

    by_text = read(reader(text), COMPLETION, prompt="the fox " * 40)
    by_ids = read(reader(text), COMPLETION, prompt=ids)
    bare = read(reader(text), COMPLETION, prompt="the fox " * 40, add_special_tokens=False)

    assert held(by_text) == held(by_ids) == {size: keys(ids, size) for size in SIZES}
    assert held(bare) == {size: keys(ids[1:], size) for size in SIZES}


def test_several_prompts_are_summed_and_keyed_by_the_longest(text):
    request = read(reader(text), COMPLETION, prompt=[list(range(20)), list(range(40)), [7]])

    assert request.prompt_tokens == 61
    assert held(request)[16] == keys(range(40), 16)


@pytest.mark.parametrize("others", [[1, 2, 3] * 20, list(range(59)), list(range(61))])
def test_other_ids_never_have_the_keys_of_these(text, others):
    these = read(reader(text), COMPLETION, prompt=list(range(60)))

    those = read(reader(text), COMPLETION, prompt=others)

    assert (held(these)[16] == held(those)[16]) == (others[:48] == list(range(48)))


def test_what_is_embedded_is_read_as_a_completion_of_one_token(text):
    embedded = read(reader(text), "/v1/embeddings", input="the fox " * 40)
    completed = read(reader(text), COMPLETION, prompt="the fox " * 40)

    assert held(embedded) == held(completed)
    assert embedded.max_tokens == 1


def test_a_responses_request_has_the_keys_of_the_chat_that_it_means(text):
    system = {"role": "system", "content": "Be brief."}
    said = [{"type": "output_text", "text": "yes", "annotations": []}]

    chat = read(
        reader(text),
        CHAT,
        messages=[system, *USER, {"role": "assistant", "content": "yes"}, *USER],
        add_special_tokens=True,
    )
    responses = read(
        reader(text),
        "/v1/responses",
        instructions="Be brief.",
        input=[*USER, {"type": "message", "role": "assistant", "content": said}, *USER],
    )

    assert held(responses) == held(chat)


def test_history_that_an_engine_keeps_is_known_not_to_be_known(text):
    engine = Engine(np.arange(40, dtype=np.uint32))
    answer = reader(text, engine).read(
        arrival("/v1/responses", {"input": "go on", "previous_response_id": "resp_1"}, {})
    )
    answer = asyncio.run(waited_for(answer)) if isinstance(answer, Awaitable) else answer

    assert isinstance(answer, ReadRequest)
    assert engine.asked == []
    assert (answer.tokens_by, answer.guess) == (TokensBy.HISTORY, NOTHING)
    assert (answer.request.tokens_are_exact, answer.request.keys) == (False, {})


def test_tokens_in_are_keyed_with_the_images_among_them(text):
    ids = list(range(64))
    features = {
        "mm_hashes": {"image": ["abc"]},
        "mm_placeholders": {"image": [{"offset": 20, "length": 9}]},
    }

    request = read(reader(text), "/inference/v1/generate", token_ids=ids, features=features)

    items = [MultimodalItem(content="abc", offset=20)]
    seed = namespace_seed(secret=SECRET, model="m")
    expected = list(block_keys(np.array(ids, np.uint32), 16, seed, items))
    assert held(request)[16] == expected
    assert expected[0] == keys(ids, 16)[0]
    assert expected[1] != keys(ids, 16)[1]
    assert request.tokens_are_exact


@pytest.mark.parametrize(("only", "is_read"), [("m", True), (None, False)])
def test_an_api_without_models_means_the_only_one(text, only, is_read):
    reading = reader(text)
    reading.only_model = lambda: only
    come = Arrival(
        id=RequestId("r"),
        headers={":path": "/generate"},
        body=json.dumps({"text": "the fox " * 40}).encode(),
        at=5.0,
    )

    answer = reading.read(come)

    assert isinstance(answer, ReadRequest) is is_read
    if isinstance(answer, ReadRequest):
        completed = read(reader(text), COMPLETION, prompt="the fox " * 40)
        assert (answer.request.model, held(answer.request)) == ("m", held(completed))


def test_what_stands_before_an_image_is_keyed_and_what_follows_is_not(text, oracle):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9000}}
    told = [{"type": "text", "text": "and this"}, image]

    request = read(reader(text), CHAT, messages=[*USER, {"role": "user", "content": told}])

    ids = oracle.apply_chat_template(USER, return_dict=False)
    assert held(request)[16] == keys(ids, 16)
    assert not request.tokens_are_exact
    assert len(ids) + 1000 < request.prompt_tokens < len(ids) + 1040


def test_the_bytes_of_an_image_are_no_text():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 90000}}
    reading = reader(None)

    answer = reading.read(arrival(CHAT, {"messages": [{"role": "user", "content": [image]}]}, {}))

    assert isinstance(answer, ReadRequest)
    assert answer.request.prompt_tokens < 1100
    assert (answer.guess, answer.tokens_by) == (NOTHING, TokensBy.MEDIA)


def test_salt_and_adapter_have_namespaces_of_their_own(text):
    prompt = list(range(20))

    salted = read(reader(text), COMPLETION, prompt=prompt, cache_salt="s")
    adapted = read(reader(text), COMPLETION, prompt=prompt, model="m-lora")
    alias = read(reader(text), COMPLETION, prompt=prompt, model="also-m")

    assert held(salted)[16] == keys(prompt, 16, cache_salt="s")
    assert held(adapted)[16] == keys(prompt, 16, lora="m-lora")
    assert held(alias)[16] == keys(prompt, 16)
    assert {salted.model, adapted.model, alias.model} == {"m"}


def test_without_a_tokenizer_the_engine_is_asked():
    engine = Engine(np.arange(40, dtype=np.uint32))

    request = read(reader(None, engine), CHAT, messages=USER)

    assert engine.asked == ["m"]
    assert (request.prompt_tokens, request.tokens_are_exact) == (40, True)
    assert held(request)[16] == keys(range(40), 16)


def test_no_engine_is_asked_for_the_tokens_of_an_image():
    engine = Engine(np.arange(40, dtype=np.uint32))
    image = {"type": "image_url", "image_url": {"url": "data:,"}}

    request = read(reader(None, engine), CHAT, messages=[{"role": "user", "content": [image]}])

    assert engine.asked == []
    assert (request.tokens_are_exact, request.keys) == (False, {})


def test_a_chat_that_asks_for_special_tokens_has_the_begin_token_once_more(text):
    plain = read(reader(text), CHAT, messages=USER)

    special = read(reader(text), CHAT, messages=USER, add_special_tokens=True)

    assert special.prompt_tokens == plain.prompt_tokens + 1


@pytest.mark.parametrize("engine", [None, Engine(None)])
def test_where_nobody_knows_the_tokens_they_are_an_estimate_without_keys(engine):
    request = read(reader(None, engine), CHAT, messages=USER)

    body = len(json.dumps({"model": "m", "messages": USER}))
    assert (request.prompt_tokens, request.tokens_are_exact) == (round(body / 4), False)
    assert request.keys == {}


def reported(answer: ReadRequest, *, response: str | None = None, **usage: int) -> Grant:
    request, worker = answer.request, WorkerId("a:1")
    return Grant(
        request=request,
        admitted=Admitted(request=request.id, worker=worker, endpoint="a:1", prediction=None),
        worker=worker,
        endpoint="a:1",
        sent_at=0.0,
        guess=answer.guess,
        usage=Usage(**usage),
        response=response,
    )


def come(reading: Reader, path: str, **fields: Any) -> ReadRequest:
    answer = reading.read(arrival(path, fields, {}))
    assert isinstance(answer, ReadRequest)
    return answer


def test_an_estimate_learns_from_what_answers_report():
    reading = reader(None)
    body = len(json.dumps({"model": "m", "messages": USER}))
    for _ in range(200):
        reading.learn(reported(come(reading, CHAT, messages=USER), prompt_tokens=round(body / 10)))

    request = read(reading, CHAT, messages=USER)

    assert request.prompt_tokens == pytest.approx(body / 10, rel=0.01)


def test_what_an_image_becomes_is_learned_by_model_from_what_answers_report(text):
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    told = {"type": "text", "text": "which of these"}
    messages = [{"role": "user", "content": [told, image, image]}]
    reading = reader(text)
    first = come(reading, CHAT, messages=messages)
    beside = first.request.prompt_tokens - 2 * 1000

    for _ in range(200):
        answer = come(reading, CHAT, messages=messages)
        reading.learn(reported(answer, prompt_tokens=beside + 2 * 300))

    assert first.guess == Guess(media=2, text_tokens=beside)
    learned = come(reading, CHAT, messages=messages).request
    assert learned.prompt_tokens == pytest.approx(beside + 2 * 300, abs=5)
    assert not learned.tokens_are_exact
    assert reading.guesses.media("another", 2) == 2000


def test_a_conversation_that_an_engine_keeps_is_as_long_as_its_last_response_was(text):
    reading = reader(text)
    alone = come(reading, "/v1/responses", input="go on", previous_response_id="resp_1").request
    started = come(reading, "/v1/responses", input="the quick brown fox " * 60)

    usage = {"prompt_tokens": 900, "completion_tokens": 70}
    reading.learn(reported(started, response="resp_1", **usage))
    gone_on = come(reading, "/v1/responses", input="go on", previous_response_id="resp_1")

    assert gone_on.request.prompt_tokens == alone.prompt_tokens + 970
    assert (gone_on.tokens_by, gone_on.guess) == (TokensBy.HISTORY, NOTHING)
    other = come(reading, "/v1/responses", input="go on", previous_response_id="resp_2").request
    assert other.prompt_tokens == alone.prompt_tokens


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"chat_template": "{{ 1 }}"}, id="a template of its own"),
        pytest.param({"truncate_prompt_tokens": 20}, id="truncated by the engine"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            id="an image",
        ),
    ],
)
def test_what_only_the_engine_can_tell_is_no_exact_prompt(text, fields):
    request = read(reader(text), CHAT, **{"messages": USER, **fields})

    assert not request.tokens_are_exact
    assert not any(map(len, request.keys.values()))


def test_headers_say_whose_request_it_is_and_what_it_wants(text):
    headers = {
        "x-gateway-inference-fairness-id": "t",
        "x-session-id": "s",
        "x-llm-d-inference-objective": "o",
        "x-slo-ttft-ms": "1500",
        "x-leadsman-max-queue-wait-s": "60",
        "x-leadsman-prefer": "cache",
        "x-leadsman-waited-s": "2.5",
    }

    request = read(reader(text), CHAT, headers, messages=USER)

    assert (request.tenant, request.session, request.objective) == ("t", "s", "o")
    assert (request.ttft_objective, request.max_queue_wait) == (1.5, 60.0)
    assert request.prefers_cache
    assert request.waited == 2.5


def test_a_bound_in_the_body_overrides_the_headers(text):
    headers = {"x-leadsman-max-queue-wait-s": "60"}

    request = read(reader(text), CHAT, headers, messages=USER, max_queue_wait_s=30)

    assert request.max_queue_wait == 30.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-leadsman-max-queue-wait-s", "4"),
        ("x-leadsman-max-queue-wait-s", "nan"),
        ("x-leadsman-max-queue-wait-s", "soon"),
        ("x-leadsman-waited-s", "-1"),
        ("x-leadsman-waited-s", "long"),
        ("x-slo-ttft-ms", "0"),
        ("x-slo-ttft-ms", "inf"),
        ("x-slo-ttft-ms", "nan"),
        ("x-slo-ttft-ms", "soon"),
    ],
)
def test_a_header_that_is_no_such_number_is_a_bad_request_that_names_it(text, name, value):
    answer = reader(text).begin(arrival(CHAT, {"messages": USER}, {name: value}))

    assert isinstance(answer, BadRequest)
    assert answer.param == name


def test_names_of_headers_are_settings(text):
    reading = reader(text)
    reading.headers = HeaderNames(tenant=("x-team",))

    request = read(reading, CHAT, {"x-team": "blue", "x-leadsman-tenant": "red"}, messages=USER)

    assert request.tenant == "blue"


def test_only_a_long_new_text_is_worth_a_thread(text):
    reading = reader(text)
    long = [{"role": "user", "content": "fox " * text.tokenizer.slow_above}]
    first = reading.begin(arrival(CHAT, {"messages": long}, {}))
    assert isinstance(first, Pending)
    reading.finish(first)

    again = reading.begin(arrival(CHAT, {"messages": [*long, *USER]}, {}))

    assert isinstance(again, Pending)
    assert (first.needs_offload, again.needs_offload) == (True, False)


def test_a_body_nested_as_deep_as_json_allows_is_read_or_refused_but_never_breaks(text):
    depth = 900
    raw = (
        b'{"model":"m","messages":[{"role":"user","content":"q"}],"tools":[{"function":{"name":"f",'
    )
    raw += b'"parameters":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}}]}"
    come = Arrival(id=RequestId("r"), headers={":path": CHAT}, body=raw, at=0.0)

    answer = reader(text).begin(come)

    assert isinstance(answer, Pending | BadRequest)


@pytest.mark.parametrize(
    ("name", "content"),
    [("tokenizer_config.json", "{"), ("tokenizer_config.json", "[]"), ("tokenizer.json", "{}")],
)
def test_a_model_whose_files_are_broken_says_which(directory, tmp_path, name, content):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(content)

    with pytest.raises(ValueError, match=name):
        load_model(tmp_path)


def test_a_template_in_a_file_of_its_own_overrides_the_configuration(directory, tmp_path):
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("<|user|>{{ messages | length }}")

    request = read(reader(load_model(tmp_path)), CHAT, messages=USER)

    assert request.prompt_tokens == 2


def test_what_is_not_for_us_stays_so(text):
    answer = reader(text).begin(arrival("/v1/embeddings", {}, {}))

    assert isinstance(answer, NotForUs)
