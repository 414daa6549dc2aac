"""Chat templates: the text is transformers' own, for templates in the style of the families."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_extproc.body import ChatPrompt, MessagesPrompt
from leadsman_extproc.chat import chat, media, media_bytes
from leadsman_extproc.messages_api import as_chat
from leadsman_extproc.models import model_text
from leadsman_extproc.shapes import Chat
from leadsman_extproc.templates import ChatTemplate, TemplateError
from transformers import PreTrainedTokenizerFast

from .vocabulary import tokenizer

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.tool_calls %}
        {{- '<|im_start|>assistant\\n' + (message.content or '') }}
        {%- for call in message.tool_calls %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '<tool_call>' + call.name + ' ' + (call.arguments | tojson) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{%- endif %}
"""
HEADERS = """\
{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|head|>system<|end|>' + ns.system + (tools[0] | tojson(indent=4) if tools else '') }}
{% for m in messages %}
    {% if m.role == 'user' and loop.index0 % 2 == 1 and strict %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {{- '<|head|>' + m['role'] + '<|end|>\n\n' + m['content'] | trim + eos_token }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|head|>assistant<|end|>' }}{% endif %}"""
PARTS = """\
{{ bos_token }}{% for message in messages %}{% generation %}<|{{ message['role'] }}|>\
{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}<img>\
{% endif %}{% endfor %}{% endgeneration %}{% endfor %}\
{% if add_generation_prompt %}<|assistant|>{% endif %}"""
THINKING = """\
{%- for m in messages -%}<{{ m.role }}>{% if m.reasoning_content is defined and not loop.last %}\
<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content if m.content is string else '' }}\
{%- endfor -%}{{ documents | tojson if documents else '' }}{{ level | default('none') }}"""
FAMILIES = {"chatml": CHATML, "headers": HEADERS, "parts": PARTS, "thinking": THINKING}

TEXT = st.text(max_size=12) | st.sampled_from([" a ", "\n\nb\n", "<|im_end|>", "{{ x }}", "é世"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)
CONTENT = TEXT | st.lists(st.builds(lambda t: {"type": "text", "text": t}, TEXT), max_size=2)
CALLS = st.lists(
    st.builds(
        lambda n, a: {"id": "c", "type": "function", "function": {"name": n, "arguments": a}},
        TEXT,
        st.dictionaries(TEXT, JSON, max_size=2).map(json.dumps),
    ),
    max_size=2,
)
MESSAGES = st.one_of(
    st.builds(lambda r, c: {"role": r, "content": c}, st.sampled_from(["user", "system"]), CONTENT),
    st.builds(
        lambda c, k, r: {"role": "assistant", "content": c, "tool_calls": k, "reasoning": r},
        CONTENT | st.none(),
        CALLS,
        TEXT | st.none(),
    ),
    st.builds(lambda c: {"role": "tool", "tool_call_id": "c", "content": c}, CONTENT),
)
TALKS = st.lists(MESSAGES, min_size=1, max_size=5)
TOOLS = st.none() | st.lists(
    st.builds(
        lambda n, d, p: {
            "type": "function",
            "function": {"name": n, "description": d, "parameters": p},
        },
        TEXT,
        TEXT | st.none(),
        st.dictionaries(TEXT, JSON, max_size=2),
    ),
    min_size=1,
    max_size=2,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "add_generation_prompt": st.booleans(),
        "chat_template_kwargs": st.fixed_dictionaries(
            {}, optional={"enable_thinking": st.booleans(), "strict": st.booleans(), "level": TEXT}
        ),
        "documents": st.just([{"title": "t", "text": "é"}]),
    },
)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), **SPECIALS
    )


def shaped(template: ChatTemplate, messages: Any, **fields: Any) -> Chat:
    return chat(copy.deepcopy(messages), fields, template, {})


def by_transformers(oracle: Any, source: str, talk: Chat) -> str | None:
    try:
        return oracle.apply_chat_template(
            list(talk.messages),
            tools=None if talk.tools is None else list(talk.tools),
            chat_template=source,
            tokenize=False,
            add_generation_prompt=talk.add_generation_prompt,
            continue_final_message=talk.continue_final_message,
            **talk.variables,
        )
    except Exception:  # noqa: BLE001
        return None


def by_us(template: ChatTemplate, talk: Chat) -> str | None:
    try:
        return template.render(talk)
    except TemplateError:
        return None


