"""KeyTable: which row of the cache index belongs to a block key.

The question: the row numbers of thousands of keys at once, in tens of nanoseconds each, in 16
bytes a slot. The model: open addressing with linear probing in one flat array of (key, row)
pairs, cut into segments of 1,024 slots that a probe never leaves. Each segment is swept by
itself when removed keys fill it, so that a busy index pauses for microseconds, never for a
rebuild of all; only growth rebuilds, and growth is rare.

Keys come well mixed from `leadsman.keys`: their upper half is the position, monotone, so sorted
keys are laid out by one running maximum. It ignores hostile keys: without the deployment's
secret nobody can aim at a slot. A row is given out once and reused after `drop`; row 0 is
nobody's, and stands for every absent key. A slot is named by the index of its key in the array.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from leadsman.units import Keys

Rows = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int64]

BATCH: Final = 128
"""The most keys one `add` takes: what always fits above a segment's limit."""

_SLOTS: Final = 1024
_WORDS: Final = 2 * _SLOTS
_SHIFT: Final = _WORDS.bit_length() - 1
_LIMIT: Final = 768
_ROOMY: Final = 704
_LOAD: Final = 0.48
_EMPTY: Final = np.uint64(2**64 - 1)
_HALF: Final = np.uint64(32)
_ONE: Final = np.uint64(1)
_NOBODY: Final = 0


def batches(keys: Keys) -> Iterator[Keys]:
    """Cut keys into parts that the table takes, no key twice in one."""
    for start in range(0, keys.size, BATCH):
        part = keys[start : start + BATCH]
        while len(set(part.tolist())) < part.size:
            _, first = np.unique(part, return_index=True)
            yield part[first]
            part = np.delete(part, first)
        yield part


