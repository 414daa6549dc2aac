"""Block keys: one 64-bit name for each prefix of a prompt that ends at a block's end.

The question: do two prompts share their first d blocks, asked millions of times a second and of
many workers at once. The model, modulo 2**64:

    hash of a block   h = mix(Σ token_j · multiplier_j + items + size_term(block size))
    running sum       S_d = r · S_(d-1) + h_d,  S_0 from the namespace and the block size
    key of depth d    k_d = mix(S_d)

`mix` is a bijection, so a key gives back its running sum, and a chain goes on from the key of
any block without knowing its depth, its tokens or its namespace. r is odd, hence has an inverse,
and S_d = r^d · (S_0 + Σ h_i · r^-i): a whole prompt is one multilinear product, one cumulative
sum and two products with powers.

The namespace (deployment secret, model, adapter, cache salt) makes equal tokens unequal where an
engine would not share them. A multimodal item enters the block it starts in, by its content and
its offset there. Engines' own hashes differ by version, seed and format: nothing here follows
them. Keys are not a defence by themselves: whoever knows the multipliers can make two prompts
collide, which costs a wrong estimate, never a wrong answer. Key 0 does not occur.

Source: Lemire and Kaser, Strongly universal string hashing is fast (multilinear hashing);
Steele, Lea and Flood, Fast splittable pseudorandom number generators (the mixer).
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from leadsman.units import BlockKey, Keys, TokenIds, Tokens

_WORD: Final = 2**64 - 1
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB
_FIRST_INVERSE: Final = pow(_FIRST, -1, 2**64)
_SECOND_INVERSE: Final = pow(_SECOND, -1, 2**64)
_STEP: Final = 0xD1342543DE82EF95
_STEP_INVERSE: Final = pow(_STEP, -1, 2**64)
_MULTIPLIER_SEED: Final = 0x1EAD5A11
_FEW: Final = 16
"""Up to so many blocks are sooner named one by one than together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultimodalItem:
    """An image, a sound, a video in a prompt; `offset`: its first token, from the first given."""

    content: str
    offset: Tokens


def namespace_seed(
    *, secret: bytes, model: str, lora: str | None = None, cache_salt: str | None = None
) -> int:
    """Name what must be equal before any prefix is shared; None and "" are different names."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (secret, model.encode(), _encoded(lora), _encoded(cache_salt)):
        digest.update(b"-" if part is None else b"+%d:" % len(part))
        digest.update(part or b"")
    return int.from_bytes(digest.digest(), "little")


@lru_cache(maxsize=4096)
def root_key(seed: int, block_size: Tokens) -> BlockKey:
    """Name the empty prefix: what `extend_keys` goes on from at a prompt's first block."""
    return mix(mix(seed ^ _size_term(block_size)))


def block_keys(
    tokens: TokenIds, block_size: Tokens, seed: int, items: Sequence[MultimodalItem] = ()
) -> Keys:
    """Name each full block of a prompt, parent first; the partial last block has no key.

    tokens: shape (tokens,). Returns shape (tokens // block_size,). O(tokens): 800,000 in 1 ms.
    """
    return extend_keys(root_key(seed, block_size), tokens, block_size, items)


def extend_keys(
    parent: BlockKey, tokens: TokenIds, block_size: Tokens, items: Sequence[MultimodalItem] = ()
) -> Keys:
    """Name each full block of `tokens`, which follow the block named `parent`.

    An item's offset counts from the first of `tokens`; one before it began in an ancestor, whose
    key has it already.
    """
    depth = len(tokens) // block_size
    if depth == 0:
        return np.empty(0, dtype=np.uint64)
    blocks = tokens[: depth * block_size].reshape(depth, block_size)
    hashes: Keys = np.vecdot(blocks, _multipliers(block_size))
    hashes += np.uint64(_size_term(block_size))
    for item in items:
        if 0 <= item.offset < depth * block_size:
            block = item.offset // block_size
            hashes[block] = int(hashes[block]) + _item_term(item, block_size) & _WORD
    return _one_by_one(hashes, parent) if depth <= _FEW else _together(hashes, parent)


def _one_by_one(hashes: Keys, parent: BlockKey) -> Keys:
    running, keys = unmix(parent), []
    for word in hashes.tolist():
        running = running * _STEP + mix(word) & _WORD
        keys.append(mix(running) or 1)
    return np.array(keys, dtype=np.uint64)


def _together(hashes: Keys, parent: BlockKey) -> Keys:
    powers, inverses = _powers(hashes.size)
    _mix_all(hashes)
    hashes *= inverses[1 : hashes.size + 1]
    sums: Keys = np.cumsum(hashes, dtype=np.uint64)
    sums += np.uint64(unmix(parent))
    sums *= powers[1 : sums.size + 1]
    _mix_all(sums)
    np.maximum(sums, np.uint64(1), out=sums)
    return sums


def mix(word: int) -> int:
    """Scatter 64 bits over 64 bits, one to one."""
    word = (word ^ (word >> 30)) * _FIRST & _WORD
    word = (word ^ (word >> 27)) * _SECOND & _WORD
    return word ^ (word >> 31)


def unmix(word: int) -> int:
    """Undo `mix`."""
    word = (word ^ (word >> 31) ^ (word >> 62)) * _SECOND_INVERSE & _WORD
    word = (word ^ (word >> 27) ^ (word >> 54)) * _FIRST_INVERSE & _WORD
    return word ^ (word >> 30) ^ (word >> 60)


def _mix_all(words: Keys) -> None:
    """Apply `mix` to each word in place."""
    scratch = np.right_shift(words, np.uint64(30))
    words ^= scratch
    words *= np.uint64(_FIRST)
    np.right_shift(words, np.uint64(27), out=scratch)
    words ^= scratch
    words *= np.uint64(_SECOND)
    np.right_shift(words, np.uint64(31), out=scratch)
    words ^= scratch


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@lru_cache(maxsize=64)
def _size_term(block_size: Tokens) -> int:
    return mix(block_size)


def _item_term(item: MultimodalItem, block_size: Tokens) -> int:
    return mix(_content_word(item.content) + _STEP * (item.offset % block_size + 1) & _WORD)


@lru_cache(maxsize=4096)
def _content_word(content: str) -> int:
    return int.from_bytes(hashlib.blake2b(content.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=64)
def _multipliers(block_size: Tokens) -> npt.NDArray[np.uint64]:
    """Odd random multipliers, one a position, the same in every process."""
    words = np.random.Generator(np.random.PCG64(_MULTIPLIER_SEED)).integers(
        0, 2**64, size=block_size, dtype=np.uint64
    )
    return words | np.uint64(1)


def _powers(depth: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Powers of the step and of its inverse, from the zeroth, at least depth + 1 of them."""
    return _power_tables(max(depth + 1, 64).bit_length())


@lru_cache(maxsize=64)
def _power_tables(bits: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    tables = []
    for base in (_STEP, _STEP_INVERSE):
        steps = np.full(2**bits, base, dtype=np.uint64)
        steps[0] = 1
        tables.append(np.cumprod(steps, dtype=np.uint64))
    return tables[0], tables[1]
