"""KeyTable: which row of the cache index belongs to a block key.

The question: the row numbers of thousands of keys at once, in tens of nanoseconds each. The
model: open addressing by buckets of eight keys, which one comparison of eight words answers; a
key whose bucket is full goes to the next one, and each bucket counts how many keys passed it by,
so that a search ends where nobody passed, and a removal leaves no mark behind. There is nothing
to sweep: only growth and shrinking lay the table out anew.

Each row's key is kept beside, so that a row can be guessed: blocks that were stored together mostly
have rows in sequence, and a guess costs a read of neighbours where a search costs one of a bucket
somewhere in memory. Of many keys every 64th is searched, those between two are guessed from the one
before, or else from the one behind, and whoever's guesses are wrong is searched.

Keys come well mixed from `leadsman.keys`: their upper half is the position, monotone, so sorted
keys are laid out without a search. It ignores hostile keys: without the deployment's secret
nobody can aim at a bucket. A row is given out once and reused after `drop`; row 0 is nobody's,
and stands for every absent key. A slot is a bucket's number times eight plus the place in it.

Source: Folly F14 (Facebook, 2019), for counting the keys that overflow a bucket.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from leadsman.units import Keys

Numbers = npt.NDArray[np.int64]

BATCH: Final = 1024
"""Keys that one pass takes: enough to share its fixed cost, few enough to stay in the cache."""

WIDE: Final = 8
_STRIDE: Final = 64
"""Of so many keys one is searched and the others are guessed from it."""
_MANY: Final = 16 * _STRIDE
"""Keys from which on guessing costs less than it spares."""
_AHEAD: Final = np.arange(_STRIDE)
_LIMIT: Final = 0.55
_LOAD: Final = 0.44
_PLACES: Final = np.uint64(0x0001020304050607)
"""Times 1 << 8 * place, its uppermost byte is the place."""
_TOP: Final = np.uint64(56)
_HALF: Final = np.uint64(32)


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
        self._free = np.empty(0, dtype=np.int32)
        self._freed = 0
        self._names: Keys = np.zeros(BATCH, dtype=np.uint64)
        self._allocate(0)

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(
            a.nbytes for a in (self._keys, self._rows, self._passed, self._free, self._names)
        )

    def find(self, keys: Keys) -> Numbers:
        """Find each key's slot; the one behind the last, whose row is 0, where it has none."""
        buckets = self._home(keys)
        slots, absent = self._look(keys, buckets)
        if absent.size:
            slots[absent] = self._beyond(keys[absent], buckets[absent])
        return slots

    def rows_at(self, slots: Numbers) -> Numbers:
        """Read the rows of slots that `find` gave."""
        return self._rows.take(slots).astype(np.int64)

    def rows(self, keys: Keys) -> Numbers:
        """Find each key's row; 0 where it has none. Reads only."""
        if keys.size < _MANY:
            return self.rows_at(self.find(keys))
        following = keys[1::_STRIDE]
        found = self.rows_at(self.find(keys[::_STRIDE]))
        if 2 * self._wrong(found[: following.size] + 1, following).size > following.size:
            return self.rows_at(self.find(keys))
        rows: Numbers = (found[:, None] + _AHEAD).reshape(-1)[: keys.size]
        wrong = self._wrong(rows, keys)
        behind = np.append(found[1:], 0)[wrong // _STRIDE]
        rows[wrong] = behind - _STRIDE + wrong % _STRIDE
        wrong = wrong[self._wrong(rows[wrong], keys[wrong])]
        if wrong.size:
            rows[wrong] = self.rows_at(self.find(keys[wrong]))
        return rows

    def _wrong(self, rows: Numbers, keys: Keys) -> Numbers:
        """Say which rows are not those of their keys."""
        wrong: Numbers = (self._names.take(rows, mode="clip") != keys).nonzero()[0]
        return wrong

    def add(self, keys: Keys) -> Numbers:
        """Find each of some distinct keys' row, giving a new one to a key that has none."""
        rows = self.rows_at(self.find(keys))
        lacking = (rows == 0).nonzero()[0]
        if lacking.size:
            given, new = self._take_rows(lacking.size), keys[lacking]
            if self.live > self._limit:
                self._rebuild()
            self._insert(new, given)
            self._names[given] = new
            rows[lacking] = given
        return rows

    def drop(self, slots: Numbers) -> None:
        """Take the keys out of distinct slots that have one; their rows will be reused."""
        rows, keys = self._rows.take(slots), self._flat.take(slots)
        home, bucket = self._home(keys), slots >> 3
        for away in (home != bucket).nonzero()[0].tolist():
            self._note_pass(int(home[away]), int(bucket[away]))
        self._flat[slots] = 0
        self._rows[slots] = 0
        self._names[rows] = 0
        self.live -= rows.size
        if self._freed + rows.size > self._free.size:
            self._free = np.resize(self._free, max(64, (self._freed + rows.size) * 5 // 4))
        self._free[self._freed : self._freed + rows.size] = rows
        self._freed += rows.size

    def slots_of(self, rows: Numbers) -> Numbers:
        """Find the slots of rows that somebody has."""
        return self.find(self._names.take(rows))

    def keys_by_row(self) -> Keys:
        """Read the key of each row, shape (rows made,); 0 for a row that nobody has."""
        return self._names[: self.rows_made]

    def is_sparse(self) -> bool:
        """Tell whether `compact` would give back most of the memory."""
        return self.rows_made > BATCH and self.rows_made > 4 * self.live

    def compact(self) -> Numbers:
        """Renumber the rows without gaps; returns the old number of each new row, 0 first."""
        slots = self._rows.nonzero()[0]
        old = self.rows_at(slots)
        self._rows[slots] = np.arange(1, slots.size + 1)
        self.rows_made = slots.size + 1
        self._names = np.zeros(max(BATCH, self.rows_made * 5 // 4), dtype=np.uint64)
        self._names[1 : self.rows_made] = self._flat.take(slots)
        self._free, self._freed = np.empty(0, dtype=np.int32), 0
        self._rebuild()
        return np.concatenate([np.zeros(1, dtype=np.int64), old])

    def check(self) -> None:
        """Assert every invariant. O(slots)."""
        slots = self._flat.nonzero()[0]
        keys = self._flat.take(slots)
        assert np.array_equal(slots, self._rows.nonzero()[0])
        assert np.array_equal(self.find(keys), slots)
        assert np.array_equal(self._names.take(self._rows.take(slots)), keys)
        assert np.count_nonzero(self._names) == keys.size, "a row given back has no key"
        assert slots.size == self.live <= self._limit
        everyone = np.concatenate([self._rows.take(slots), self._free[: self._freed]])
        assert np.array_equal(np.sort(everyone), np.arange(1, self.rows_made))
        passed = np.zeros_like(self._passed)
        for home, bucket in zip(self._home(keys).tolist(), (slots >> 3).tolist(), strict=True):
            for away in range((bucket - home) % self._buckets):
                passed[(home + away) % self._buckets] += 1
        assert np.array_equal(passed, self._passed)

    def _allocate(self, live: int) -> None:
        self._buckets = max(8, int(np.ceil(live / (_LOAD * WIDE))))
        self._limit = int(_LIMIT * WIDE * self._buckets)
        self._keys = np.zeros((self._buckets + 1, WIDE), dtype=np.uint64)
        self._flat = self._keys.reshape(-1)
        self._rows = np.zeros(self._buckets * WIDE + 1, dtype=np.int32)
        self._passed = np.zeros(self._buckets, dtype=np.uint16)
        self._scale = np.uint64(self._buckets)

    def _home(self, keys: Keys) -> Numbers:
        """Find the bucket that each key belongs to."""
        bucket = keys >> _HALF
        bucket *= self._scale
        bucket >>= _HALF
        return bucket.view(np.int64)

    def _look(self, keys: Keys, buckets: Numbers) -> tuple[Numbers, Numbers]:
        """Find each key's slot in its bucket, and which keys are not in theirs."""
        equal = (self._keys.take(buckets, axis=0) == keys[:, None]).view(np.uint64)[:, 0]
        return (buckets << 3) + _place(equal), (equal == 0).nonzero()[0]

    def _beyond(self, keys: Keys, buckets: Numbers) -> Numbers:
        """Find the slots of keys that are not in these buckets, where somebody passed them by.

        Badly mixed keys only make it slow: as many rounds as there are full buckets in a row.
        """
        slots = np.full(keys.size, self._buckets * WIDE)
        seeking = np.arange(keys.size)
        while seeking.size:
            passed = self._passed.take(buckets) != 0
            seeking, keys, buckets = seeking[passed], keys[passed], self._next(buckets[passed])
            slots[seeking], absent = self._look(keys, buckets)
            seeking, keys, buckets = seeking[absent], keys[absent], buckets[absent]
            slots[seeking] = self._buckets * WIDE
        return slots

    def _next(self, buckets: Numbers) -> Numbers:
        following: Numbers = (buckets + 1) % self._buckets
        return following

    def _insert(self, keys: Keys, rows: Numbers) -> None:
        """Put distinct keys that are absent into the first bucket with a free place."""
        buckets = self._home(keys)
        while keys.size:
            free = (self._keys.take(buckets, axis=0) == 0).view(np.uint64)[:, 0]
            room = free != 0
            slots = ((buckets << 3) + _place(free & -free))[room]
            self._flat[slots] = keys[room]
            won = np.zeros(keys.size, dtype=np.bool_)
            won[room] = self._flat.take(slots) == keys[room]
            self._rows[slots[won[room]]] = rows[won]
            if won.all():
                return
            np.add.at(self._passed, buckets[~room], 1)
            buckets[~room] = self._next(buckets[~room])
            keys, rows, buckets = keys[~won], rows[~won], buckets[~won]

    def _note_pass(self, home: int, bucket: int) -> None:
        """Count one key less that passed by on its way from its home to its bucket."""
        for away in range((bucket - home) % self._buckets):
            self._passed[(home + away) % self._buckets] -= 1

    def _take_rows(self, number: int) -> Numbers:
        reused = min(number, self._freed)
        self._freed -= reused
        self.live += number
        first, self.rows_made = self.rows_made, self.rows_made + number - reused
        self._make_room()
        made = np.arange(first, self.rows_made)
        if not reused:
            return made
        again = np.sort(self._free[self._freed : self._freed + reused]).astype(np.int64)
        return np.concatenate([again, made])

    def _make_room(self) -> None:
        """Have a place for the key of each row made."""
        if self.rows_made > self._names.size:
            more = np.zeros(self.rows_made * 5 // 4 - self._names.size, dtype=np.uint64)
            self._names = np.concatenate([self._names, more])

    def _rebuild(self) -> None:
        """Lay all keys out anew, in as many buckets as suit the number that is to be live."""
        slots = self._flat.nonzero()[0]
        keys, rows = self._flat.take(slots), self._rows.take(slots)
        self._allocate(self.live)
        order = np.argsort(self._home(keys), kind="stable")
        keys, rows = keys.take(order), rows.take(order)
        home = self._home(keys)
        place = _within_runs(home)
        over = (place >= WIDE).nonzero()[0]
        slots = np.delete((home << 3) + place, over)
        self._flat[slots], self._rows[slots] = np.delete(keys, over), np.delete(rows, over)
        self._insert(keys[over], rows[over].astype(np.int64))


def _within_runs(home: Numbers) -> Numbers:
    """Count how many of its equals stand before each of some sorted numbers."""
    place = np.arange(home.size)
    begins = np.zeros_like(place)
    first = (home[1:] != home[:-1]).nonzero()[0] + 1
    begins[first] = first
    place -= np.maximum.accumulate(begins)
    return place


def _place(ones: npt.NDArray[np.uint64]) -> Numbers:
    """Find which of eight bytes is 1, the others being 0; 0 where none is."""
    return ((ones * _PLACES) >> _TOP).view(np.int64)
