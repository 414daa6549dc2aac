"""Chat templates: the text that an engine makes of a conversation.

The question: which characters does the engine tokenize. Templates are Jinja2 programs that come
with a model; engines run them through transformers, in a sandboxed environment with a few names of
its own, after putting messages into the shape that they expect (see `chat`). All of that has to
be the same here, to the space, or no block key ever matches.

A template that refuses a conversation (roles that must alternate) raises `TemplateError`: the
engine will say so itself, so the caller falls back to an estimate. A template that the *request*
brings is not run: engines ignore or refuse it unless told to trust clients, and it is a stranger's
program. Ignored: models whose engine renders by Python code rather than by a template.

Source: transformers 5.24 utils/chat_template_utils.py, render_jinja_template, and
tokenization_utils_base.py, apply_chat_template; vLLM 0.33 renderers/hf.py.
"""

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import jinja2

from leadsman_extproc.body import JsonObject
from leadsman_extproc.content_format import iterates_content
from leadsman_extproc.sandbox import ENVIRONMENT
from leadsman_extproc.shapes import Chat

ContentFormat: TypeAlias = Literal["string", "openai"]

_CONTINUE: Final = "CONTINUE_FINAL_MESSAGE_TAG "
_PROBLEMS: Final = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")


class TemplateError(Exception):
    """A template makes no text of this conversation."""


class ChatTemplate:
    """One compiled template.

    content_format: whether it takes content as text or as parts. knows_developer: whether it has
    that role. wants_system_first: whether a system message may only stand at the beginning.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = ENVIRONMENT.from_string(source)
            # Jinja's own chain of maps is walked field by field for every text: 12 us.
            self._template.globals = dict(self._template.globals)
            tree = ENVIRONMENT.parse(source)
        except jinja2.TemplateError as problem:
            raise TemplateError(f"the chat template does not compile: {problem}") from problem
        self.source = source
        self.content_format: ContentFormat = "openai" if iterates_content(tree) else "string"
        self.knows_developer = "'developer'" in source or '"developer"' in source
        self.wants_system_first = not _takes_system_anywhere(self._template)
        self._special_tokens = dict(special_tokens)

    def render(self, chat: Chat) -> str:
        """Write the text of a conversation. Raises TemplateError."""
        return "".join(self.pieces(chat))

    def pieces(self, chat: Chat) -> list[str]:
        """Write the text of a conversation in pieces as they come. Raises TemplateError.

        What clients wrote is mostly ASCII, and special tokens often are not: a text of both takes
        twice the memory and is slow to encode, its pieces are not.
        """
        messages = [_without_nulls(message) for message in chat.messages]
        said = ""
        if chat.continue_final_message:
            messages[-1], said = _marked(messages[-1], self.source)
        names = self._special_tokens | dict(chat.variables)
        names |= {"messages": messages, "add_generation_prompt": chat.add_generation_prompt}
        names.setdefault("documents", None)
        names["tools"] = chat.tools
        try:
            context = self._template.new_context(names)
            pieces = list(self._template.root_render_func(context))
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
        ) as problem:
            raise TemplateError(str(problem)) from problem
        except RecursionError as problem:
            raise TemplateError("the conversation is nested too deeply") from problem
        return [_until_mark("".join(pieces), said)] if chat.continue_final_message else pieces


def _takes_system_anywhere(template: jinja2.Template) -> bool:
    """Try a system message in the middle of a conversation.

    Source: vLLM 0.33 entrypoints/anthropic/serving.py, _detect_merge_inline_system.
    """
    talk = [{"role": role, "content": "t"} for role in ("system", "user") * 2]
    try:
        template.render(messages=talk, add_generation_prompt=False)
    except jinja2.TemplateError:
        return False
    except _PROBLEMS:
        return True
    return True


def _without_nulls(message: JsonObject) -> JsonObject:
    """Drop keys that are null, and tell reasoning under each name that templates read."""
    if len(message) == 2 and type(message.get("content")) is str:
        return message  # the other is its role: most messages are no more than that
    kept = {name: value for name, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in _REASONING if name in kept), None)
    if reasoning is None:
        return kept
    return {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _marked(message: JsonObject, source: str) -> tuple[JsonObject, str]:
    """Mark the end of the final message's text, so that what follows it can be cut off."""
    content = message.get("content")
    if "content" not in source or content is None:
        raise TemplateError("there is no final message to continue")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUE}, content
    parts = list(content)
    for index in range(len(parts) - 1, -1, -1):
        if "text" in parts[index]:
            said = parts[index]["text"]
            parts[index] = {**parts[index], "text": said + _CONTINUE}
            return {**message, "content": parts}, said
    raise TemplateError("there is no text in the final message to continue")


def _until_mark(text: str, said: str) -> str:
    """Cut the text at the mark; a template that trims the message trims the mark's space too."""
    at = text.rfind(_CONTINUE.strip())
    if at < 0 or said.strip() not in text:
        raise TemplateError("the template does not show the final message")
    spaced = text.startswith(_CONTINUE, at)
    return text[:at] if spaced else text[:at].rstrip()
