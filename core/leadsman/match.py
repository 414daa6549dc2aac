"""How far each worker's cache covers one prompt, from its first block on.

The question: the length of the leading run of held blocks, for all workers at once. The model:
read the set of holders of each block, and intersect them along the prompt; a worker's run ends
where the intersection loses it. Of a long prompt a few blocks are sampled first, each four times as
deep as the one before: nobody's run goes past a sample that the intersection does not survive, so
that a short match costs little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import numpy.typing as npt

from leadsman.residency import Residency, Words
from leadsman.table import KeyTable
from leadsman.units import Keys, WorkerId

Depths = npt.NDArray[np.int64]

_FIRST_SAMPLE: Final = 64
_GROWTH: Final = 4
_LONG: Final = 1024
"""Blocks from which on samples cost less than they spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Leading blocks of one prompt a worker, in the order of `workers`.

    gpu: the run held on the GPU; any_tier: the run where each block is in some tier. Shape
    (workers,); any_tier is never less than gpu.
    """

    workers: tuple[WorkerId, ...]
    gpu: Depths
    any_tier: Depths


def leading_runs(
    keys: Keys, table: KeyTable, tiers: Sequence[Residency], credited: Words
) -> Depths:
    """Count the leading blocks that each credited column holds in any of `tiers`.

    Returns shape (columns + 1,): 0 for a column that is not credited, and for the one behind the
    last, which -1 names.
    """
    depths = np.zeros(64 * credited.size + 1, dtype=np.int64)
    if not keys.size:
        return depths
    bound = _bound(keys, table, tiers, credited)
    runs = _runs(keys[:bound], table, tiers, credited)
    _note_ends(runs, credited, depths)
    depths[_bits(runs[-1])] = bound
    return depths


def _bound(keys: Keys, table: KeyTable, tiers: Sequence[Residency], credited: Words) -> int:
    """Find a depth that no run goes beyond, from samples that lie four times as deep each."""
    if keys.size < _LONG:
        return keys.size
    samples, depth = [], _FIRST_SAMPLE
    while depth < keys.size:
        samples.append(depth)
        depth *= _GROWTH
    at = np.array(samples)
    ended = ~_runs(keys[at - 1], table, tiers, credited).any(axis=1)
    return samples[int(ended.argmax())] if ended.any() else keys.size


def _runs(keys: Keys, table: KeyTable, tiers: Sequence[Residency], credited: Words) -> Words:
    """Intersect the holders of all keys up to each one, shape (keys, words)."""
    rows = table.rows(keys)
    holders = reduce(np.bitwise_or, [tier.holders(rows) for tier in tiers])
    runs: Words = np.bitwise_and.accumulate(holders, axis=0)
    runs &= credited
    return runs


def _note_ends(runs: Words, credited: Words, depths: Depths) -> None:
    """Write the depth at which each column is lost."""
    lost = np.concatenate([credited[None], runs[:-1]])
    lost ^= runs
    words = lost.reshape(-1)
    at = words.nonzero()[0]
    bits = _bits(words[at])
    blocks, word = np.divmod(at[bits >> 6], credited.size)
    depths[64 * word + (bits & 63)] = blocks


def _bits(words: Words) -> npt.NDArray[np.int64]:
    """Say which bits are set, of all words in a row."""
    return np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_).nonzero()[0]
