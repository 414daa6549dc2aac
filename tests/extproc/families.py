"""Templates of five families, and conversations that use what the families differ in.

The templates are those that packages ship (`make templates`), read as files or, Mistral's, written
by mistral-common's own generator. DeepSeek's own refuse arguments that are objects, which is what
engines make of them; one of ours, in their manner, stands in for those that engines ship.

Conversations are mostly sound (a template refuses the others), and of one feature each.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

PACKAGES = Path(__file__).parents[2] / "build" / "templates"
OWN = Path(__file__).parent / "templates"
FAMILIES = {
    "qwen": ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_8", "qwen3_vl"],
    "deepseek": ["deepseekv3", "deepseek_r1_distill", "deepseek_tools"],
    "llama": ["llama3", "llama3_1", "llama3_2"],
    "mistral": ["v3", "v7", "v11", "v13", "v15"],
    "glm": ["glm4moe", "glm4moe_training"],
}
SPECIALS = {
    "qwen": {"eos_token": "<|im_end|>"},
    "deepseek": {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    "llama": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "glm": {"eos_token": "<|endoftext|>"},
}
TOKENS = {
    "qwen": ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"],
    "deepseek": ["<｜User｜>", "<｜Assistant｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"],
    "llama": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "mistral": ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[THINK]"],
    "glm": ["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<arg_key>"],
}
_GENERATE = """
import json, sys
from mistral_common.integrations.chat_templates.template_generator import (
    TemplateConfig, build_chat_template,
)
from mistral_common.tokens.tokenizers.base import TokenizerVersion

