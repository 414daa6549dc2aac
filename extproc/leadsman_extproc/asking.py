"""What an engine is asked, to learn which tokens a body becomes.

The question: how is one request put so that the engine's answer is about that request. `/render`
takes the body as the client sent it, but few engines serve it. `/tokenize` takes a completion's
text, or a chat's messages, tools and template arguments, and reads over everything else: so what
reaches a chat's template by fields of its own (`reasoning_effort`, `documents`) is put among the
arguments, and a conversation of the Messages API is written as the chat that it means.

Not asked: several prompts, for `/tokenize` takes one, and token ids, which nobody doubts.

Source: vLLM 0.32 entrypoints/serve/tokenize/protocol.py, TokenizeChatRequest, and
entrypoints/openai/chat_completion/protocol.py, build_chat_params.
"""

from typing import Final

import msgspec

from leadsman_extproc.body import (
    Body,
    ChatPrompt,
    JsonObject,
    MessagesPrompt,
    RawPrompts,
    ResponsesPrompt,
)
from leadsman_extproc.chat import variables
from leadsman_extproc.messages_api import as_chat
from leadsman_extproc.models import ModelText
from leadsman_extproc.responses_api import responses_as_chat
from leadsman_extproc.templates import TemplateError

_KEPT: Final = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One body as it is asked about.

    path: of the API that it came to, where engines say the tokens of such a body. sent: as it
    came. tokenize: what `/tokenize` takes in its place; None where that cannot be asked about it.
    """

    path: str | None
    sent: bytes
    tokenize: bytes | None


def question(body: Body, sent: bytes, text: ModelText | None) -> Question | None:
    """Put a request as a question; text: its model's, where it is known here."""
    match body.prompt:
        case RawPrompts(texts=(only,), specials=specials):
            asked: JsonObject | None = {"prompt": only, "add_special_tokens": specials}
        case ChatPrompt(messages=messages, fields=fields):
            asked = _chat(messages, fields)
        case MessagesPrompt() | ResponsesPrompt(goes_on=False):
            asked = _other(body.prompt, text)
        case _:
            return None
    encoded = None if asked is None else msgspec.json.encode({"model": body.model, **asked})
    return Question(path=body.renders, sent=sent, tokenize=encoded)


def _other(prompt: MessagesPrompt | ResponsesPrompt, text: ModelText | None) -> JsonObject | None:
    try:
        if isinstance(prompt, ResponsesPrompt):
            return _chat(*responses_as_chat(prompt))
        return _chat(*as_chat(prompt, system_first=text is not None and text.wants_system_first))
    except TemplateError:
        return None


def _chat(messages: list[JsonObject], fields: JsonObject) -> JsonObject | None:
    asked = {name: fields[name] for name in _KEPT if fields.get(name) is not None}
    try:
        return {"messages": messages, **asked, "chat_template_kwargs": variables(fields)}
    except TemplateError:
        return None
