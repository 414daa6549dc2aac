"""How far each worker's cache covers one prompt, from its first block on.

The question: the length of the leading run of held blocks, for all workers at once. The model:
read the set of holders of each block, and intersect them along the prompt; a worker's run ends
where the intersection loses it. The prompt is read in strides that grow fourfold, and no further
than the last worker's run, so that a short match in a long prompt costs little.
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

_FIRST_STRIDE: Final = 64
_GROWTH: Final = 4
_BITS: Final = np.arange(64, dtype=np.uint64)


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
    alive, start, stride = credited, 0, _FIRST_STRIDE
    while start < keys.size and alive.any():
        rows = table.rows(keys[start : start + stride])
        holders = reduce(np.bitwise_or, [tier.holders(rows) for tier in tiers])
        still = np.bitwise_and.reduce(holders, axis=0) & alive
        if not np.array_equal(still, alive):
            _note_ends(holders, alive, start, depths)
            alive = still
        start, stride = start + stride, stride * _GROWTH
    depths[_columns(alive)] = keys.size
    return depths


def _note_ends(holders: Words, alive: Words, start: int, depths: Depths) -> None:
    """Write the depth of each column that the intersection loses within one stride."""
    runs = np.bitwise_and.accumulate(holders, axis=0)
    runs &= alive
    lost = np.concatenate([alive[None], runs[:-1]])
    lost ^= runs
    blocks, words = lost.nonzero()
    which, bits = (lost[blocks, words][:, None] >> _BITS & np.uint64(1)).nonzero()
    depths[64 * words[which] + bits] = start + blocks[which]


def _columns(words: Words) -> npt.NDArray[np.int64]:
    return np.unpackbits(words.view(np.uint8), bitorder="little").nonzero()[0]
