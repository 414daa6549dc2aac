"""Which blocks one worker holds in one tier, and how many physical copies of each.

The model is a bag of keys. Events come thousands of times more often than a snapshot is asked
for, so the bag is kept as a log of +1 and -1 that is summed up only when it has outgrown what it
says: 12 bytes an entry, and never more than twice the live blocks plus a fixed slack.

A removal of a block that is not held counts for nothing: the count of a key is its running sum
above that sum's own lowest point below zero.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from leadsman.units import Keys

_SLACK: Final = 1024


class Residency:
    """A bag of block keys that is cheap to change and small to keep."""

    def __init__(self) -> None:
        self._keys = np.empty(0, np.uint64)
        self._deltas = np.empty(0, np.int32)
        self._logged = 0
        self._live = 0

    def add(self, keys: Keys) -> None:
        """Count one more physical copy of each key. Amortised O(keys · log)."""
        self._log(keys, 1)

    def remove(self, keys: Keys) -> None:
        """Count one copy less of each key that is held."""
        self._log(keys, -1)

    def copies(self) -> tuple[Keys, npt.NDArray[np.int32]]:
        """Give the keys that are held, least recently changed first, and the copies of each."""
        if self._logged != self._live:
            self._compact(0)
        return self._keys[: self._live].copy(), self._deltas[: self._live].copy()

    def _log(self, keys: Keys, delta: int) -> None:
        end = self._logged + len(keys)
        if end > len(self._keys):
            self._compact(len(keys))
            end = self._logged + len(keys)
        self._keys[self._logged : end] = keys
        self._deltas[self._logged : end] = delta
        self._logged = end

    def _compact(self, incoming: int) -> None:
        keys, counts = _sum_up(self._keys[: self._logged], self._deltas[: self._logged])
        self._logged = self._live = len(keys)
        room = np.zeros(max(2 * len(keys) + _SLACK, len(keys) + incoming) - len(keys), np.uint64)
        self._keys = np.concatenate((keys, room))
        self._deltas = np.concatenate((counts, room.astype(np.int32)))


def _sum_up(keys: Keys, deltas: npt.NDArray[np.int32]) -> tuple[Keys, npt.NDArray[np.int32]]:
    """Sum a log of changes into its keys with a positive count, by their last change.

    keys, deltas: shape (changes,), oldest first.
    """
    if not len(keys):
        return keys, deltas
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    first = np.flatnonzero(np.concatenate(([True], ranked[1:] != ranked[:-1])))
    last = np.concatenate((first[1:], [len(keys)])) - 1
    sums = np.cumsum(deltas[order], dtype=np.int64)
    before = np.concatenate(([0], sums[last[:-1]]))
    lowest = np.minimum(np.minimum.reduceat(sums, first) - before, 0)
    counts = sums[last] - before - lowest
    held = np.flatnonzero(counts > 0)
    held = held[np.argsort(order[last[held]])]
    return ranked[first[held]], counts[held].astype(np.int32)
