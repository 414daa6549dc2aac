"""How a model's engine turns prompts into tokens: its tokenizer, its template, its segments.

A model is read from a directory as engines read it: `tokenizer.json`, `tokenizer_config.json`,
`chat_template.jinja` where it has one. A template that the engine was given on its command line
overrides the directory's. A tokenizer without a template serves completions alone.

Source: transformers 5.24 tokenization_utils_base.py, _from_pretrained and get_chat_template.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from leadsman_extproc.body import ChatPrompt, JsonObject, MessagesPrompt, ResponsesPrompt
from leadsman_extproc.chat import chat, media, without_media
from leadsman_extproc.messages_api import as_chat
from leadsman_extproc.responses_api import responses_as_chat
from leadsman_extproc.segments import SegmentCache
from leadsman_extproc.shapes import Chat, Rendered
from leadsman_extproc.templates import ChatTemplate, TemplateError
from leadsman_extproc.tokenizer import Tokenizer, cut_points, load_tokenizer

CACHE_BYTES: Final = 512 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelText:
    """One model's way from a prompt to tokens.

    templates: by name; "default", and "tool_use" for requests with tools where it exists.
    variables: what the engine gives every template (--default-chat-template-kwargs).
    """

    tokenizer: Tokenizer
    segments: SegmentCache
    templates: Mapping[str, ChatTemplate] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wants_system_first(self) -> bool:
        """Whether a system message may only stand at the beginning."""
        return any(template.wants_system_first for template in self.templates.values())

    def render(self, prompt: ChatPrompt | MessagesPrompt | ResponsesPrompt) -> Rendered:
        """Write out a conversation. Raises TemplateError where the engine would refuse it."""
        template = self._template(with_tools=bool(prompt.fields.get("tools")))
        if isinstance(prompt, MessagesPrompt):
            messages, fields = as_chat(prompt, system_first=template.wants_system_first)
        elif isinstance(prompt, ResponsesPrompt):
            messages, fields = responses_as_chat(prompt)
        else:
            messages, fields = prompt.messages, prompt.fields
        text, items = self._written(messages, fields, template), media(messages)
        if not items:
            return Rendered(text=text)
        marked = self._written(without_media(messages), fields, template)
        return Rendered(text=text, media=items, certain=_alike(text, marked))

    def _written(
        self, messages: list[JsonObject], fields: JsonObject, template: ChatTemplate
    ) -> bytes:
        pieces = template.pieces(chat(messages, fields, template, self.variables))
        try:
            return b"".join(map(str.encode, pieces))
        except UnicodeEncodeError as problem:
            raise TemplateError("the text cannot be written as UTF-8") from problem

    def _template(self, *, with_tools: bool) -> ChatTemplate:
        name = "tool_use" if with_tools and "tool_use" in self.templates else "default"
        template = self.templates.get(name)
        if template is None:
            raise TemplateError("the model has no chat template")
        return template


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that engines serve under `name`; `aliases` name it too, `adapters` are its LoRAs."""

    name: str
    text: ModelText | None = None
    aliases: Sequence[str] = ()
    adapters: Sequence[str] = ()


def load_model(
    directory: Path,
    *,
    chat_template: str | None = None,
    variables: Mapping[str, Any] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> ModelText:
    """Read a model's files. Raises OSError or ValueError where they cannot be read."""
    tokenizer = load_tokenizer(directory / "tokenizer.json")
    config = _config(directory / "tokenizer_config.json")
    sources = _sources(directory, config) if chat_template is None else {"default": chat_template}
    return model_text(tokenizer, _special_tokens(config), sources, variables, cache_bytes)


def model_text(
    tokenizer: Tokenizer,
    specials: Mapping[str, str],
    sources: Mapping[str, str],
    variables: Mapping[str, Any] | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> ModelText:
    """Put a tokenizer and templates together; texts are cut at the tokens that these write."""
    templates = {name: ChatTemplate(source, specials) for name, source in sources.items()}
    contents = [token.content for token in tokenizer.added_tokens]
    written = [*specials.values(), *_written(templates.values())]
    wanted = [token for token in contents if any(token in text for text in written)]
    cuts = cut_points(tokenizer.added_tokens, wanted)
    return ModelText(
        tokenizer=tokenizer,
        segments=SegmentCache(tokenizer.encode, cuts, cache_bytes),
        templates=templates,
        variables=variables or {},
    )


def _config(path: Path) -> JsonObject:
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=JsonObject)
    except msgspec.DecodeError as problem:
        raise ValueError(f"{path}: {problem}") from problem


def _alike(one: bytes, other: bytes) -> int:
    """Count the bytes with which both begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _special_tokens(config: JsonObject) -> dict[str, str]:
    """Name the special tokens that templates may read: bos_token and its like."""
    named = {k: v for k, v in config.items() if k.endswith("_token")}
    texts = {k: v.get("content") if isinstance(v, dict) else v for k, v in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _sources(directory: Path, config: JsonObject) -> dict[str, str]:
    """Find the templates: files of their own override the configuration's."""
    given = config.get("chat_template")
    sources = {"default": given} if isinstance(given, str) else {}
    if isinstance(given, list):
        sources = {entry["name"]: entry["template"] for entry in given}
    alone = directory / "chat_template.jinja"
    if alone.exists():
        sources = {"default": alone.read_text()}
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = path.read_text()
    return sources


def _written(templates: Iterable[ChatTemplate]) -> list[str]:
    """Show texts of the templates, and texts by them: special tokens may be put together there."""
    talk = [{"role": role, "content": "t"} for role in ("system", "user", "assistant", "user")]
    written = []
    for template in templates:
        written.append(template.source)
        for messages in (talk, talk[1:]):
            try:
                written.append(template.render(Chat(messages=messages)))
            except TemplateError:
                continue
    return written
