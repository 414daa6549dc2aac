"""The authoritative order of records, and how a reader gets from where it stands to the end.

A position is (epoch, sequence). The epoch names one life of the log: a random word that its owner
draws at the start. Within an epoch a reader that stands inside the ring of recent records resumes;
any other one gets a snapshot. The ring is bounded by records and by bytes, so a reader costs
nothing while it is away or slow, and one slow reader never holds up another. It holds records as
they are written (`written`): once, for all readers.
"""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from leadsman.records import Granted, Learned, Record

from leadsman_fleet.state import FleetState
from leadsman_fleet.written import element


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of the past is kept for readers that come back, and told to them at once."""

    records: int = 65_536
    bytes: int = 32 * 1024 * 1024
    piece: int = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Catchup:
    """What brings a reader up to `sequence`; a snapshot stands for everything before it.

    written: each record as an envelope has it; a snapshot's are written as they are asked for.
    """

    sequence: int
    written: Iterable[bytes]
    is_snapshot: bool


class _Entry(NamedTuple):
    sequence: int
    source: str | None
    written: bytes


class FleetLog:
    """All records of one pool in one order, and what they add up to."""

    def __init__(self, *, epoch: str, bounds: Bounds | None = None) -> None:
        self.epoch = epoch
        self.sequence = 0
        self._bounds = bounds or Bounds()
        self._state = FleetState()
        self._ring: deque[_Entry] = deque()
        self._held = 0

    def append(self, record: Record, source: str | None = None) -> int | None:
        """Add a record and give its sequence; None where it tells nothing new.

        source: the replica that reported it, which is never sent it back.
        """
        if not self._state.apply(record, source):
            return None
        written = element(record)
        self.sequence += 1
        self._ring.append(_Entry(self.sequence, source, written))
        self._held += len(written)
        while len(self._ring) > self._bounds.records or self._held > self._bounds.bytes:
            self._held -= len(self._ring.popleft().written)
        return self.sequence

    @property
    def state(self) -> FleetState:
        """What all records add up to; the log's own."""
        return self._state

    def snapshot(self, *, reader: str | None = None) -> list[Record]:
        """Say everything that holds now, except what the reader itself reported."""
        return self._state.snapshot(without=reader)

    def since(self, epoch: str | None, sequence: int, *, reader: str | None = None) -> Catchup:
        """Bring a reader from a position towards the end: by a snapshot, or by what it missed.

        What it missed comes in pieces of at most `Bounds.piece` bytes (or one record).
        """
        missed = self.sequence - sequence
        if epoch != self.epoch or not 0 <= missed <= len(self._ring):
            whole = map(element, self.snapshot(reader=reader))
            return Catchup(sequence=self.sequence, written=whole, is_snapshot=True)
        news: list[bytes] = []
        size = 0
        for entry in self._after(sequence):
            sequence = entry.sequence
            size += len(entry.written)
            if reader is None or entry.source != reader:
                news.append(entry.written)
            if size >= self._bounds.piece:
                break
        return Catchup(sequence=sequence, written=news, is_snapshot=False)

    def _after(self, sequence: int) -> Iterator[_Entry]:
        """Give the entries behind a position that is inside the ring, without a walk to it."""
        missed = itertools.takewhile(lambda one: one.sequence > sequence, reversed(self._ring))
        return reversed(list(missed))

    def grants_of(self, source: str) -> list[Granted]:
        """List the live grants that one replica reported."""
        return self._state.grants_of(source)

    def lessons(self) -> list[Learned]:
        """List what was learned of each worker last."""
        return self._state.lessons()
