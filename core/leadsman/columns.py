"""Columns: which bit of the cache index is which worker's, and whether it is credited.

A worker has one column; a suspect or blind one has two, of which one is credited. Columns are
numbers from 0, reused after a worker left, so that 64 workers fit a word and stay there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from leadsman.records import Trust
from leadsman.units import WorkerId

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """column: what is credited; doubted: those from before the worker became suspect or blind."""

    column: int
    doubted: int | None = None
    trust: Trust = Trust.LIVE

    @property
    def stores(self) -> int:
        """Where new copies go: what a blind worker says is not credited."""
        blind = self.trust is Trust.BLIND and self.doubted is not None
        return self.doubted if blind and self.doubted is not None else self.column

    @property
    def columns(self) -> tuple[int, ...]:
        """Every column of the worker, newest copies first."""
        return (self.column,) if self.doubted is None else (self.column, self.doubted)


class Columns:
    """Places of workers. `credited`: the columns that a match counts, a bit each."""

    _latest: tuple[tuple[WorkerId, ...], Numbers]

    def __init__(self) -> None:
        self._places: dict[WorkerId, Place] = {}
        self._spare: list[int] = []
        self._made = 0
        self._note_credit()

    @property
    def words(self) -> int:
        """Words that one bit a column takes."""
        return self.credited.size

    def find(self, worker: WorkerId) -> Place | None:
        """Find a worker's place; None where it was never heard of or has left."""
        return self._places.get(worker)

    def place(self, worker: WorkerId) -> Place:
        """Find a worker's place, or give it one."""
        place = self._places.get(worker)
        if place is None:
            place = self._places[worker] = Place(column=self.take())
            self._note_credit()
        return place

    def take(self) -> int:
        """Take a column that nobody has."""
        if self._spare:
            return self._spare.pop()
        self._made += 1
        return self._made - 1

    def change(self, worker: WorkerId, place: Place) -> None:
        """Give a worker another place; columns that it gives up must be empty."""
        before = self._places[worker]
        self._spare.extend(set(before.columns) - set(place.columns))
        self._places[worker] = place
        self._note_credit()

    def remove(self, worker: WorkerId) -> None:
        """Give back all that the worker had; its columns must be empty."""
        self._spare.extend(self._places.pop(worker).columns)
        self._note_credit()

    def of(self, workers: Sequence[WorkerId] | None) -> tuple[tuple[WorkerId, ...], Numbers]:
        """List workers, all where None, with their credited column; -1 of one never heard of."""
        if workers is None:
            return self._order, self._numbers
        if workers is not self._latest[0]:  # the hash of hundreds of names costs 5 us
            asked = tuple(workers)
            if asked not in self._asked:
                self._asked[asked] = self._credited_of(asked)
            self._latest = asked, self._asked[asked]
        return self._latest

    def check(self) -> set[int]:
        """Assert every invariant; returns the columns in use."""
        used = [column for place in self._places.values() for column in place.columns]
        assert sorted(used + self._spare) == list(range(self._made))
        assert self._made <= 64 * self.words
        return set(used)

    def _credited_of(self, workers: Sequence[WorkerId]) -> Numbers:
        places = map(self._places.get, workers)
        numbers = [-1 if p is None else p.column for p in places]
        return np.array(numbers, dtype=np.int64)

    def _note_credit(self) -> None:
        self._asked: dict[tuple[WorkerId, ...], Numbers] = {}
        self._order = tuple(self._places)
        self._numbers = self._credited_of(self._order)
        self._latest = self._order, self._numbers
        flags = np.zeros(64 * max(1, -(-self._made // 64)), dtype=np.bool_)
        flags[self._numbers[self._numbers >= 0]] = True
        self.credited: Words = np.packbits(flags, bitorder="little").view(np.uint64)
