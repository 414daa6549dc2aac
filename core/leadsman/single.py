"""SingleKeyTable: a KeyTable that also takes one key at a time.

The question: the row of one key, where a pass over arrays would cost its fixed price, some forty
calls, for a single answer. Most events of a serving engine name one block: a decoding sequence
filled it. The model is the table's own, read word by word; the two ways can be mixed at will.
"""

from typing import Final

import numpy as np

from leadsman.table import WIDE, KeyTable
from leadsman.units import BlockKey

FEW: Final = 12
"""Up to so many keys are sooner taken one by one than together."""


class SingleKeyTable(KeyTable):
    """Block key → row, by arrays or singly."""

    def find_one(self, key: BlockKey) -> int:
        """Find a key's slot; the one behind the last, whose row is 0, where it has none."""
        flat, passed, buckets = self._flat, self._passed, self._buckets
        bucket = (key >> 32) * buckets >> 32
        while True:
            slot = bucket * WIDE
            there = flat[slot : slot + WIDE].tolist()
            if key in there:
                return slot + int(there.index(key))
            if not passed[bucket]:
                return buckets * WIDE
            bucket = (bucket + 1) % buckets

    def has(self, key: BlockKey) -> bool:
        """Tell whether a key has a row."""
        return bool(self.row_at(self.find_one(key)))

    def row_at(self, slot: int) -> int:
        """Read the row of a slot that `find_one` gave."""
        return int(self._rows[slot])

    def add_one(self, key: BlockKey) -> int:
        """Find a key's row, giving a new one to a key that has none."""
        row = self.row_at(self.find_one(key))
        if not row:
            row = self._take_row()
            if self.live > self._limit:
                self._rebuild()
            self._insert_one(key, row)
            self._names[row] = key
        return row

    def drop_one(self, slot: int) -> None:
        """Take the key out of a slot that has one; its row will be reused."""
        row, key = int(self._rows[slot]), int(self._flat[slot])
        self._note_pass((key >> 32) * self._buckets >> 32, slot // WIDE)
        self._flat[slot] = 0
        self._rows[slot] = 0
        self._names[row] = 0
        self.live -= 1
        if self._freed == self._free.size:
            self._free = np.resize(self._free, max(64, (self._freed + 1) * 5 // 4))
        self._free[self._freed] = row
        self._freed += 1

    def _take_row(self) -> int:
        self.live += 1
        if self._freed:
            self._freed -= 1
            return int(self._free[self._freed])
        self.rows_made += 1
        self._make_room()
        return self.rows_made - 1

    def _insert_one(self, key: BlockKey, row: int) -> None:
        """Put an absent key into the first bucket with a free place."""
        bucket = (key >> 32) * self._buckets >> 32
        while True:
            slot = bucket * WIDE
            there = self._flat[slot : slot + WIDE].tolist()
            if 0 in there:
                slot += there.index(0)
                self._flat[slot], self._rows[slot] = key, row
                return
            self._passed[bucket] += 1
            bucket = (bucket + 1) % self._buckets
