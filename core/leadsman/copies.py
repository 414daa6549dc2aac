"""The KV block pool of one engine, block by block: which holds what, and which goes next.

A block that is full carries a key of the whole prefix up to it, in its cache group; several may
carry the same one, and a lookup finds the copy that was named first. A block that nobody holds
waits in the free queue and keeps its key until it is given out for other tokens: only then is the
prefix gone. The queue is given out from its head. Of blocks that are given back those without a key
go to its head, those with one to its tail, each in the order given.
Source: vLLM 0.33 v1/core/block_pool.py, BlockPool; kv_cache_utils.py, FreeKVCacheBlockQueue.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from leadsman.units import BlockKey, Blocks

Place: TypeAlias = int
Group: TypeAlias = int


class Named(NamedTuple):
    """Blocks that carry these keys from now on; none where all that was filled is not kept."""

    group: Group
    keys: tuple[BlockKey, ...]


class Lost(NamedTuple):
    """A copy that was given out for other tokens."""

    group: Group
    key: BlockKey


class Copies:
    """All usable blocks of one engine. `told` is what happened to keys, in order."""

    def __init__(self, size: Blocks) -> None:
        self.told: list[Named | Lost] = []
        self._free = OrderedDict[Place, None].fromkeys(range(size))
        self._holders = [0] * size
        self._key_of: dict[Place, tuple[Group, BlockKey]] = {}
        self._places: dict[tuple[Group, BlockKey], dict[Place, None]] = {}

    @property
    def free(self) -> Blocks:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def are_shared(self) -> bool:
        """Whether anybody holds a block that somebody else holds too."""
        return any(holders > 1 for holders in self._holders)

    def find(self, group: Group, key: BlockKey) -> Place | None:
        """Return the copy that was named first."""
        places = self._places.get((group, key))
        return next(iter(places)) if places else None

    def held(self, places: Iterable[Place]) -> Blocks:
        """Count those of the blocks that somebody holds."""
        return sum(self._holders[place] > 0 for place in places)

    def hold(self, places: Iterable[Place]) -> None:
        """Add a holder to each."""
        for place in places:
            self._free.pop(place, None)
            self._holders[place] += 1

    def take(self, count: Blocks) -> list[Place]:
        """Give out blocks from the head of the queue; what they held is lost."""
        places = [self._free.popitem(last=False)[0] for _ in range(count)]
        for place in places:
            self._holders[place] = 1
            if (named := self._key_of.pop(place, None)) is not None:
                del self._places[named][place]
                self.told.append(Lost(*named))
        return places

    def name(self, group: Group, filled: Sequence[tuple[Place, BlockKey]]) -> None:
        """Let held blocks carry their keys."""
        for place, key in filled:
            self._key_of[place] = group, key
            self._places.setdefault((group, key), {})[place] = None
        self.told.append(Named(group, tuple(key for _, key in filled)))

    def give_back(self, places: Iterable[Place]) -> None:
        """Take a holder from each."""
        first: list[Place] = []
        for place in places:
            self._holders[place] -= 1
            if self._holders[place]:
                continue
            if place in self._key_of:
                self._free[place] = None
            else:
                first.append(place)
        for place in reversed(first):
            self._free[place] = None
            self._free.move_to_end(place, last=False)
