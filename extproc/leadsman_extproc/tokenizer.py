"""Token ids of a text, the same as the engine's.

The question: which ids does the engine's tokenizer give. gigatoken gives the ids of `tokenizers`
some eighty times as fast (300 MB/s once its words are warm, 70 MB/s cold, on DeepSeek's), but not
for every model: it is asked a set of probes first, and where one differs or it cannot load the
file, `tokenizers` is used and the log says so.

A chat's text has its special tokens already, so none are added; a completion's text gets those
that the tokenizer's post-processor adds around it (BOS), which are found by asking it.

Cut points: a text may be tokenized in pieces where the engine's tokenizer itself cuts it. It does
so at added tokens, before anything else, so the ids of the text before and from such a token are
exact if the token is always found there: it must not be normalized, must not reach for the
spaces before it or for whole words, must not overlap any other added token, and no other may reach
back for it. `cut_points` keeps the tokens for which all of this is so.

gigatoken's `encode` holds the GIL, its batch calls release it: long texts take the latter.

Source: tokenizers 0.23 added_vocabulary.rs, extract_and_normalize; gigatoken 0.10.
"""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import gigatoken
import msgspec
import numpy as np
import tokenizers
from leadsman.units import TokenIds

Encode: TypeAlias = Callable[[bytes], TokenIds]

LOG: Final = logging.getLogger(__name__)
_LONG: Final = 65536
_PROBES: Final = (
    "The quick brown fox\n\n  jumps over 12345678 lazy dogs.\t\t!?  \n",
    "naïve Ünïcödé, 日本語のテキスト、한국어, Русский текст, עברית, العربية, ไทย",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 \u00a0\u2003\u200b x\u0000y",
    "def f(x):\n    return {'a': [1, 2.5e-3], \"b\": x**2}  # it's\r\n\tI'LL we've\n\n\n",
    "   leading and trailing   ",
    "",
    " ",
    "\n",
)


class AddedToken(msgspec.Struct):
    """A token that is found in the text before any other, and how it is matched."""

    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class _File(msgspec.Struct):
    added_tokens: list[AddedToken] = msgspec.field(default_factory=list)
    normalizer: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """One model's tokenizer.

    encode: UTF-8 text → ids, special tokens in it found, none added around it.
    before, after: the ids that are added around a completion's text.
    slow_above: bytes above which `encode` is worth a thread of its own.
    """

    name: str
    encode: Encode
    before: TokenIds
    after: TokenIds
    added_tokens: Sequence[AddedToken]
    slow_above: int

    def wrapped(self, ids: TokenIds) -> TokenIds:
        """Add what stands around a completion's text."""
        if not len(self.before) and not len(self.after):
            return ids
        return np.concatenate((self.before, ids, self.after))


def load_tokenizer(path: Path) -> Tokenizer:
    """Load `tokenizer.json`. Raises OSError or ValueError where that cannot be read."""
    raw = path.read_bytes()
    try:
        described = msgspec.json.decode(raw, type=_File)
        slow = tokenizers.Tokenizer.from_str(raw.decode())
    except Exception as problem:
        raise ValueError(f"{path} is not a tokenizer.json: {problem}") from problem
    slow.no_truncation()
    slow.no_padding()
    before, after = _around(slow)
    fast = _gigatoken(raw, slow, described.added_tokens, path)
    return Tokenizer(
        name=str(path),
        encode=_reference(slow) if fast is None else fast,
        before=before,
        after=after,
        added_tokens=tuple(described.added_tokens),
        slow_above=4096 if fast is None else 2**18,
    )


def cut_points(tokens: Sequence[AddedToken], wanted: Iterable[str]) -> re.Pattern[bytes] | None:
    """Match the beginnings of those `wanted` tokens at which a text may be cut, exactly."""
    if any(token.single_word for token in tokens):
        return None
    contents = [token.content for token in tokens]
    ends = {content[start:] for content in contents for start in range(1, len(content))}
    asked = set(wanted)
    safe = [
        token.content.encode()
        for token in tokens
        if token.content in asked
        and not (token.normalized or token.lstrip)
        and sum(token.content in content for content in contents) == 1
        and not any(token.content[:end] in ends for end in range(1, len(token.content)))
    ]
    return re.compile(b"|".join(map(re.escape, safe))) if safe else None


def _reference(tokenizer: tokenizers.Tokenizer) -> Encode:
    def encode(text: bytes) -> TokenIds:
        batch = tokenizer.encode_batch_fast([text.decode()], add_special_tokens=False)
        return np.array(batch[0].ids, dtype=np.uint32)

    return encode


def _gigatoken(
    raw: bytes, slow: tokenizers.Tokenizer, added: Sequence[AddedToken], path: Path
) -> Encode | None:
    """Load the fast tokenizer where it can be had and gives the same ids on every probe."""
    try:
        fast = gigatoken.Tokenizer.from_json(raw)
    except Exception as problem:  # noqa: BLE001  (it raises what its Rust part raises)
        LOG.warning("gigatoken cannot load a tokenizer", extra={"path": path, "why": str(problem)})
        return None

    def encode(text: bytes) -> TokenIds:
        if len(text) < _LONG:
            ids: TokenIds = fast.encode(text)
            return ids
        rows, lengths = fast.encode_batch_padded([text], 0, parallel=False)
        whole: TokenIds = rows[0, : int(lengths[0])]
        return whole

    reference = _reference(slow)
    for probe in _probes(added):
        if not np.array_equal(encode(probe), reference(probe)):
            LOG.warning("gigatoken gives other ids", extra={"path": path, "probe": probe})
            return None
    return encode


def _probes(added: Sequence[AddedToken]) -> list[bytes]:
    """Texts of many kinds, with added tokens at their edges and in their middle."""
    some = [token.content for token in added if token.content][:64]
    woven = [f" a {token} b\n{token}{token}  c{token[:-1]}" for token in some]
    long = "".join(_PROBES) * (1 + _LONG // 300)
    return [text.encode() for text in (*_PROBES, *woven, "".join(woven), long)]


def _around(tokenizer: tokenizers.Tokenizer) -> tuple[TokenIds, TokenIds]:
    """Find what the post-processor adds before and after a text."""
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            end = start + len(bare)
            return np.array(whole[:start], np.uint32), np.array(whole[end:], np.uint32)
    raise ValueError("the tokenizer's post-processor changes the text's own ids")
