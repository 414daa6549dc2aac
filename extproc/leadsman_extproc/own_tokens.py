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
from leadsman_extproc.body import Body, ChatPrompt, Prompt, RawPrompts
from leadsman_extproc.chat import media
from leadsman_extproc.models import ModelText, ServedModel
from leadsman_extproc.shapes import Plan, Rendered
from leadsman_extproc.templates import TemplateError

LOG: Final = logging.getLogger(__name__)


class OwnTokens:
    """The models by every name that requests call them by."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._names: dict[str, tuple[ServedModel, str | None]] = {}
        for model in models:
            self._names |= dict.fromkeys((model.name, *model.aliases), (model, None))
            self._names |= {adapter: (model, adapter) for adapter in model.adapters}

    def named(self, name: str) -> tuple[str, str | None]:
        """Say which model a request means, and which adapter."""
        served, adapter = self._names.get(name, (None, None))
        return (name if served is None else served.name), adapter

    def text(self, body: Body) -> ModelText | None:
        """Return the model's way from a prompt to tokens, where it is known here."""
        served, _ = self._names.get(body.model, (None, None))
        return None if served is None else served.text

    def plans(self, body: Body) -> tuple[Sequence[Plan], Sequence[TokenIds], int]:
        """Look up the prompts' segments; give prompts that came as ids; count the media."""
        text = self.text(body)
        if isinstance(body.prompt, RawPrompts):
            if body.prompt.ids:
                return (), body.prompt.ids, 0
            rendered = [Rendered(text=prompt.encode()) for prompt in body.prompt.texts]
        elif text is not None:
            try:
                rendered = [text.render(body.prompt)]
            except TemplateError as problem:
                LOG.info("no text by the template", extra={"model": body.model, "why": problem})
                return (), (), _media(body.prompt)
        if text is None:
            return (), (), _media(body.prompt)
        plans = [text.segments.plan(prompt.text) for prompt in rendered]
        return plans, (), sum(len(prompt.media) for prompt in rendered)

    def tokens(self, path: str, sent: bytes) -> TokenIds | None:
        """Tokenize a body of one prompt; None where only an engine could."""
        body = read_body(path, sent)
        text = self.text(body) if isinstance(body, Body) else None
        if text is None or not isinstance(body, Body):
            return None
        plans, _, media_items = self.plans(body)
        if media_items or len(plans) != 1:
            return None
        ids = text.segments.finish(plans[0]).whole()
        return text.tokenizer.wrapped(ids) if wraps(body.prompt) else ids

    def question(self, path: str, sent: bytes) -> Question | None:
        """Put a body as a question to an engine; None where none could be asked."""
        body = read_body(path, sent)
        return question(body, sent, self.text(body)) if isinstance(body, Body) else None


def wraps(prompt: Prompt) -> bool:
    """Whether the engine adds its begin and end tokens: to completions, to chats if asked to."""
    if isinstance(prompt, RawPrompts):
        return prompt.specials
    return isinstance(prompt, ChatPrompt) and prompt.fields.get("add_special_tokens") is True


def _media(prompt: Prompt) -> int:
    """Count the media of a chat that has no text here: its engine makes tokens of them too."""
    return len(media(prompt.messages)) if isinstance(prompt, ChatPrompt) else 0
