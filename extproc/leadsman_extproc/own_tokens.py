"""What the models' own tokenizers here make of a body, whether they are believed or not.

The question: which texts does a body become, and which of their tokens are known. A body names a
model by its name, an alias or an adapter. A model without a tokenizer here, and a conversation that
its template refuses, have no text: only an engine can say their tokens.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

from leadsman.units import TokenIds

from leadsman_extproc.asking import Question, question
from leadsman_extproc.bodies import read_body
from leadsman_extproc.body import Body, ChatPrompt, JsonObject, RawPrompts, ResponsesPrompt
from leadsman_extproc.body import Prompt as Asked
from leadsman_extproc.chat import media
from leadsman_extproc.models import ModelText, ServedModel
from leadsman_extproc.prompts import Prompt
from leadsman_extproc.shapes import Parts, Rendered
from leadsman_extproc.templates import TemplateError

LOG: Final = logging.getLogger(__name__)


class OwnTokens:
    """The models by every name that requests call them by."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._names: dict[str, tuple[ServedModel, str | None]] = {}
        for model in models:
            self._names |= dict.fromkeys((model.name, *model.aliases), (model, None))
            self._names |= {adapter: (model, adapter) for adapter in model.adapters}

    def named(self, name: str | None) -> tuple[str, str | None]:
        """Say which model a request means, and which adapter."""
        served, adapter = self._names.get(name or "", (None, None))
        return (name or "" if served is None else served.name), adapter

    def text(self, body: Body) -> ModelText | None:
        """Return the model's way from a prompt to tokens, where it is known here."""
        served, _ = self._names.get(body.model or "", (None, None))
        return None if served is None else served.text

    def plans(self, body: Body) -> Parts:
        """Look up the prompts' segments; give prompts that came as ids; count the media."""
        text, prompt = self.text(body), body.prompt
        if isinstance(prompt, RawPrompts):
            if prompt.ids:
                ids = [Prompt([given], items=prompt.items) for given in prompt.ids]
                return Parts(ids=ids, media=prompt.media)
            rendered = [Rendered(text=one.encode()) for one in prompt.texts]
        elif text is not None:
            try:
                rendered = [text.render(prompt)]
            except TemplateError as problem:
                LOG.info("no text by the template", extra={"model": body.model, "why": problem})
                return Parts(media=_media(prompt))
        if text is None:
            return Parts(media=_media(prompt))
        return Parts(
            plans=[text.segments.plan(one.text) for one in rendered],
            media=prompt.media if isinstance(prompt, RawPrompts) else rendered[0].media,
            certain=rendered[0].certain,
        )

    def tokens(self, path: str, sent: bytes) -> TokenIds | None:
        """Tokenize a body of one prompt; None where only an engine could."""
        body = read_body(path, sent)
        text = self.text(body) if isinstance(body, Body) else None
        if text is None or not isinstance(body, Body):
            return None
        parts = self.plans(body)
        if parts.media or len(parts.plans) != 1:
            return None
        ids = text.segments.finish(parts.plans[0]).whole()
        return text.tokenizer.wrapped(ids) if wraps(body.prompt) else ids

    def question(self, path: str, sent: bytes) -> Question | None:
        """Put a body as a question to an engine; None where none could be asked."""
        body = read_body(path, sent)
        return question(body, sent, self.text(body)) if isinstance(body, Body) else None


def wraps(prompt: Asked) -> bool:
    """Whether the engine adds its begin and end tokens: to completions, to chats if asked to.

    To Responses always, also where the template has written them. Source: vLLM 0.32
    entrypoints/openai/responses/protocol.py, build_tok_params.
    """
    if isinstance(prompt, RawPrompts):
        return prompt.specials
    if isinstance(prompt, ResponsesPrompt):
        return True
    return isinstance(prompt, ChatPrompt) and prompt.fields.get("add_special_tokens") is True


def conversation(prompt: Asked) -> Sequence[JsonObject]:
    """List what may hold media beside text, whatever the API calls it."""
    if isinstance(prompt, RawPrompts):
        return ()
    if isinstance(prompt, ResponsesPrompt):
        return [item for item in prompt.items if item.get("type") in (None, "message")]
    return prompt.messages


def _media(prompt: Asked) -> int:
    """Count the media of a request, also of one that has no text here."""
    return prompt.media if isinstance(prompt, RawPrompts) else media(conversation(prompt))
