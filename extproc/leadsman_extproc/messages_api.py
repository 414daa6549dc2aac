"""Anthropic conversations as the chats that engines turn them into.

The question: which OpenAI chat does vLLM make of a /v1/messages request. The system prompt becomes
a first message, its blocks joined without anything between; blocks that Claude Code changes with
every request are dropped. Uses of tools become calls with arguments in JSON, their results
messages of the role "tool", ahead of the user's own words; thinking becomes reasoning. A system
message in the middle stays there, unless the template only takes one at the beginning.

Source: vLLM 0.33 entrypoints/anthropic/serving.py, to_chat_completion_request.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from leadsman_extproc.body import JsonObject, MessagesPrompt
from leadsman_extproc.templates import TemplateError

_BILLING: Final = "x-anthropic-billing-header"
_CHANGES: Final = frozenset({"tool_addition", "tool_removal"})


def as_chat(prompt: MessagesPrompt, *, system_first: bool) -> tuple[list[JsonObject], JsonObject]:
    """Turn a conversation into chat messages and the fields of a chat request beside them.

    system_first: whether the template takes a system message only at the beginning.
    Raises TemplateError where no template could tell it.
    """
    inline = [m for m in prompt.messages if m["role"] == "system"] if system_first else []
    said = [_system_text(prompt.fields.get("system"))]
    said += [_inline_text(message) for message in inline]
    system = "".join(said)
    messages: list[JsonObject] = [{"role": "system", "content": system}] if system else []
    for message in prompt.messages:
        messages += _messages(message, system_first=system_first)
    return messages, _fields(prompt.fields)


def _fields(asked: JsonObject) -> JsonObject:
    fields: JsonObject = {"chat_template_kwargs": asked.get("chat_template_kwargs")}
    thinking, output = asked.get("thinking"), asked.get("output_config")
    if isinstance(output, dict) and output.get("effort") is not None:
        fields["reasoning_effort"] = output["effort"]
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        fields["reasoning_effort"] = "none"
    tools = asked.get("tools")
    if isinstance(tools, list) and tools:
        fields["tools"] = [_tool(tool) for tool in tools]
    return fields


def _tool(tool: Any) -> object:
    if not isinstance(tool, dict):
        return tool
    schema = tool.get("input_schema")
    if isinstance(schema, dict):
        schema = schema if "type" in schema else {**schema, "type": "object"}
    function = {"name": tool.get("name"), "description": tool.get("description")}
    function |= {"parameters": schema, "strict": tool.get("strict")}
    function["defer_loading"] = tool.get("defer_loading")
    return {"type": "function", "function": function}


def _system_text(content: object) -> str:
    """Join a system prompt's texts, without the lines that change with every request."""
    if isinstance(content, str):
        return content
    texts = (block.get("text") for block in _blocks(content) if block.get("type") == "text")
    return "".join(t for t in texts if isinstance(t, str) and not t.startswith(_BILLING))


def _inline_text(message: JsonObject) -> str:
    text = _system_text(message.get("content"))
    return "" if text.startswith(_BILLING) else text


def _messages(message: JsonObject, *, system_first: bool) -> Iterator[JsonObject]:
    role, content = message["role"], message.get("content")
    if role == "system":
        text = "" if system_first else _inline_text(message)
        if text:
            yield {"role": "system", "content": text}
        return
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    blocks = _blocks(content)
    if role == "user":
        for block in blocks:
            if block.get("type") == "tool_result":
                yield from _tool_result(block)
    shaped = _shaped(role, blocks)
    if role != "user" or "content" in shaped:
        yield shaped


def _shaped(role: str, blocks: Sequence[JsonObject]) -> JsonObject:
    shaped: JsonObject = {"role": role}
    if any(block.get("type") in _CHANGES for block in blocks):
        raise TemplateError("tools are added or removed within the conversation")
    thoughts = [b.get("thinking") or "" for b in blocks if b.get("type") == "thinking"]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    parts = [part for block in blocks if (part := _part(block, role)) is not None]
    if thoughts:
        shaped["reasoning"] = "".join(thoughts)
    if calls:
        shaped["tool_calls"] = calls
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        shaped["content"] = parts[0]["text"] if alone else parts
    return shaped


def _part(block: JsonObject, role: str) -> JsonObject | None:
    kind = block.get("type")
    if kind == "text" and block.get("text"):
        return {"type": "text", "text": block["text"]}
    if kind == "image" and block.get("source"):
        return _image(block["source"])
    if kind == "tool_result" and role != "user":
        content = block.get("content")
        return {"type": "text", "text": f"Tool result: {content or ''}"}
    return None


def _image(source: object) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": source}}


def _call(block: JsonObject) -> JsonObject:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id") or "", "type": "function", "function": function}


def _tool_result(block: JsonObject) -> Iterator[JsonObject]:
    """Write one result as messages: its text, then its images, then its references to tools."""
    call, content = block.get("tool_use_id") or "", block.get("content")
    items = _blocks(content)
    texts = [i.get("text", "") for i in items if i.get("type") == "text"]
    text = content if isinstance(content, str) else "\n".join(texts)
    images = [_image(i.get("source")) for i in items if i.get("type") == "image"]
    references = [
        {"type": "tool_reference", "name": name}
        for i in items
        if i.get("type") == "tool_reference" and (name := i.get("tool_name") or i.get("name"))
    ]
    yield {"role": "tool", "tool_call_id": call, "content": text}
    if images:
        yield {"role": "user", "content": images}
    if references:
        yield {"role": "tool", "tool_call_id": call, "content": references}


def _blocks(content: object) -> list[JsonObject]:
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]
