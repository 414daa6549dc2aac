"""Responses requests as the chats that engines turn them into.

The question: which OpenAI chat does vLLM make of a /v1/responses request. Instructions become a
first system message. Of the items, what the assistant thought, said and called are parts of one
message as long as none of them comes twice; what a function gave back is a message of the role
"tool". Tools are told flat here and nested in a chat; those that are no functions are the
server's own and reach no template. A last item that is not complete is gone on with.

An earlier response's conversation is known to the engine that gave it, and to nobody else.

Source: vLLM 0.32 entrypoints/openai/responses/utils.py, construct_input_messages and
construct_tool_dicts; protocol.py, input_item_parsing and build_chat_params.
"""

from typing import Any, Final

from leadsman_extproc.body import JsonObject, ResponsesPrompt
from leadsman_extproc.templates import TemplateError

_PARTIAL: Final = frozenset({"in_progress", "incomplete"})
_UNTRANSLATED: Final = frozenset({"custom", "namespace"})


def responses_as_chat(prompt: ResponsesPrompt) -> tuple[list[JsonObject], JsonObject]:
    """Turn a request into chat messages and the fields of a chat request beside them.

    Raises TemplateError where its engine would refuse it, or alone knows its conversation.
    """
    if prompt.goes_on:
        raise TemplateError("the conversation before it is known to its engine alone")
    messages: list[JsonObject] = []
    if prompt.fields.get("instructions"):
        messages.append({"role": "system", "content": prompt.fields["instructions"]})
    for item in prompt.items:
        before = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        added = _message(item)
        if before is not None and added["role"] == "assistant" and _joins(before, added):
            continue
        messages.append(added)
    return messages, _fields(prompt)


def _fields(prompt: ResponsesPrompt) -> JsonObject:
    asked, last = prompt.fields, prompt.items[-1] if prompt.items else {}
    kind = last.get("type") or "message"
    continues = kind in ("message", "reasoning") and last.get("status") in _PARTIAL
    fields: JsonObject = {
        "chat_template_kwargs": asked.get("chat_template_kwargs"),
        "add_generation_prompt": not continues,
        "continue_final_message": continues,
        "add_special_tokens": True,
    }
    reasoning = asked.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") is not None:
        fields["reasoning_effort"] = reasoning["effort"]
    tools = asked.get("tools")
    if isinstance(tools, list):
        functions = [_tool(tool) for tool in tools if _is_function(tool)]
        fields["tools"] = functions or None
    return fields


def _is_function(tool: Any) -> bool:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind in _UNTRANSLATED:
        raise TemplateError(f"a tool is of the kind {kind}")
    return kind == "function"


def _tool(tool: JsonObject) -> JsonObject:
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}


def _message(item: JsonObject) -> JsonObject:
    match item.get("type") or "message":
        case "function_call":
            return {"role": "assistant", "tool_calls": [_call(item)]}
        case "function_call_output":
            call = item.get("call_id")
            return {"role": "tool", "content": item.get("output"), "tool_call_id": call}
        case "reasoning":
            return {"role": "assistant", "reasoning": _thought(item)}
        case "message" if item.get("role") == "assistant":
            return {"role": "assistant", "content": _said(item.get("content"))}
        case "message" if isinstance(item.get("role"), str):
            return item
        case kind:
            raise TemplateError(f"an item of the kind {kind} is no message")


def _call(item: JsonObject) -> JsonObject:
    name = item.get("name")
    if item.get("namespace"):
        raise TemplateError("a function is called in a namespace")
    function = {"name": name, "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _thought(item: JsonObject) -> str:
    if item.get("encrypted_content"):
        raise TemplateError("a thought is encrypted")
    for name in ("content", "summary"):
        if (text := _first_text(item.get(name))) is not None:
            return text
    return ""


def _said(content: object) -> str | None:
    return content if isinstance(content, str) else _first_text(content)


def _first_text(parts: object) -> str | None:
    first = parts[0] if isinstance(parts, list) and parts else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else None


def _joins(before: JsonObject, added: JsonObject) -> bool:
    """Put a part of the assistant's turn into the message before, where it has no such part yet.

    Any number of calls belongs to one message.
    """
    if calls := added.get("tool_calls"):
        before["tool_calls"] = [*(before.get("tool_calls") or ()), *calls]
        return True
    (name,) = added.keys() - {"role"}
    if before.get(name) is not None:
        return False
    before[name] = added[name]
    return True
