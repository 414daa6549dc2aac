"""A few requests that show which template and which vocabulary an engine has.

The question: which conversations do templates of a family differ in. Each probe is of one kind
that some templates treat apart: several turns, tools and their results, reasoning, content in
parts, template arguments, a message to be continued, a bare text. Words of many scripts are for the
vocabulary. A probe that our own template refuses is not asked.
"""

from typing import Any, Final

import msgspec

_WORDS: Final = "It's 12345 naïve 日本語 русский 👩‍🔧\n\n  def f(x):\r\n\treturn x\u00a0 "
_ASKED: Final = {"role": "user", "content": _WORDS}
_SAID: Final = {"role": "assistant", "content": "Hello."}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "look",
        "description": 'Look "up" <é>',
        "parameters": {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}},
    },
}
_CALL: Final = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "look", "arguments": '{"b": "é", "a": [1, 2.5, null]}'},
}
_SYSTEM: Final = {"role": "system", "content": " Be brief. "}
_CHATS: Final[dict[str, dict[str, Any]]] = {
    "turns": {"messages": [_SYSTEM, _ASKED, _SAID, _ASKED]},
    "tools": {
        "messages": [
            _ASKED,
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call00001", "content": "7"},
        ],
        "tools": [_TOOL],
    },
    "reasoning": {"messages": [_ASKED, _SAID | {"reasoning": " Hm.\n"}, _ASKED]},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]
    },
    "variables": {"messages": [_ASKED], "chat_template_kwargs": {"enable_thinking": False}},
    "continued": {
        "messages": [_ASKED, _SAID],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
}


def probes(model: str) -> list[tuple[str, bytes]]:
    """Write the probes of a model: paths and bodies."""
    chats = [("/v1/chat/completions", {"model": model, **fields}) for fields in _CHATS.values()]
    return [
        (path, msgspec.json.encode(body))
        for path, body in [*chats, ("/v1/completions", {"model": model, "prompt": _WORDS})]
    ]
