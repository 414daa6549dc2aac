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

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment

from leadsman_extproc.body import JsonObject
from leadsman_extproc.content_format import iterates_content

ContentFormat: TypeAlias = Literal["string", "openai"]

_CONTINUE: Final = "CONTINUE_FINAL_MESSAGE_TAG "
_PROBLEMS: Final = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError)
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")


class TemplateError(Exception):
    """A template makes no text of this conversation."""


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as templates see it.

    messages: in the shape that `chat.normalized` gives. variables: everything else that the
    template may name, from the request and from the engine's defaults.
    """

    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] | None = None
    variables: Mapping[str, Any] = msgspec.field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class ChatTemplate:
    """One compiled template.

    content_format: whether it takes content as text or as parts. knows_developer: whether it has
    that role. wants_system_first: whether a system message may only stand at the beginning.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            self._template = _ENVIRONMENT.from_string(source)
            # Jinja's own chain of maps is walked field by field for every text: 12 us.
            self._template.globals = dict(self._template.globals)
            tree = _ENVIRONMENT.parse(source)
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
        if chat.continue_final_message:
            messages[-1] = _marked(messages[-1], self.source)
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
        return [_until_mark("".join(pieces))] if chat.continue_final_message else pieces


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


class _Generation(jinja2.ext.Extension):
    """The tag that marks what an assistant said; only training needs the mark."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own type)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """transformers' environment; a key of a plain dictionary is found without a failing getattr.

    Jinja asks for the attribute first and catches that there is none: 1 us a field, and a
    conversation has hundreds of them.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _METHODS:
            return obj[attribute]
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    """Make the environment that transformers compiles templates in.

    Nothing is escaped: the text goes to a tokenizer, never to a browser.
    """
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002  (templates pass it by position too)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)  # noqa: DTZ005  (engines write their local time)


_METHODS: Final = frozenset(dir(dict))
_ENVIRONMENT: Final = _environment()


def _without_nulls(message: JsonObject) -> JsonObject:
    """Drop keys that are null, and tell reasoning under each name that templates read."""
    if len(message) == 2 and type(message.get("content")) is str:
        return message  # the other is its role: most messages are no more than that
    kept = {name: value for name, value in message.items() if value is not None}
    reasoning = next((kept[name] for name in _REASONING if name in kept), None)
    if reasoning is None:
        return kept
    return {"thinking": reasoning, **kept, "reasoning_content": reasoning}


def _marked(message: JsonObject, source: str) -> JsonObject:
    """Mark the end of the final message's text, so that what follows it can be cut off."""
    content = message.get("content")
    if "content" not in source or content is None:
        raise TemplateError("there is no final message to continue")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUE}
    parts = list(content)
    for index in range(len(parts) - 1, -1, -1):
        if "text" in parts[index]:
            parts[index] = {**parts[index], "text": parts[index]["text"] + _CONTINUE}
            return {**message, "content": parts}
    raise TemplateError("there is no text in the final message to continue")


def _until_mark(text: str) -> str:
    """Cut the text at the mark; a template that trims the message trims the mark's space too."""
    at = text.rfind(_CONTINUE.strip())
    if at < 0:
        raise TemplateError("the template does not show the final message")
    spaced = text.startswith(_CONTINUE, at)
    return text[:at] if spaced else text[:at].rstrip()
