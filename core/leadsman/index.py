"""CacheIndex: which blocks each worker's cache holds, and how much of a prompt that covers.

The question: for one prompt, the leading blocks that every worker already has, all workers at
once. The model: a table from block key to a row (`leadsman.table`), and for each tier a bit a
worker and row (`leadsman.residency`). A key names a whole prefix, so a prompt's blocks are found
independently of each other, in any order of arrival; what a worker can use is the run that ends
at its first absent block, and a block that comes back revives every prefix through it.

Stores and removals are per physical copy, as engines report them: two copies stored need two
removals. A removal of what is not held is counted in `unknown_removals` and does nothing.

Trust decides what is credited, not what is kept. A worker that becomes suspect gets a second
column: what was held before is doubted, kept for removals and for better times, and not
credited; what is stored from then on is. Of a blind one neither is, but what its requests were
seen to find (`confirm`). It ignores what an engine can do with a block (windows,
alignment, the last token): that is the replay's knowledge.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import numpy.typing as npt

from leadsman.columns import Columns, Place
from leadsman.match import Match, leading_runs
from leadsman.records import GPU, Cleared, KvEvent, Stored, Trust
from leadsman.residency import Flags, Residency
from leadsman.single import FEW, SingleKeyTable
from leadsman.table import Numbers, batches
from leadsman.units import BlockKey, Blocks, Keys, WorkerId
from leadsman.windows import is_group


class CacheIndex:
    """Blocks by worker and tier, their copies counted. Keys are never 0."""

    def __init__(self) -> None:
        self.unknown_removals = 0
        self._table = SingleKeyTable()
        self._tiers: dict[str, Residency] = {GPU: Residency(1)}
        self._columns = Columns()

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Every worker heard of and not purged."""
        return self._columns.of(None)[0]

    @property
    def distinct_blocks(self) -> Blocks:
        """Blocks that some worker holds in some tier."""
        return self._table.live

    @property
    def nbytes(self) -> int:
        """Bytes held for blocks; per worker there are some hundred more."""
        return self._table.nbytes + sum(tier.nbytes for tier in self._tiers.values())

    def apply(self, worker: WorkerId, events: Sequence[KvEvent]) -> None:
        """Apply one batch in order; neighbours of one kind and tier go in one pass."""
        for kind, run in groupby(events, key=lambda event: (type(event), event.tier)):
            if kind[0] is Cleared:
                self.clear(worker, kind[1])
                continue
            runs = [event.keys for event in run if not isinstance(event, Cleared)]
            keys = runs[0] if len(runs) == 1 else np.concatenate(runs)
            change = self.store if kind[0] is Stored else self.remove
            change(worker, keys, kind[1] or GPU)

    def store(self, worker: WorkerId, keys: Keys, tier: str = GPU) -> None:
        """Count one more copy of each block, once for each time that its key occurs."""
        column = self._place(worker).stores
        residency = self._tier(tier)
        if keys.size <= FEW:
            added = [self._table.add_one(key) for key in keys.tolist()]
            self._reserve()
            for row in added:
                residency.add_one(row, column)
            return
        for part in batches(keys):
            rows = self._table.add(part)
            self._reserve()
            residency.add(rows, column)

    def remove(self, worker: WorkerId, keys: Keys, tier: str = GPU) -> None:
        """Count one copy less of each block; newest first where the worker is suspect."""
        place = self._place(worker)
        residency = self._tier(tier)
        if keys.size <= FEW:
            for key in keys.tolist():
                self._remove_one(place, residency, key)
            self._give_back()
            return
        for part in batches(keys):
            slots = self._table.find(part)
            for column in place.columns:
                rows = self._table.rows_at(slots)
                held = residency.holds(rows, column)
                residency.drop(rows[held], column)
                self._drop_unheld(slots[held])
                slots = slots[~held]
            self.unknown_removals += slots.size
        self._give_back()

    def _remove_one(self, place: Place, residency: Residency, key: BlockKey) -> None:
        slot = self._table.find_one(key)
        row = self._table.row_at(slot)
        for column in place.columns:
            if residency.holds_one(row, column):
                residency.drop_one(row, column)
                if not any(tier.is_held(row) for tier in self._tiers.values()):
                    self._table.drop_one(slot)
                return
        self.unknown_removals += 1

    def clear(self, worker: WorkerId, tier: str | None = None) -> None:
        """Forget all that the worker holds in a tier, or in every tier."""
        columns = self._place(worker).columns
        tiers = list(self._tiers.values()) if tier is None else [self._tier(tier)]
        self._clear(columns, tiers)

    def _clear(self, columns: Sequence[int], tiers: Sequence[Residency]) -> None:
        rows = np.concatenate([r.clear(column) for r in tiers for column in columns])
        unheld = np.unique(rows[~self._is_held(rows)])
        if unheld.size:
            self._table.drop(self._table.slots_of(unheld))
        self._give_back()

    def purge(self, worker: WorkerId) -> None:
        """Forget a worker that left; a worker never heard of is no mistake."""
        if self._columns.find(worker) is not None:
            self.clear(worker)
            self._columns.remove(worker)

    def trust(self, worker: WorkerId) -> Trust:
        """Tell how far the worker's view is believed; one never heard of is live and empty."""
        place = self._columns.find(worker)
        return Trust.LIVE if place is None else place.trust

    def set_trust(self, worker: WorkerId, trust: Trust) -> None:
        """Believe the worker's view this far from now on.

        Suspect and blind, said again, doubt what was credited since they were said before. Live and
        replaying credit all that is held, what was doubted too.
        """
        place = self._place(worker)
        if trust in {Trust.SUSPECT, Trust.BLIND}:
            place = self._doubt(place)
        elif place.doubted is not None:
            self._merge(place.doubted, place.column)
            place = replace(place, doubted=None)
        self._columns.change(worker, replace(place, trust=trust))
        self._reserve()

    def confirm(self, worker: WorkerId, keys: Keys) -> None:
        """Credit blocks that are on the worker's GPU for certain: of one not held, one copy."""
        place, residency = self._place(worker), self._tier(GPU)
        keys = np.unique(keys)
        doubted = np.zeros(keys.size, dtype=np.bool_)
        rows = self._table.rows(keys)
        credited = residency.holds(rows, place.column)
        if place.doubted is not None:
            doubted = residency.holds(rows, place.doubted) & ~credited
            residency.drop(rows[doubted], place.doubted)
            residency.add(rows[doubted], place.column)
        for part in batches(keys[~(credited | doubted)]):
            new = self._table.add(part)
            self._reserve()
            residency.add(new, place.column)

    def give_up_doubted(self, worker: WorkerId) -> None:
        """Forget what is in doubt of a worker."""
        place = self._columns.find(worker)
        if place is not None and place.doubted is not None:
            self._clear([place.doubted], list(self._tiers.values()))

    def vouch_for_doubted(self, worker: WorkerId) -> None:
        """Credit what is in doubt of a worker, as far as its trust credits anything."""
        place = self._columns.find(worker)
        if place is not None and place.doubted is not None:
            self._merge(place.doubted, place.column)

    def match(self, keys: Keys, workers: Sequence[WorkerId] | None = None) -> Match:
        """Count the leading blocks of a prompt that each worker holds.

        keys: parent first, shape (blocks,). workers: those asked about, in their order; all that
        are known where None. A worker that is unknown has 0. Reads only. O(blocks up to
        four times the longest match).
        """
        asked, columns = self._columns.of(workers)
        if not keys.size or not self._table.has(int(keys[0])):
            nothing = np.zeros(len(asked), dtype=np.int64)
            return Match(workers=asked, gpu=nothing, any_tier=nothing)
        tiers = [held for name, held in self._tiers.items() if not is_group(name)]
        gpu = leading_runs(keys, self._table, tiers[:1], self._columns.credited)[columns]
        either = gpu
        if any(any(tier.blocks.values()) for tier in tiers[1:]):
            either = leading_runs(keys, self._table, tiers, self._columns.credited)[columns]
        return Match(workers=asked, gpu=gpu, any_tier=either)

    def reach(self, worker: WorkerId, keys: Keys, tier: str) -> Blocks:
        """Count the leading blocks that a worker holds on its GPU or in one other tier."""
        residency = self._tiers.get(tier)
        tiers = [self._tiers[GPU], *([] if residency is None else [residency])]
        runs = leading_runs(keys, self._table, tiers, self._columns.credited)
        return int(runs[self._place(worker).column])

    def reach_of_all(self, worker: WorkerId, keys: Keys) -> Blocks:
        """Count the leading blocks that a worker holds on its GPU, or anybody in a lower tier."""
        lower = [held for name, held in self._tiers.items() if name != GPU and not is_group(name)]
        lower = [held for held in lower if any(held.blocks.values())]
        if not lower or not keys.size:
            return 0
        rows, credited = self._table.rows(keys), self._columns.credited
        held = self._tiers[GPU].holds(rows, self._place(worker).column)
        for tier in lower:
            held |= (tier.holders(rows) & credited).any(axis=1)
        return int(keys.size if held.all() else held.argmin())

    def holds(self, worker: WorkerId, keys: Keys, tier: str = GPU) -> Flags:
        """Tell which blocks the worker holds in a tier, whatever its trust."""
        place = self._columns.find(worker)
        residency = self._tiers.get(tier)
        if place is None or residency is None:
            return np.zeros(keys.size, dtype=np.bool_)
        rows = self._table.rows(keys)
        held = np.zeros(keys.size, dtype=np.bool_)
        for column in place.columns:
            held |= residency.holds(rows, column)
        return held

    def held(self, worker: WorkerId) -> dict[str, tuple[Keys, npt.NDArray[np.int64]]]:
        """List all that a worker holds: tier → (keys, copies of each). O(all blocks)."""
        place = self._columns.find(worker)
        if place is None:
            return {}
        keys = self._table.keys_by_row()
        found = {}
        for name, residency in self._tiers.items():
            rows = _rows_of(residency, place)
            copies = sum(residency.copies(rows, column) for column in place.columns)
            if rows.size:
                found[name] = (keys[rows], np.asarray(copies, dtype=np.int64))
        return found

    def blocks(self, worker: WorkerId, tier: str = GPU) -> Blocks:
        """Count the distinct blocks that a worker holds in a tier. O(1) unless it is suspect."""
        place, residency = self._columns.find(worker), self._tiers.get(tier)
        if place is None or residency is None:
            return 0
        if place.doubted is None:
            return residency.blocks.get(place.column, 0)
        return _rows_of(residency, place).size

    def check(self) -> None:
        """Assert every invariant. O(everything held)."""
        self._table.check()
        live = self._table.keys_by_row() != 0
        columns = self._columns.check()
        for residency in self._tiers.values():
            assert residency.bits.shape[0] >= self._table.rows_made
            assert residency.bits.shape[1] == self._columns.words
            residency.check(live, columns)
        assert self._is_held(live.nonzero()[0]).all(), "each row in the table is held by somebody"

    def _tier(self, name: str) -> Residency:
        residency = self._tiers.get(name)
        if residency is None:
            residency = self._tiers[name] = Residency(self._columns.words)
            self._reserve()
        return residency

    def _reserve(self) -> None:
        for residency in self._tiers.values():
            residency.reserve(self._table.rows_made, self._columns.words)

    def _place(self, worker: WorkerId) -> Place:
        place = self._columns.find(worker)
        if place is None:
            place = self._columns.place(worker)
            self._reserve()
        return place

    def _doubt(self, place: Place) -> Place:
        if place.doubted is None:
            return replace(place, doubted=place.column, column=self._columns.take())
        self._merge(place.column, place.doubted)
        return place

    def _merge(self, source: int, target: int) -> None:
        for residency in self._tiers.values():
            residency.merge(source, target)

    def _is_held(self, rows: Numbers) -> Flags:
        """Tell which rows somebody holds in some tier."""
        held = np.zeros(rows.size, dtype=np.bool_)
        for residency in self._tiers.values():
            held |= residency.holders(rows).any(axis=1)
        return held

    def _drop_unheld(self, slots: Numbers) -> None:
        unheld = slots[~self._is_held(self._table.rows_at(slots))]
        if unheld.size:
            self._table.drop(unheld)

    def _give_back(self) -> None:
        """Give memory back once most of it lies idle."""
        if self._table.is_sparse():
            old = self._table.compact()
            self._tiers = {
                n: r for n, r in self._tiers.items() if n == GPU or any(r.blocks.values())
            }
            for residency in self._tiers.values():
                residency.keep(old)


def _rows_of(residency: Residency, place: Place) -> Numbers:
    return np.unique(np.concatenate([residency.rows_of(column) for column in place.columns]))