class KeyTable:
    """Block key → row, by arrays. Keys are never 0."""

    def __init__(self) -> None:
        self.live = 0
        self.rows_made = 1
        self._free = np.empty(0, dtype=np.int64)
        self._freed = 0
        self._allocate(1)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return self._words.nbytes + self._free.nbytes + self._used.nbytes

    def find(self, keys: Keys) -> Slots:
        """Find each key's slot, or one whose row is 0. Reads only."""
        words, slots = self._words, self._home(keys)
        seeking = (words.take(slots) != keys).nonzero()[0]
        while seeking.size:
            at = slots[seeking]
            ended = words.take(at) == 0
            slots[seeking[ended]] = self._absent
            seeking, at = seeking[~ended], _after(at[~ended])
            slots[seeking] = at
            seeking = seeking[words.take(at) != keys[seeking]]
        return slots

    def rows_at(self, slots: Slots) -> Rows:
        """Read the rows of slots that `find` gave."""
        return self._rows.take(slots + 1)

    def rows(self, keys: Keys) -> Rows:
        """Find each key's row; 0 where it has none. Reads only."""
        return self._rows.take(self.find(keys) + 1)

    def add(self, keys: Keys) -> Rows:
        """Find each key's row, giving a new one to a key that has none.

        At most BATCH keys; equal ones get one row.
        """
        slots = self._claim(keys)
        rows = self._rows.take(slots + 1)
        lacking = (rows <= 0).nonzero()[0]
        if lacking.size:
            at = slots[lacking]
            claimed = self._rows.take(at + 1) < 0
            first = self._give_rows(at)
            rows[lacking] = self._rows.take(at + 1)
            segments = at[claimed & first] >> _SHIFT
            np.add.at(self._used, segments, 1)
            for segment in set(segments[self._used[segments] > _LIMIT].tolist()):
                if not self._sweep(segment):
                    self._rebuild()
                    break
        return rows

    def drop(self, slots: Slots) -> None:
        """Take the rows away from distinct slots that have one; the rows will be reused."""
        rows = self._rows.take(slots + 1)
        self._rows[slots + 1] = _NOBODY
        self.live -= rows.size
        if self._freed + rows.size > self._free.size:
            self._free = np.resize(self._free, max(64, 2 * (self._freed + rows.size)))
        self._free[self._freed : self._freed + rows.size] = rows
        self._freed += rows.size

    def slots_of(self, rows: Rows) -> Slots:
        """Find the slots of rows by a pass over the table; for sweeping changes only."""
        wanted = np.zeros(self.rows_made, dtype=np.bool_)
        wanted[rows] = True
        slots = self._live_slots()
        return slots[wanted[self._rows.take(slots + 1)]]

    def keys_by_row(self) -> Keys:
        """Read the key of each row, shape (rows made,); 0 for a row that nobody has."""
        slots = self._live_slots()
        keys = np.zeros(self.rows_made, dtype=np.uint64)
        keys[self._rows.take(slots + 1)] = self._words.take(slots)
        return keys

    def is_sparse(self) -> bool:
        """Tell whether `compact` would give back most of the memory."""
        return self.rows_made > 1024 and self.rows_made > 4 * self.live

    def compact(self) -> Rows:
        """Renumber the rows without gaps; returns the old number of each new row, 0 first."""
        slots = self._live_slots()
        old = self._rows.take(slots + 1)
        self._rows[slots + 1] = np.arange(1, slots.size + 1)
        self.rows_made = slots.size + 1
        self._free, self._freed = np.empty(0, dtype=np.int64), 0
        self._rebuild()
        return np.concatenate([np.zeros(1, dtype=np.int64), old])

    def check(self) -> None:
        """Assert every invariant. O(slots)."""
        slots = self._live_slots()
        rows = self._rows.take(slots + 1)
        assert slots.size == self.live
        assert np.array_equal(self.find(self._words.take(slots)), slots)
        assert (self._words.take(slots) != 0).all()
        free = self._free[: self._freed]
        everyone = np.sort(np.concatenate([rows, free]))
        assert np.array_equal(everyone, np.arange(1, self.rows_made)), "each row is had or free"
        taken = (self._words[: self._absent : 2] != 0).reshape(-1, _SLOTS).sum(axis=1)
        assert np.array_equal(taken, self._used)
        assert (self._used <= _LIMIT).all()
        assert self._rows[self._absent + 1] == _NOBODY

    def _allocate(self, segments: int) -> None:
        self._absent = segments * _WORDS
        self._words = np.zeros(self._absent + 2, dtype=np.uint64)
        self._words[1::2] = _EMPTY
        self._words[-1] = _NOBODY
        self._rows = self._words.view(np.int64)
        self._used = np.zeros(segments, dtype=np.int64)
        self._scale = np.uint64(segments * _SLOTS)

    def _home(self, keys: Keys) -> Slots:
        position = keys >> _HALF
        position *= self._scale
        position >>= _HALF
        position <<= _ONE
        return position.view(np.int64)

    def _claim(self, keys: Keys) -> Slots:
        """Find each key's slot, taking the first empty one for a key that has none."""
        words, slots = self._words, self._home(keys)
        seeking = (words.take(slots) != keys).nonzero()[0]
        while seeking.size:
            at, wanted = slots[seeking], keys[seeking]
            empty = words.take(at) == 0
            words[at[empty]] = wanted[empty]
            lost = words.take(at) != wanted
            seeking, at = seeking[lost], _after(at[lost])
            slots[seeking] = at
            seeking = seeking[words.take(at) != keys[seeking]]
        return slots

    def _give_rows(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Give each slot a row; tells which are the one that counts among equal slots."""
        reused = min(slots.size, self._freed)
        made = np.arange(self.rows_made, self.rows_made + slots.size - reused)
        offered = np.concatenate([self._free[self._freed - reused : self._freed], made])
        self._rows[slots + 1] = offered
        taken: npt.NDArray[np.bool_] = self._rows.take(slots + 1) == offered
        self._freed -= reused
        self.rows_made += made.size
        self.live += slots.size
        if not taken.all():
            self._take_back(offered[~taken])
        return taken

    def _take_back(self, rows: Rows) -> None:
        self.live -= rows.size
        self._free = np.concatenate([self._free[: self._freed], rows])
        self._freed = self._free.size

    def _live_slots(self) -> Slots:
        return 2 * (self._rows[1 : self._absent : 2] > 0).nonzero()[0]

    def _sweep(self, segment: int) -> bool:
        """Forget a segment's dropped keys; False where too many are live to be worth it."""
        part = self._words[segment * _WORDS : (segment + 1) * _WORDS]
        keys, rows = part[::2].copy(), part[1::2].view(np.int64).copy()
        live = ((rows > 0) & (keys != 0)).nonzero()[0]
        if live.size > _ROOMY:
            return False
        part[::2], part[1::2] = 0, _EMPTY
        self._lay_out(keys[live], rows[live])
        self._used[segment] = live.size
        return True

    def _rebuild(self) -> None:
        """Lay all live keys out anew, in as many segments as suit them."""
        slots = self._live_slots()
        keys, rows = self._words.take(slots), self._rows.take(slots + 1)
        self._allocate(max(1, int(np.ceil(keys.size / (_LOAD * _SLOTS)))))
        self._lay_out(keys, rows)
        segments = self._home(keys) >> _SHIFT
        self._used += np.bincount(segments, minlength=self._used.size)

    def _lay_out(self, keys: Keys, rows: Rows) -> None:
        """Write keys into cleared segments. A sorted key lies at its home or behind its neighbour.

        Segments are held a segment apart while the maximum runs, so that none pushes into the
        next; keys that run over their segment's end go round to its beginning.
        """
        order = np.argsort(keys)
        keys, rows = keys[order], rows[order]
        home = self._home(keys)
        apart = home + (home & -_WORDS)
        count = np.arange(0, 2 * keys.size, 2)
        slots = np.maximum.accumulate(apart - count) + count - (home & -_WORDS)
        fits = slots < (home & -_WORDS) + _WORDS
        self._words[slots[fits]] = keys[fits]
        self._rows[slots[fits] + 1] = rows[fits]
        over = self._claim(keys[~fits])
        self._rows[over + 1] = rows[~fits]


def _after(slots: Slots) -> Slots:
    """Step to the next slot of the same segment."""
    return (slots & -_WORDS) | ((slots + 2) & (_WORDS - 1))