effort = dict(reasoning_effort_values=("none", "high"), reasoning_effort_default="none")
json.dump({
    name: build_chat_template(TemplateConfig(
        version=TokenizerVersion(name),
        spm=name == "v3",
        image_support=False,
        audio_support=False,
        thinking_support=name in ("v13", "v15"),
        use_special_token_variables=True,
        **(effort if name == "v15" else {}),
    ))
    for name in sys.argv[1:]
}, sys.stdout)
"""


def template(family: str, name: str) -> str:
    """Read one; the test is skipped where `make templates` was not run."""
    if (own := OWN / f"{name}.jinja").exists():
        return own.read_text()
    if not PACKAGES.is_dir():
        pytest.skip("templates of packages are not there: make templates")
    if family == "mistral":
        return _mistral()[name]
    return (PACKAGES / "trl" / "chat_templates" / f"{name}.jinja").read_text()


@cache
def _mistral() -> dict[str, str]:
    command = [sys.executable, "-c", _GENERATE, *FAMILIES["mistral"]]
    environment = {"PYTHONPATH": str(PACKAGES)}
    written = subprocess.run(command, env=environment, capture_output=True, check=True)
    return json.loads(written.stdout)


EDGES = [
    " a ", "\n\nb\n", "  \n", "{{ x }}", "é世", '"\\', "<b>&'", "/nothink", "x " * 300, "\u2028",
    "e\u0301\u200b", "\u00a0\t\x07", "👩\u200d🔧", "עברית", "1234567 8.5e3",
    "def f(x):\n    return x\n", "```json\n{}\n```",
    "it's", "Hello, how are you?", "\r\n", "\U0010ffff",
]  # fmt: skip
NAMES = st.sampled_from(["get_weather", "f", "a.b", "größe"])


@cache
def texts(family: str) -> st.SearchStrategy[str]:
    """Short texts; now and then any, mostly what templates and tokenizers stumble over."""
    some = st.sampled_from(EDGES + TOKENS[family])
    return some | st.builds(str.__add__, some, some) | st.text(max_size=4)


@cache
def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    leaf = st.none() | st.booleans() | st.integers(-99, 99) | st.sampled_from([0.5, 1e30]) | text
    inner = st.lists(leaf, max_size=2) | st.dictionaries(text, leaf, max_size=2)
    return leaf | inner


@cache
def tools(text: st.SearchStrategy[str]) -> st.SearchStrategy[list[Any]]:
    schema = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(text, values(text), max_size=2)},
        optional={"required": st.lists(text, max_size=2), "$defs": st.just({})},
    )
    function = st.fixed_dictionaries(
        {"name": NAMES, "parameters": schema},
        optional={"description": st.none() | text, "strict": st.booleans()},
    )
    tool = st.builds(lambda f: {"type": "function", "function": f}, function)
    return st.lists(tool, min_size=1, max_size=2)


@cache
def calls(text: st.SearchStrategy[str]) -> st.SearchStrategy[list[Any]]:
    given = st.dictionaries(NAMES | text, values(text), max_size=2)
    arguments = st.builds(json.dumps, given, ensure_ascii=st.booleans()) | given
    return st.lists(
        st.builds(
            lambda name, arguments, index: {
                "id": f"callid{index:03d}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            },
            NAMES,
            arguments | st.sampled_from(["", "{}", "not json", "[1]"]),
            st.integers(0, 99),
        ),
        min_size=1,
        max_size=2,
    )


@cache
def parts(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    part = st.builds(lambda t: {"type": "text", "text": t}, text)
    return text | st.lists(part, min_size=1, max_size=3)


@st.composite
def _turn(draw: st.DrawFn, text: Any, content: Any, feature: str) -> list[Any]:
    """A question and its answer, by way of tools where that is the feature."""
    turn: list[Any] = [{"role": "user", "content": draw(content)}]
    answer: dict[str, Any] = {"role": "assistant", "content": draw(content)}
    if feature in ("calls", "all"):
        asked = draw(calls(text))
        none = [{"content": None}, {"content": ""}, {}]
        step = draw(st.sampled_from([*none, {"content": draw(content)}]))
        turn.append({"role": "assistant", "tool_calls": asked, **step})
        turn += [
            {"role": "tool", "tool_call_id": call["id"], "content": draw(content)} for call in asked
        ]
    if feature in ("reasoning", "all"):
        name = draw(st.sampled_from(["reasoning_content", "reasoning"]))
        thought = draw(text)
        for message in [*turn[1:], answer]:
            if message["role"] == "assistant":
                message[name] = thought
    return [*turn, answer]


turns = cache(_turn)


@st.composite
def bodies(draw: st.DrawFn, family: str, feature: str) -> dict[str, Any]:
    """The body of a chat request, of one feature or of all.

    Strategies are made once: making them anew for each body takes most of the time.
    """
    text = texts(family)
    content = parts(text) if feature in ("parts", "all") else text
    system = {"role": "system", "content": draw(content)}
    messages: list[Any] = [system] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages += draw(turns(text, content, feature))
    fields: dict[str, Any] = {}
    if feature in ("tools", "calls", "all"):
        fields["tools"] = draw(tools(text))
    if feature == "continued":
        return {
            "messages": messages,
            "add_generation_prompt": False,
            "continue_final_message": True,
        }
    if feature in ("variables", "all"):
        fields |= draw(variables(text))
    ended = feature == "unprompted" or (feature == "all" and draw(st.booleans()))
    if ended:
        return {"messages": messages, "add_generation_prompt": False, **fields}
    return {"messages": [*messages, {"role": "user", "content": draw(content)}], **fields}


@cache
def variables(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    names: dict[str, st.SearchStrategy[Any]] = {
        name: st.booleans()
        for name in ("enable_thinking", "thinking", "preserve_thinking", "tools_in_user_message")
    }
    given = st.fixed_dictionaries({"date_string": text}, optional=names)
    effort = st.sampled_from(["none", "low", "medium", "high"])
    return st.fixed_dictionaries(
        {"chat_template_kwargs": given}, optional={"reasoning_effort": effort}
    )


FEATURES = (
    "plain", "parts", "tools", "calls", "reasoning", "variables", "continued", "unprompted", "all",
)  # fmt: skip


@cache
def blocks(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """One block of an Anthropic message's content."""
    said = st.fixed_dictionaries(
        {"type": st.just("text"), "text": text},
        optional={"cache_control": st.just({"type": "ephemeral"})},
    )
    thought = st.builds(lambda t: {"type": "thinking", "thinking": t, "signature": "s"}, text)
    given = st.dictionaries(text, values(text), max_size=2)
    use = st.builds(
        lambda n, g: {"type": "tool_use", "id": "call", "name": n, "input": g}, NAMES, given
    )
    result = st.fixed_dictionaries(
        {"type": st.just("tool_result"), "tool_use_id": st.just("call")},
        optional={"content": text | st.none() | st.lists(said, max_size=2)},
    )
    return st.one_of(said, thought, use, result)


