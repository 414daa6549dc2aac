"""Residency: which workers hold which rows in one tier, and how many copies.

The question: for thousands of rows at once, the set of workers that hold each. The model: one
bit a worker and row, 64 workers a word; a set bit is one physical copy, and further copies, which
are rare, are counted in a dictionary. A worker is a column here; who has which column is the
index's affair. Row 0 is nobody's and stays zero, so that an absent key needs no special case.
"""

import sys
from typing import Final

import numpy as np
import numpy.typing as npt

from leadsman.table import Numbers

Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_GROWTH: Final = 1.25
_COLUMNS: Final = 24
"""Bits of the column in a dictionary key (row << 24 | column)."""


class Residency:
    """Bits of one tier, shape (rows, words). Numbers given to `add` and `drop` are distinct."""

    def __init__(self, words: int) -> None:
        self.bits: Words = np.zeros((1, words), dtype=np.uint64)
        self.further: dict[int, int] = {}
        self.blocks: dict[int, int] = {}

    @property
    def nbytes(self) -> int:
        """Bytes held, those of the dictionary estimated."""
        return self.bits.nbytes + sys.getsizeof(self.further) + 64 * len(self.further)

    def reserve(self, rows: int, words: int) -> None:
        """Make room for so many rows and words."""
        had_rows, had_words = self.bits.shape
        if rows <= had_rows and words <= had_words:
            return
        size = had_rows if rows <= had_rows else max(rows, 64, int(had_rows * _GROWTH))
        grown = np.zeros((size, words), dtype=np.uint64)
        grown[:had_rows, :had_words] = self.bits
        self.bits = grown

    def keep(self, old: Numbers) -> None:
        """Renumber: new row i is what row `old[i]` was, every other row is given back."""
        self.bits = self.bits.take(old, axis=0)
        new = {int(row): number for number, row in enumerate(old.tolist())}
        low = (1 << _COLUMNS) - 1
        self.further = {
            new[at >> _COLUMNS] << _COLUMNS | at & low: n for at, n in self.further.items()
        }

    def holds(self, rows: Numbers, column: int) -> Flags:
        """Tell which rows the column has a copy of."""
        held: Flags = (self.bits[rows, column >> 6] & _bit(column)) != 0
        return held

    def holders(self, rows: Numbers) -> Words:
        """Read the set of columns of each row, shape (rows, words)."""
        return self.bits.take(rows, axis=0)

    def rows_of(self, column: int) -> Numbers:
        """List every row that the column holds. O(rows)."""
        rows: Numbers = (self.bits[:, column >> 6] & _bit(column)).nonzero()[0]
        return rows

    def copies(self, rows: Numbers, column: int) -> Numbers:
        """Count the column's copies of each row."""
        further = [self.further.get(row << _COLUMNS | column, 0) for row in rows.tolist()]
        counts: Numbers = np.array(further, dtype=np.int64) + self.holds(rows, column)
        return counts

    def add(self, rows: Numbers, column: int) -> None:
        """Count one more copy of each row."""
        word = column >> 6
        before = self.bits[rows, word]
        bit = _bit(column)
        self.bits[rows, word] = before | bit
        again = rows[(before & bit) != 0]
        for row in again.tolist():
            at = row << _COLUMNS | column
            self.further[at] = self.further.get(at, 0) + 1
        self._count(column, rows.size - again.size)

    def drop(self, rows: Numbers, column: int) -> Numbers:
        """Count one copy less of each row, all of them held; returns those with no copy left."""
        if self.further:
            last = [self._is_last(row << _COLUMNS | column) for row in rows.tolist()]
            rows = rows[np.array(last, dtype=np.bool_)]
        self.bits[rows, column >> 6] &= ~_bit(column)
        self._count(column, -rows.size)
        return rows

    def holds_one(self, row: int, column: int) -> bool:
        """Tell whether the column has a copy of one row."""
        return bool(int(self.bits[row, column >> 6]) >> (column & 63) & 1)

    def is_held(self, row: int) -> bool:
        """Tell whether any column has a copy of one row."""
        return any(self.bits[row].tolist())

    def add_one(self, row: int, column: int) -> None:
        """Count one more copy of one row."""
        word, bit = column >> 6, 1 << (column & 63)
        before = int(self.bits[row, word])
        if before & bit:
            at = row << _COLUMNS | column
            self.further[at] = self.further.get(at, 0) + 1
        else:
            self.bits[row, word] = before | bit
            self._count(column, 1)

    def drop_one(self, row: int, column: int) -> None:
        """Count one copy less of one row, which is held."""
        if self._is_last(row << _COLUMNS | column):
            word, bit = column >> 6, 1 << (column & 63)
            self.bits[row, word] = int(self.bits[row, word]) ^ bit
            self._count(column, -1)

    def clear(self, column: int) -> Numbers:
        """Forget every copy that the column has; returns the rows it had. O(rows) if it has any."""
        if not self.blocks.get(column):
            return np.empty(0, dtype=np.int64)
        rows = self.rows_of(column)
        self.bits[:, column >> 6] &= ~_bit(column)
        low = (1 << _COLUMNS) - 1
        self.further = {at: n for at, n in self.further.items() if at & low != column}
        self.blocks.pop(column, None)
        return rows

    def merge(self, source: int, target: int) -> None:
        """Give every copy of one column to another."""
        rows = self.rows_of(source)
        copies = self.copies(rows, source)
        self.clear(source)
        self.add(rows, target)
        for row, more in zip(rows[copies > 1].tolist(), copies[copies > 1].tolist(), strict=True):
            at = row << _COLUMNS | target
            self.further[at] = self.further.get(at, 0) + more - 1

    def check(self, live: Flags, columns: set[int]) -> None:
        """Assert every invariant. live: which rows somebody may hold; columns: those in use."""
        assert not self.bits[0].any()
        assert not self.bits[: live.size][~live].any(), "a row given back holds nothing"
        assert not self.bits[live.size :].any(), "a row never made holds nothing"
        spread = np.unpackbits(self.bits.view(np.uint8), axis=1, bitorder="little")
        counts = {c: int(n) for c, n in enumerate(spread.sum(axis=0, dtype=np.int64)) if n}
        assert counts == {c: n for c, n in self.blocks.items() if n}
        assert counts.keys() <= columns
        for at, more in self.further.items():
            row, column = at >> _COLUMNS, at & (1 << _COLUMNS) - 1
            assert more > 0
            assert self.bits[row, column >> 6] & _bit(column)

    def _is_last(self, at: int) -> bool:
        more = self.further.get(at)
        if more is None:
            return True
        if more == 1:
            del self.further[at]
        else:
            self.further[at] = more - 1
        return False

    def _count(self, column: int, more: int) -> None:
        self.blocks[column] = self.blocks.get(column, 0) + more


def _bit(column: int) -> np.uint64:
    return np.uint64(1 << (column & 63))
