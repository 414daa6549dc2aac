"""Orphans: stored events that wait until it is known what their blocks follow.

A bounded waiting room, by the hashes that would make an event understood. Its blocks can be
removed while they wait. The oldest leave first when there are too many.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from leadsman.units import Blocks

from leadsman_engines.kv_events import BlockStored, EngineHash


@dataclass(slots=True, eq=False)
class Orphan:
    """A stored event and the places of its blocks that were removed meanwhile."""

    event: BlockStored
    gone: set[int] = field(default_factory=set)

    @property
    def awaits(self) -> set[EngineHash]:
        """Hashes any of which, once known, makes the event understood."""
        first, parent = self.event.hashes[0], self.event.parent
        return {first} if parent is None or not self.event.is_dense else {first, parent}

    @property
    def left(self) -> list[int]:
        """Places of the blocks that were not removed."""
        return [place for place in range(len(self.event.hashes)) if place not in self.gone]


class Orphans:
    """Waiting events, oldest first, `limit` blocks at most."""

    def __init__(self, limit: Blocks) -> None:
        self.limit = limit
        self.blocks: Blocks = 0
        self._all: dict[Orphan, None] = {}
        self._by_awaited: defaultdict[EngineHash, list[Orphan]] = defaultdict(list)
        self._by_member: defaultdict[EngineHash, list[Orphan]] = defaultdict(list)

    def __iter__(self) -> Iterator[Orphan]:
        return iter(tuple(self._all))

    def add(self, orphan: Orphan) -> Blocks:
        """Let an event wait; returns how many blocks had to leave for it."""
        self._all[orphan] = None
        self.blocks += len(orphan.left)
        for name in orphan.awaits:
            self._by_awaited[name].append(orphan)
        for place in orphan.left:
            self._by_member[orphan.event.hashes[place]].append(orphan)
        before = self.blocks
        while self.blocks > self.limit:
            self.discard(next(iter(self._all)))
        return before - self.blocks

    def take(self, name: EngineHash) -> list[Orphan]:
        """Take out every event that waited for this hash, oldest first."""
        found = list(self._by_awaited.get(name, ()))
        for orphan in found:
            self.discard(orphan)
        return found

    def remove(self, name: EngineHash, tier: str) -> bool:
        """Take away the newest waiting copy of a block; False where there is none."""
        for orphan in reversed(self._by_member.get(name, [])):
            if orphan.event.tier == tier:
                place = max(p for p in orphan.left if orphan.event.hashes[p] == name)
                self._forget(self._by_member, name, orphan)
                orphan.gone.add(place)
                self.blocks -= 1
                if not orphan.left:
                    self.discard(orphan)
                return True
        return False

    def discard(self, orphan: Orphan) -> None:
        """Let an event go."""
        del self._all[orphan]
        for name in orphan.awaits:
            self._forget(self._by_awaited, name, orphan)
        for place in orphan.left:
            self._forget(self._by_member, orphan.event.hashes[place], orphan)
        self.blocks -= len(orphan.left)

    def clear(self) -> None:
        """Let all go."""
        for orphan in self:
            self.discard(orphan)

    def check(self) -> None:
        """Assert every invariant."""
        assert self.blocks == sum(len(orphan.left) for orphan in self._all) <= self.limit
        assert all(orphan.left for orphan in self._all)
        awaited = sum(map(len, self._by_awaited.values()))
        assert awaited == sum(len(orphan.awaits) for orphan in self._all)
        assert sum(map(len, self._by_member.values())) == self.blocks
        assert all(self._by_awaited.values())
        assert all(self._by_member.values())

    @staticmethod
    def _forget(
        table: defaultdict[EngineHash, list[Orphan]], name: EngineHash, orphan: Orphan
    ) -> None:
        table[name].remove(orphan)
        if not table[name]:
            del table[name]