def anthropic() -> st.SearchStrategy[dict[str, Any]]:
    """The body of a request of the Messages API."""
    billing = "x-anthropic-billing-header: cc_version=1"
    text = texts("qwen") | st.sampled_from([billing, billing + "\nBe brief."])
    content = text | st.lists(blocks(text), max_size=3)
    system = text | st.lists(st.builds(lambda t: {"type": "text", "text": t}, text), max_size=2)
    message = st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant"]),
        content,
    ) | st.builds(lambda content: {"role": "system", "content": content}, system)
    tool = st.fixed_dictionaries(
        {"name": NAMES, "input_schema": st.dictionaries(text, values(text), max_size=2)},
        optional={"description": text, "strict": st.booleans()},
    )
    return st.fixed_dictionaries(
        {"max_tokens": st.just(5), "messages": st.lists(message, min_size=1, max_size=4)},
        optional={
            "system": system,
            "tools": st.lists(tool, max_size=2),
            "thinking": st.just({"type": "disabled"}),
            "output_config": st.just({"effort": "low"}),
        },
    )


def responses() -> st.SearchStrategy[dict[str, Any]]:
    """The body of a request of the Responses API."""
    text = texts("qwen")
    part = st.builds(lambda t: {"type": "input_text", "text": t}, text)
    said = st.builds(lambda t: [{"type": "output_text", "text": t, "annotations": []}], text)
    thought = st.builds(lambda t: [{"type": "reasoning_text", "text": t}], text)
    summary = st.builds(lambda t: [{"type": "summary_text", "text": t}], text)
    ended = {"status": st.sampled_from(["completed", "incomplete"])}
    call = {"call_id": st.just("call_1"), "name": NAMES}
    item = st.one_of(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "system", "developer", "assistant"]),
                "content": text | st.lists(part, min_size=1, max_size=2),
            },
            optional={"type": st.just("message")},
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("message"),
                "role": st.just("assistant"),
                "content": said | text,
            },
            optional=ended,
        ),
        st.fixed_dictionaries(
            {"type": st.just("reasoning"), "summary": st.just([]) | summary},
            optional={"content": thought, **ended},
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("function_call"),
                "arguments": st.dictionaries(text, values(text), max_size=2).map(json.dumps),
                **call,
            }
        ),
        st.fixed_dictionaries(
            {
                "type": st.just("function_call_output"),
                "call_id": st.just("call_1"),
                "output": text | st.lists(part, max_size=2),
            }
        ),
    )
    tool = st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "name": NAMES,
            "parameters": st.dictionaries(text, values(text), max_size=2),
        },
        optional={"description": text, "strict": st.booleans()},
    ) | st.just({"type": "web_search"})
    return st.fixed_dictionaries(
        {"input": text | st.lists(item, min_size=1, max_size=5)},
        optional={
            "instructions": text,
            "tools": st.lists(tool, max_size=2),
            "reasoning": st.sampled_from([{"effort": "low"}, {"effort": "none"}, {}]),
            "max_output_tokens": st.just(5),
        },
    )