@pytest.mark.parametrize("family", FAMILIES)
@given(messages=TALKS, tools=TOOLS, fields=FIELDS)
def test_the_text_is_what_transformers_makes_of_the_same_chat(
    oracle, family, messages, tools, fields
):
    template = ChatTemplate(FAMILIES[family], SPECIALS)
    talk = shaped(template, messages, tools=tools, **fields)

    text = by_us(template, talk)

    assert text == by_transformers(oracle, FAMILIES[family], talk)


@pytest.mark.parametrize("family", FAMILIES)
@given(text=TEXT.filter(str.strip), role=st.sampled_from(["user", "assistant"]))
def test_a_continued_message_ends_where_transformers_ends_it(oracle, family, text, role):
    template = ChatTemplate(FAMILIES[family], SPECIALS)
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    talk = shaped(
        template, [{"role": "user", "content": "q"}, {"role": role, "content": text}], **fields
    )

    ours = by_us(template, talk)

    assert ours == by_transformers(oracle, FAMILIES[family], talk)


EACH = "{% for m in messages %}"
CONTENT_LOOP = "{% for c in content %}{% endfor %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    ("source", "takes"),
    [
        (CHATML, "string"),
        (HEADERS, "string"),
        (PARTS, "openai"),
        (EACH + "{% for c in m['content'] %}{{ c.text }}{% endfor %}" + END, "openai"),
        (
            "{% set l = messages[1:] %}{% for m in l %}"
            "{% for c in m.content | list %}{% endfor %}" + END,
            "openai",
        ),
        (
            "{% macro show(x) %}{% for c in x %}{% endfor %}{% endmacro %}"
            + (EACH + "{{ show(m.content) }}" + END),
            "openai",
        ),
        ("{% macro show(content) %}" + CONTENT_LOOP + "{% endmacro %}{{ show('a') }}", "string"),
        (EACH + "{% set content = m.content %}" + CONTENT_LOOP + END, "openai"),
        (
            "{% set ns = namespace(l=messages) %}{% for m in ns.l %}"
            "{% for c in m.content %}{% endfor %}" + END,
            "openai",
        ),
        (EACH + "{% for c in m.tool_calls %}{% endfor %}" + END, "string"),
    ],
)
def test_a_template_that_loops_over_content_takes_parts(source, takes):
    template = ChatTemplate(source, {})

    assert template.content_format == takes


def test_content_of_parts_is_joined_by_newlines_where_the_template_takes_text():
    template = ChatTemplate(CHATML, {})
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": None}, "b"]

    talk = shaped(template, [{"role": "user", "content": parts}])

    assert talk.messages == [{"role": "user", "content": "a\nb"}]


def test_text_becomes_a_part_where_the_template_takes_parts_but_a_tools_result_stays_text():
    template = ChatTemplate(PARTS, {})
    result = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "7"}]}

    talk = shaped(template, [{"role": "user", "content": "a"}, result])

    assert talk.messages[0]["content"] == [{"type": "text", "text": "a"}]
    assert talk.messages[1]["content"] == "7"


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ("[1]", {}), ("{", {}), ({"b": 2}, {"b": 2})],
)
def test_arguments_of_a_tool_call_become_an_object(arguments, seen):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    sent = {"role": "assistant", "content": None, "tool_calls": [call]}

    talk = shaped(ChatTemplate(CHATML, {}), [sent])

    assert talk.messages[0]["tool_calls"][0]["function"]["arguments"] == seen
    assert call["function"]["arguments"] == arguments


def test_a_role_that_the_template_does_not_know_becomes_one_system_message():
    messages = [
        {"role": "user", "content": "q"},
        {"role": "developer", "content": "be brief"},
        {"role": "system", "content": "be kind"},
    ]

    talk = shaped(ChatTemplate(CHATML, {}), messages)

    assert talk.messages[0] == {"role": "system", "content": "be brief\n\nbe kind"}
    assert [message["role"] for message in talk.messages] == ["system", "user"]


def test_tools_are_written_in_the_order_of_the_schema_without_what_it_does_not_know():
    tool = {"function": {"parameters": {"b": 1, "a": 2}, "name": "f", "x": 1, "strict": True}}

    talk = shaped(ChatTemplate(CHATML, {}), [{"role": "user", "content": "q"}], tools=[tool])

    assert json.dumps(talk.tools) == (
        '[{"type": "function", "function": {"name": "f", "description": null,'
        ' "parameters": {"b": 1, "a": 2}, "strict": true}}]'
    )


