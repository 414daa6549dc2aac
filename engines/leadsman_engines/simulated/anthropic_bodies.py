"""Bodies of the Messages API, written as the chat bodies that vLLM makes of them.

Source: vLLM 0.32 entrypoints/anthropic/serving.py, to_chat_completion_request.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from leadsman_engines.simulated.bodies import check_message, need


def anthropic_as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """Write a Messages body as a chat body; raises BadRequestError."""
    need(body, "max_tokens", int, "integer")
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _plain(body["system"])})
    for message in need(body, "messages", list, "list"):
        check_message(message, "body.messages")
        messages += _anthropic_message(message)
    chat = {key: value for key, value in body.items() if key not in ("system", "tools")}
    tools = body.get("tools")
    if tools:
        chat["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.get("name"),
                    "description": tool.get("description"),
                    "parameters": tool.get("input_schema"),
                },
            }
            for tool in tools
        ]
    return chat | {"messages": messages}


def _plain(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(block["text"] for block in blocks if block.get("type") == "text")


def _anthropic_message(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    if not isinstance(content, list):
        return [dict(message)]
    written: list[dict[str, Any]] = [
        {
            "role": "tool",
            "tool_call_id": block.get("tool_use_id"),
            "content": _plain(block.get("content")),
        }
        for block in content
        if block.get("type") == "tool_result"
    ]
    calls = [
        {
            "id": block.get("id"),
            "type": "function",
            "function": {
                "name": block.get("name"),
                "arguments": msgspec.json.encode(block.get("input", {})).decode(),
            },
        }
        for block in content
        if block.get("type") == "tool_use"
    ]
    texts = [block for block in content if block.get("type") == "text"]
    if texts or calls or not written:
        own: dict[str, Any] = {"role": message["role"], "content": texts or ""}
        written.append(own | ({"tool_calls": calls} if calls else {}))
    return written
