"""Bodies of the Responses API, written as the chat bodies that vLLM makes of them.

Earlier responses are not kept, as in a vLLM without VLLM_ENABLE_RESPONSES_API_STORE.

Source: vLLM 0.32 entrypoints/openai/responses/utils.py, construct_input_messages.
"""

from collections.abc import Mapping
from typing import Any

from leadsman_engines.simulated.bodies import BadRequestError, need


def responses_as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Write a Responses body as a chat body; raises BadRequestError."""
    earlier = body.get("previous_response_id")
    if earlier is not None:
        raise BadRequestError(
            f"Response with id '{earlier}' not found.",
            param="response_id",
            status=404,
            kind="invalid_request_error",
        )
    given = need(body, "input", object, "string or list")
    if not isinstance(given, str | list):
        raise BadRequestError("Input should be a valid string or list", param="input")
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        for item in given:
            _add(messages, item)
    chat = {k: v for k, v in body.items() if k not in ("input", "instructions", "tools")}
    chat |= {"messages": messages, "max_tokens": body.get("max_output_tokens")}
    effort = (body.get("reasoning") or {}).get("effort")
    if effort is not None:
        chat["reasoning_effort"] = effort
    functions = [tool for tool in body.get("tools") or () if tool.get("type") == "function"]
    if functions:
        chat["tools"] = [{"type": "function", "function": tool} for tool in functions]
    return chat


def _add(messages: list[dict[str, Any]], item: Any) -> None:
    """Add an item as a message, or to the assistant's before it."""
    if not isinstance(item, dict):
        raise BadRequestError("Input should be a valid dictionary", param="input")
    kind = item.get("type", "message")
    if kind == "function_call_output":
        result = {"role": "tool", "tool_call_id": item.get("call_id")}
        messages.append(result | {"content": item.get("output")})
        return
    if kind == "message" and item.get("role") != "assistant":
        messages.append({"role": item.get("role"), "content": item.get("content")})
        return
    part = _part(kind, item)
    if not messages or messages[-1]["role"] != "assistant" or part.keys() & messages[-1].keys():
        messages.append({"role": "assistant"})
    messages[-1] |= part


def _part(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Write what the assistant said, thought or called as a part of its message."""
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"tool_calls": [call]}
    if kind in ("message", "reasoning"):
        told = item.get("content") or item.get("summary") or ""
        text = told if isinstance(told, str) else told[0]["text"]
        return {"content" if kind == "message" else "reasoning": text}
    raise BadRequestError(f"Unsupported input item type: {kind}", param="input")
