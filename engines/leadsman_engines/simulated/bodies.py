"""Request bodies of all APIs, read into what the engine needs to know.

Bad input is answered as vLLM answers it: status 400, the field named in `param`. An unknown model
is 404. Fields that change neither timing nor length are read over, as are unknown ones.

Source: vLLM 0.32 entrypoints/openai/*/protocol.py, anthropic/serving.py, serve/exception_handling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

Api = Literal["chat", "completions", "messages", "responses", "embeddings", "generate"]
"""Messages and responses are read as the chats that they mean, tokens in and out as completions."""


class BadRequestError(ValueError):
    """What the client did wrong, and in which field."""

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, kind: str = ""
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.kind = kind or "BadRequestError"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Messages to be rendered by the model's template, with the template's other names."""

    messages: Sequence[Mapping[str, Any]]
    options: Mapping[str, Any]


Prompt = Conversation | str | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One HTTP request: prompts (several only for completions) and how to answer.

    output_tokens: the true length, where the client sets it (`vllm_xargs.output_tokens`), for a
        simulated model has none of its own (`custom_params.output_tokens` of an SGLang).
    rank: the scheduler that it is for, where the caller says so.
    """

    api: Api
    prompts: Sequence[Prompt]
    max_tokens: int | None
    output_tokens: int | None
    min_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    ignore_eos: bool
    session_id: str | None
    salt: str
    priority: int
    reads_cache: bool
    rank: int | None


def decode(raw: bytes, content_type: str) -> dict[str, Any]:
    """Read a JSON object; raises BadRequestError."""
    if content_type.split(";", maxsplit=1)[0].strip().lower() != "application/json":
        raise _invalid("Unsupported Media Type: Only 'application/json' is allowed", "")
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(f"JSON decode error: {error}", "body") from error
    if not isinstance(body, dict):
        raise _invalid("Input should be a valid dictionary", "body")
    return body


def _invalid(what: str, field: str) -> BadRequestError:
    message = f"1 validation error:\n  {{'loc': '{field}', 'msg': '{what}'}}"
    return BadRequestError(message, param=field or None, kind="Bad Request")


def need(body: Mapping[str, Any], field: str, kind: type, what: str) -> Any:
    """Read a field that must be there, and of a kind; raises BadRequestError."""
    if field not in body:
        raise _invalid("Field required", f"body.{field}")
    if not isinstance(body[field], kind):
        raise _invalid(f"Input should be a valid {what}", f"body.{field}")
    return body[field]


def _number(body: Mapping[str, Any], field: str, *, least: int = 1) -> int | None:
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid("Input should be a valid integer", f"body.{field}")
    if value < least:
        raise BadRequestError(f"{field} must be at least {least}, got {value}.", param=field)
    return value


def check_model(body: Mapping[str, Any], served: str) -> None:
    """Refuse a model that is not served; none at all means the one that is."""
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise _invalid("Input should be a valid string", "body.model")
    if model and model != served:
        raise BadRequestError(
            f"The model `{model}` does not exist.", param="model", status=404, kind="NotFoundError"
        )


def conversation(body: Mapping[str, Any]) -> Conversation:
    """Read the messages of a chat body, and what its template is told besides."""
    messages = need(body, "messages", list, "list")
    if not messages:
        raise BadRequestError("messages must not be empty", param="messages")
    for index, message in enumerate(messages):
        check_message(message, f"body.messages.{index}")
    options: dict[str, Any] = dict(body.get("chat_template_kwargs") or {})
    options["add_generation_prompt"] = body.get("add_generation_prompt", True)
    options["continue_final_message"] = bool(body.get("continue_final_message"))
    tools = body.get("tools")
    options["tools"] = [_tool(tool) for tool in tools] if tools else None
    return Conversation(messages=messages, options=options)


def _chat(body: Mapping[str, Any]) -> Conversation:
    """Read a chat body; these fields reach the template, and `/tokenize` does not know them."""
    chat = conversation(body)
    options = {"documents": body.get("documents")}
    effort = body.get("reasoning_effort")
    if effort is not None:
        options |= {"enable_thinking": effort != "none"} | dict(chat.options)
        options["reasoning_effort"] = effort
    return Conversation(messages=chat.messages, options={**chat.options, **options})


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Write a tool as its schema orders it; fields that are not set are left out but for three."""
    function = tool["function"]
    written = {name: function.get(name) for name in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        written["strict"] = function["strict"]
    return {"type": "function", "function": written}


def check_message(message: object, where: str) -> None:
    """Refuse what no message can be; raises BadRequestError."""
    if not isinstance(message, dict):
        raise _invalid("Input should be a valid dictionary", where)
    if not isinstance(message.get("role"), str):
        raise _invalid("Field required", f"{where}.role")
    content = message.get("content")
    if not isinstance(content, str | list | None):
        raise _invalid("Input should be a valid string", f"{where}.content")
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or (
            part.get("type") == "text" and not isinstance(part.get("text"), str)
        ):
            raise _invalid("Input should be a valid dictionary", f"{where}.content")


def prompts(body: Mapping[str, Any]) -> list[Prompt]:
    """Read a completion's prompt: text, token ids, or a list of either."""
    prompt = body.get("prompt")
    if prompt is None or prompt in ("", []):
        raise BadRequestError(
            "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt"
        )
    if isinstance(prompt, str):
        return [prompt]
    if _are_ids(prompt):
        return [prompt]
    if isinstance(prompt, list) and all(isinstance(one, str) or _are_ids(one) for one in prompt):
        return list(prompt)
    raise _invalid("Input should be a valid string or list of token ids", "body.prompt")


def _are_ids(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(type(one) is int and 0 <= one < 2**32 for one in value)


def read(api: Api, body: Mapping[str, Any], headers: Mapping[str, str]) -> Ask:
    """Read one body; one of the Messages API as the chat body that it means.

    Raises BadRequestError.
    """
    limit = _number(body, "max_completion_tokens") if api == "chat" else None
    limit = _number(body, "max_tokens") if limit is None else limit
    if limit is None and api in ("completions", "generate"):
        limit = 16
    if api == "embeddings":
        limit = 1
    extra = body.get("vllm_xargs") or body.get("custom_params") or {}
    options = body.get("stream_options") or {}
    stream = bool(body.get("stream"))
    if options and not stream:
        raise BadRequestError(
            "Stream options can only be defined when `stream=True`.", param="stream_options"
        )
    choices = _number(body, "n") or 1
    found = prompts(body) if "prompt" in body or api == "completions" else [_chat(body)]
    session = body.get("session_id") or headers.get("x-session-id") or extra.get("session_id")
    return Ask(
        api=api,
        prompts=[prompt for prompt in found for _ in range(choices)],
        max_tokens=limit,
        output_tokens=_number(extra, "output_tokens"),
        min_tokens=_number(body, "min_tokens", least=0) or 0,
        stream=stream,
        include_usage=bool(options.get("include_usage")) or api == "messages",
        continuous_usage=bool(options.get("continuous_usage_stats")),
        ignore_eos=bool(body.get("ignore_eos")),
        session_id=None if session is None else str(session),
        salt=str(body.get("cache_salt") or ""),
        priority=int(body.get("priority") or headers.get("x-vllm-priority") or 0),
        reads_cache=body.get("prompt_logprobs") is None,
        rank=_rank(body, headers),
    )


def _rank(body: Mapping[str, Any], headers: Mapping[str, str]) -> int | None:
    """Read whose scheduler is asked for; a header goes before the body."""
    stated = headers.get("x-data-parallel-rank")
    if stated is not None and not stated.isdecimal():
        raise BadRequestError(f"Invalid data parallel rank: {stated!r}", param="routed_dp_rank")
    if stated is not None:
        return int(stated)
    name = "routed_dp_rank" if "routed_dp_rank" in body else "data_parallel_rank"
    return _number(body, name, least=0)