@pytest.mark.parametrize(
    "fields",
    [{"chat_template": "{{ 1 }}"}, {"chat_template_kwargs": {"tokenize": True}}, {"tools": []}],
)
def test_what_an_engine_refuses_is_not_rendered(fields):
    template = ChatTemplate(CHATML, {})

    with pytest.raises(TemplateError):
        shaped(template, [{"role": "user", "content": "q"}], **fields)


def test_media_are_counted_and_not_taken_for_text():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    audio = {"type": "input_audio", "input_audio": {"data": "B" * 1000}}
    content = [{"type": "text", "text": "x"}, image, audio, image]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "y"}]

    assert media(messages) == 3
    assert 1000 < media_bytes(messages) < 1500


PICTURES = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' %}<img>{% else %}{{ p.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}"
)


PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("source", [PICTURES, PLAIN])
def test_what_stands_before_the_first_message_with_a_medium_is_certain(source):
    text = model_text(tokenizer(), {}, {"default": source})
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    content = [{"type": "text", "text": "see "}, image, {"type": "text", "text": " and tell"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]

    rendered = text.render(ChatPrompt(messages=messages, fields={}))

    assert rendered.media == 1
    assert rendered.text[: rendered.certain] == b"<|im_start|>system:Be brief.<|im_start|>user:"


def test_an_anthropic_tool_loop_becomes_the_chat_that_vllm_makes_of_it():
    fields = {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
            {"type": "text", "text": "Be"},
            {"type": "text", "text": " brief."},
        ],
        "tools": [{"name": "f", "input_schema": {"properties": {}}}],
    }
    messages = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"é": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": "7"}],
                },
                {"type": "text", "text": "and?"},
            ],
        },
    ]

    made, more = as_chat(MessagesPrompt(messages=messages, fields=fields), system_first=False)

    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"\\u00e9": 1}'}}
    assert made == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "q"},
        {"role": "assistant", "reasoning": "hm", "tool_calls": [call], "content": "I look."},
        {"role": "tool", "tool_call_id": "c", "content": "7"},
        {"role": "user", "content": "and?"},
    ]
    assert more["tools"][0]["function"]["parameters"] == {"properties": {}, "type": "object"}


@pytest.mark.parametrize(
    ("system_first", "roles"),
    [(True, ["system", "user", "user"]), (False, ["user", "system", "user"])],
)
def test_an_inline_system_message_moves_only_where_the_template_needs_it(system_first, roles):
    messages = [{"role": role, "content": "t"} for role in ("user", "system", "user")]

    made, _ = as_chat(MessagesPrompt(messages=messages, fields={}), system_first=system_first)

    assert [message["role"] for message in made] == roles


def test_a_template_that_refuses_a_late_system_message_is_found_out():
    guard = (
        EACH + "{% if m.role == 'system' and not loop.first %}"
        "{{ raise_exception('no') }}{% endif %}" + END
    )

    assert ChatTemplate(guard, {}).wants_system_first
    assert not ChatTemplate(CHATML, {}).wants_system_first


@pytest.mark.parametrize("source", ["{% for %}", "{{ ''.__class__ }}{% endif %}"])
def test_a_template_that_does_not_compile_says_so(source):
    with pytest.raises(TemplateError, match="does not compile"):
        ChatTemplate(source, {})


def test_a_template_cannot_leave_its_sandbox():
    template = ChatTemplate("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}", {})

    with pytest.raises(TemplateError):
        template.render(Chat(messages=[{"role": "user", "content": "q"}]))


BILLING = "x-anthropic-billing-header: cch=1"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (["", ""], ""),
        (["a", "", "b"], "a\nb"),
        (BILLING, ""),
        (BILLING + "\nBe brief.", "Be brief."),
        ([{"type": "text", "text": BILLING}, "Be"], "Be"),
        ([{"type": "refusal", "refusal": BILLING}], BILLING),
        ([{"type": "tool_reference", "name": "f"}, "x"], "f\nx"),
    ],
)
def test_a_system_text_leaves_out_what_vllm_leaves_out(content, text):
    talk = shaped(ChatTemplate(CHATML, {}), [{"role": "system", "content": content}])

    assert talk.messages == [{"role": "system", "content": text}]


def test_a_tools_result_keeps_its_empty_parts_where_the_template_takes_parts():
    result = {"role": "tool", "content": ["", "a", ""]}

    talk = shaped(ChatTemplate(PARTS, {}), [result])

    assert talk.messages == [{"role": "tool", "content": "\na\n"}]
