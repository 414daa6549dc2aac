"""Text to token ids and back, as the engine's front end does it.

Model. A conversation is rendered by the model's own Jinja template, in the environment that
transformers gives it, and tokenized without adding special tokens again; a plain prompt is
tokenized with them. Where no tokenizer is given, each UTF-8 byte is one token.

Generated text is drawn from a small vocabulary of tokens that are whole words, so that a reply sent
back in the next turn gives the same tokens again, and its blocks are found.

Source: transformers utils/chat_template_utils.py (the environment); vLLM 0.32 renderers/hf.py
(string or parts content); entrypoints/chat_utils (text parts are joined by a line feed).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer as FastTokenizer

from leadsman_engines.simulated.template_environment import template_environment

VOCABULARY = 256
"""Distinct words that a simulated model knows."""

_MARK = "\u2063continue here\u2063"
Messages = Sequence[Mapping[str, Any]]


class BadTemplateInputError(ValueError):
    """A conversation that the template refuses; the text is the template's own reason."""


class Tokenizer(Protocol):
    """What the server needs of a tokenizer."""

    words: list[tuple[int, str]]
    """Token ids and their texts, for what is generated."""

    end: int
    """The token that ends a reply; it has no text."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Turn text to token ids; `special` adds what the model wants around a plain prompt."""

    def render(self, messages: Messages, options: Mapping[str, Any]) -> str:
        """Write a conversation as the text that the model reads; options: the template's names."""

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Name each token as the vocabulary spells it."""


class ByteTokenizer:
    """One token a byte: enough where only sizes and shared prefixes matter."""

    def __init__(self) -> None:
        self.words: list[tuple[int, str]] = [(ord(letter), letter) for letter in "etaoinshrdlu "]
        self.end = 256

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Spell out the bytes; there is nothing special to add."""
        del special
        return list(text.encode())

    def render(self, messages: Messages, options: Mapping[str, Any]) -> str:
        """Write each message after its role."""
        text = "".join(f"<{one['role']}>{_joined(one.get('content'))}\n" for one in messages)
        if options.get("tools"):
            text = json.dumps(options["tools"]) + text
        return text + ("<assistant>" if options.get("add_generation_prompt", True) else "")

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Show the byte."""
        return [chr(token) for token in ids]


class FileTokenizer:
    """A model's own tokenizer.json and chat template, read from its folder.

    template: a file to use in place of the folder's own template.
    """

    def __init__(self, folder: Path, template: Path | None = None) -> None:
        self._fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_text())
        text = _template_text(folder, config) if template is None else template.read_text()
        self._special = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in config.items()
            if name.endswith("_token") and value
        }
        environment = template_environment()
        self._wants_parts = text is not None and _loops_over_content(environment.parse(text))
        self._template = None if text is None else environment.from_string(text)
        end = self._fast.token_to_id(self._special.get("eos_token", ""))
        self.end = 0 if end is None else end
        self.words = self._whole_words()

    def _whole_words(self) -> list[tuple[int, str]]:
        words: list[tuple[int, str]] = []
        for token in range(self._fast.get_vocab_size()):
            text = self._fast.decode([token])
            plain = text.startswith(" ") and text[1:].isascii() and text[1:].islower()
            if plain and len(text) > 3 and text[1:].isalpha():
                words.append((token, text))
                if len(words) == VOCABULARY:
                    break
        return words

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Run the model's tokenizer."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=special).ids
        return ids

    def render(self, messages: Messages, options: Mapping[str, Any]) -> str:
        """Run the model's chat template; raises BadTemplateInputError with its reason."""
        if self._template is None:
            raise BadTemplateInputError("the tokenizer has no chat template, and none was given")
        shaped = [_shaped(message, parts=self._wants_parts) for message in messages]
        names = {"add_generation_prompt": True, "tools": None, "documents": None} | dict(options)
        continues = names.pop("continue_final_message", False)
        if continues:
            _mark(shaped[-1])
        try:
            text = self._template.render(messages=shaped, **(self._special | names))
        except (TemplateError, TypeError, KeyError) as error:
            raise BadTemplateInputError(str(error)) from error
        return _up_to_mark(text) if continues else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Name each token as the vocabulary spells it."""
        return [self._fast.id_to_token(token) or "" for token in ids]


def _template_text(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Find the template: a file of its own, or in the configuration, alone or among named ones."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text()
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next(one["template"] for one in template if one["name"] == "default")
    return None if template is None else str(template)


def _shaped(message: Mapping[str, Any], *, parts: bool) -> dict[str, Any]:
    """Give a message the form that the template reads: nothing that is null, arguments as objects.

    A tool's result is always text. Reasoning is told under each name that templates know.
    """
    role, content = message["role"], message.get("content")
    shaped: dict[str, Any] = {"role": role, "content": _joined(content)}
    if parts and role != "tool":
        texts = [content] if isinstance(content, str) else content or []
        shaped["content"] = [_text_part(one) for one in texts]
    calls = message.get("tool_calls")
    if calls:
        shaped["tool_calls"] = [_with_object_arguments(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if role == "assistant" and reasoning is not None:
        names = ("thinking", "reasoning", "reasoning_content")
        shaped |= dict.fromkeys(names, reasoning)
    kept = {name: message[name] for name in ("name", "tool_call_id") if message.get(name)}
    return shaped | kept


def _text_part(part: str | Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": part if isinstance(part, str) else part.get("text")}


def _mark(message: dict[str, Any]) -> None:
    """Put a mark behind the text that a reply is to continue."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _MARK + " "
    elif content:
        content[-1] = {"type": "text", "text": content[-1]["text"] + _MARK + " "}


def _up_to_mark(text: str) -> str:
    """Leave the text of the last message open; where the template trims it, it ends trimmed."""
    before, mark, after = text.rpartition(_MARK)
    if not mark:
        raise BadTemplateInputError("the template does not show the message to be continued")
    return before if after.startswith(" ") else before.rstrip()


def _with_object_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except ValueError:
            function["arguments"] = None
    if not isinstance(function.get("arguments"), dict):
        function["arguments"] = {}
    return dict(call) | {"function": function}


def _joined(content: object) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    assert isinstance(content, list)
    texts = [part for part in content if isinstance(part, str) or part.get("type") == "text"]
    return "\n".join(part if isinstance(part, str) else part["text"] for part in texts)


def _loops_over_content(tree: nodes.Template) -> bool:
    """Whether the template walks through a message's content: it then reads parts, not a string."""
    for loop in tree.find_all(nodes.For):
        over = loop.iter
        if isinstance(over, nodes.Getattr) and over.attr == "content":
            return True
        key = over.arg if isinstance(over, nodes.Getitem) else None
        if isinstance(key, nodes.Const) and key.value == "content":
            return True
    return False
