"""From the messages that a client sent to the messages that a template sees.

The question: what does vLLM make of an OpenAI conversation before it renders it. Content becomes
one text, its parts joined by newlines, or a list of parts, as the template takes it. A tool's
result is one text wherever it holds nothing but text. Arguments of tool calls, JSON in a string,
become objects; where they are none, an empty object. Messages of a role that the template does
not know become system messages, and those one. Tools are written out again in the order of the
schema's fields, without what the schema does not know.

Media (images, sounds, videos) become placeholders of the model that only its engine expands: they
are counted, and only what stands before the first of them is exact.

Source: vLLM 0.33 renderers/chat_utils/chat_message.py, parse_chat_messages; renderers/hf.py,
safe_apply_chat_template; entrypoints/openai/chat_completion/protocol.py.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import filterfalse
from typing import Any, Final

import msgspec

from leadsman_extproc.body import JsonObject
from leadsman_extproc.shapes import Chat
from leadsman_extproc.templates import ChatTemplate, ContentFormat, TemplateError

_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_PLAIN_ROLES: Final = frozenset({"user", "assistant"})
_MARK: Final[JsonObject] = {"type": "text", "text": "\0"}
_BILLING: Final = "x-anthropic-billing-header"
"""First words of a line that Claude Code changes with every request, and that vLLM drops."""


def chat(
    messages: Sequence[JsonObject],
    fields: JsonObject,
    template: ChatTemplate,
    defaults: Mapping[str, Any],
) -> Chat:
    """Shape a conversation for a template; `defaults` are the engine's own template variables.

    Raises TemplateError where the engine would refuse the request.
    """
    if fields.get("chat_template") is not None:
        raise TemplateError("the request brings a template of its own")
    prompts = fields.get("add_generation_prompt") is not False
    continues = fields.get("continue_final_message") is True
    if prompts and continues:
        raise TemplateError("a message is either continued or followed by a new one")
    kind = template.content_format
    shaped = [
        message if kind == "string" and _is_plain(message) else _message(message, kind)
        for message in messages
    ]
    if not template.knows_developer and "developer" in {m["role"] for m in shaped}:
        shaped = _system_first([_as_system(message) for message in shaped])
    return Chat(
        messages=shaped,
        tools=_tools(fields.get("tools")),
        variables=dict(defaults) | variables(fields),
        add_generation_prompt=prompts,
        continue_final_message=continues,
    )


def media(messages: Iterable[JsonObject]) -> int:
    """Count the images, sounds and videos in a conversation."""
    return sum(_is_medium(part) for message in messages for part in _listed(message))


def media_bytes(messages: Iterable[JsonObject]) -> int:
    """Count the bytes of a body that are pictures or sounds, not text."""
    parts = (part for message in messages for part in _listed(message) if _is_medium(part))
    return sum(len(msgspec.json.encode(part)) for part in parts)


def without_media(messages: Iterable[JsonObject]) -> list[JsonObject]:
    """Put a mark at the beginning of each message that has media, and leave these out.

    What a template writes of these as of the true ones, from the first character on, is before all
    media. Where content is one text, engines put media before it.
    """
    return [
        {**message, "content": [_MARK, *filterfalse(_is_medium, _listed(message))]}
        if any(map(_is_medium, _listed(message)))
        else message
        for message in messages
    ]


def _listed(message: JsonObject) -> Sequence[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def variables(fields: JsonObject) -> dict[str, Any]:
    """Gather what a request adds to the names that a template may read. Raises TemplateError."""
    asked = fields.get("chat_template_kwargs")
    names = dict(asked) if isinstance(asked, dict) else {}
    if {"chat_template", "tokenize"} & names.keys():
        raise TemplateError("chat_template_kwargs holds a name that engines refuse")
    effort = fields.get("reasoning_effort")
    if effort is not None:
        names.setdefault("enable_thinking", effort != "none")
        names["reasoning_effort"] = effort
    if fields.get("documents") is not None:
        names["documents"] = fields["documents"]
    return names


def _message(message: JsonObject, content_format: ContentFormat) -> JsonObject:
    role = message["role"]
    parts = _parts(message)
    shaped: JsonObject = {"role": role, "content": parts}
    if content_format == "string":
        words = (part.get("text") or part.get("name") for part in parts)
        shaped["content"] = "\n".join(word for word in words if word)
    elif role == "tool" and _all_text(parts):
        shaped["content"] = "\n".join(_texts(parts))
    if role == "assistant":
        _add_calls(message, shaped)
        _add_reasoning(message, shaped)
    elif role == "tool" and "tool_call_id" in message:
        shaped["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            shaped[name] = message[name]
    if role == "developer":
        shaped["tools"] = message.get("tools")
    return shaped


def _is_plain(message: JsonObject) -> bool:
    """Whether a message is a text of a role, and nothing else: most are, and stay as they are."""
    content = message.get("content")
    if type(content) is not str or len(message) != 2:
        return False
    role = message["role"]
    return role in _PLAIN_ROLES or (role == "system" and not content.startswith(_BILLING))


def _parts(message: JsonObject) -> list[JsonObject]:
    """Content as parts: texts, references to tools, and media without their data."""
    content = message.get("content")
    given = [content] if isinstance(content, str) else content or []
    if not isinstance(given, list):
        raise TemplateError("content is neither a text nor a list")
    if message["role"] == "system":
        given = [kept for item in given if (kept := _without_billing(item)) is not None]
    return [part for item in given if (part := _part(item)) is not None]


def _part(item: object) -> JsonObject | None:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if not isinstance(item, dict):
        raise TemplateError("a part of the content is neither a text nor an object")
    kind = item.get("type")
    if kind in _TEXT_PARTS:
        text = item.get("thinking" if kind == "thinking" else kind if kind == "refusal" else "text")
        return {"type": "text", "text": text} if isinstance(text, str) else None
    if kind == "tool_reference":
        return {"type": kind, "name": item.get("name") or ""}
    return {"type": next((m for m in ("image", "audio", "video") if m in str(kind)), "image")}


def _all_text(parts: Sequence[JsonObject]) -> bool:
    return all(part["type"] == "text" for part in parts)


def _is_medium(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    return not (part.get("type") in _TEXT_PARTS or part.get("type") == "tool_reference")


def _without_billing(item: Any) -> object:
    """Drop the first line of a text where it is the one that changes with every request."""
    is_text = isinstance(item, dict) and item.get("type") == "text"
    text = item.get("text") if is_text else item
    if not isinstance(text, str) or not text.startswith(_BILLING):
        return item
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return {**item, "text": rest} if is_text else rest


def _add_calls(message: JsonObject, shaped: JsonObject) -> None:
    calls = message.get("tool_calls")
    if not calls:
        return
    if not isinstance(calls, list):
        raise TemplateError("tool_calls is no list")
    shaped["tool_calls"] = [_call(call) for call in calls]


def _call(call: object) -> JsonObject:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise TemplateError("a tool call is of no function")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(given: object) -> JsonObject:
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}


def _add_reasoning(message: JsonObject, shaped: JsonObject) -> None:
    reasoning = message.get("reasoning")
    reasoning = message.get("reasoning_content") if reasoning is None else reasoning
    if reasoning is not None:
        shaped["reasoning"] = shaped["reasoning_content"] = reasoning


def _as_system(message: JsonObject) -> JsonObject:
    if message["role"] != "developer":
        return message
    return {**{k: v for k, v in message.items() if k != "tools"}, "role": "system"}


def _system_first(messages: list[JsonObject]) -> list[JsonObject]:
    """Merge system messages into one at the beginning, unless one stands there alone."""
    if not any(message["role"] == "system" for message in messages[1:]):
        return messages
    said = [_joined(m["content"]) for m in messages if m["role"] == "system"]
    rest = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(text for text in said if text)}, *rest]


def _joined(content: str | list[JsonObject]) -> str:
    return content if isinstance(content, str) else "\n".join(_texts(content))


def _texts(parts: Sequence[JsonObject]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]


def _tools(tools: object) -> list[JsonObject] | None:
    """Write tools out as the engine's schema does: its fields, in its order."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise TemplateError("tools is no list of tools")
    return [_tool(tool) for tool in tools]


def _tool(tool: object) -> JsonObject:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict):
        raise TemplateError("a tool is of no function")
    deferred = tool.get("defer_loading")
    written = {name: function.get(name) for name in ("name", "description", "parameters")}
    rare = {"strict": function.get("strict"), "defer_loading": function.get("defer_loading")}
    if rare["defer_loading"] is None:
        rare["defer_loading"] = deferred
    written |= {name: value for name, value in rare.items() if value is not None}
    whole = {"type": "function", "function": written}
    return whole if deferred is None else {**whole, "defer_loading": deferred}
