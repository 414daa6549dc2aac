"""Templates of the families: text and tokens are transformers' own, feature by feature.

`make parity` runs many more conversations and prints how many of them were compared.
"""

import copy
import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman_extproc.body import ChatPrompt
from leadsman_extproc.chat import chat
from leadsman_extproc.models import ModelText
from leadsman_extproc.shapes import Chat
from leadsman_extproc.templates import TemplateError

from .families import FAMILIES, FEATURES, SPECIALS, bodies
from .vocabulary import text_of, transformers_tokenizer

EXAMPLES = int(os.environ.get("PARITY_EXAMPLES", "15"))
TALLY: Counter[tuple[str, str, str]] = Counter()
family_text = cache(lambda family, name: text_of(family, name, SPECIALS[family]))


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print what was compared; no feature may have been refused throughout."""
    yield
    print(f"\n{'family':10}{'feature':12}{'conversations':>14}{'refused':>9}{'mismatches':>12}")
    for family, feature in dict.fromkeys(key[:2] for key in sorted(TALLY)):
        alike, unlike, refused = (
            TALLY[family, feature, verdict] for verdict in ("alike", "unlike", "refused")
        )
        print(f"{family:10}{feature:12}{alike + unlike:14}{refused:9}{unlike:12}")
        assert alike


def by_transformers(source: str, talk: Chat, specials: Any) -> Any:
    def apply(*, tokenize: bool) -> Any:
        return transformers_tokenizer().apply_chat_template(
            copy.deepcopy(list(talk.messages)),
            tools=copy.deepcopy(talk.tools),
            chat_template=source,
            tokenize=tokenize,
            return_dict=False,
            add_generation_prompt=talk.add_generation_prompt,
            continue_final_message=talk.continue_final_message,
            **(specials | dict(talk.variables)),
        )

    try:
        return apply(tokenize=False), apply(tokenize=True)
    except Exception:  # noqa: BLE001
        return None


def by_us(text: ModelText, prompt: ChatPrompt) -> Any:
    try:
        rendered = text.render(prompt)
    except TemplateError:
        return None
    return rendered.text.decode(), text.segments.ids(rendered.text).tolist()


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_text_and_tokens_are_those_of_transformers(family, feature, data):
    name = data.draw(st.sampled_from(FAMILIES[family]))
    fields = data.draw(bodies(family, feature))
    text = family_text(family, name)

    ours = by_us(text, ChatPrompt(messages=fields["messages"], fields=fields))

    template = text.templates["default"]
    talk = chat(copy.deepcopy(fields["messages"]), fields, template, {})
    theirs = by_transformers(template.source, talk, SPECIALS[family])
    verdict = "unlike" if ours != theirs else "refused" if ours is None else "alike"
    TALLY[family, feature, verdict] += 1
    assert ours == theirs
