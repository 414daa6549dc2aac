"""The KV block pool: which blocks are free, which hold a known prefix, and in what order they go.

Model, vLLM's: a block is named by its physical number. One that is full may carry the hash of the
whole prefix up to it; several may carry the same hash (copies are not merged), and a lookup finds
the copy that was named first. A block no request holds waits in the free queue, and keeps its hash
until it is taken for something else: only then is the prefix gone, and a removal reported.

The free queue is taken from its head. Released blocks go in from a request's last block to its
first: those without a hash to the head, those with one to the tail. So the longest unused go first,
and of one prompt the deepest first.

Every stored block and every removed one is reported per physical copy, in order.

Source: vLLM 0.32 v1/core/block_pool.py, BlockPool; kv_cache_utils.py, FreeKVCacheBlockQueue.
Ignored: the null block, partial blocks, several cache groups.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias, cast


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks of one request that are full now: consecutive, `hashes[0]` follows `parent`.

    start: the first block's place in its request; its tokens begin at `start` x block size.
    """

    request_id: str
    session_id: str | None
    hashes: tuple[int, ...]
    parent: int | None
    start: int
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Copies that were taken for other use, in that order; an engine reports each by itself."""

    hashes: tuple[int, ...]
    medium: str = "GPU"


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Every hash is forgotten."""


LOOKED_UP_AT_ONCE = 64

CacheEvent: TypeAlias = BlocksStored | BlocksRemoved | CacheCleared


class BlockPool:
    """All usable blocks of one engine. Mutable; `check()` states its invariants."""

    __slots__ = (
        "_extra_holders",
        "_first",
        "_free",
        "_hash_of",
        "_keeps_hashes",
        "_later",
        "events",
        "size",
    )

    def __init__(self, size: int, *, keeps_hashes: bool = True) -> None:
        self.size = size
        self.events: list[CacheEvent] = []
        self._keeps_hashes = keeps_hashes
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(size))
        self._hash_of: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._later: dict[int, list[int]] = {}
        self._extra_holders: dict[int, int] = {}

    def copy(self) -> "BlockPool":
        """Copy everything."""
        twin = BlockPool(0, keeps_hashes=self._keeps_hashes)
        twin.size, twin.events = self.size, self.events[:]
        twin._free, twin._hash_of = self._free.copy(), self._hash_of.copy()
        twin._first, twin._extra_holders = self._first.copy(), self._extra_holders.copy()
        twin._later = {name: copies[:] for name, copies in self._later.items()}
        return twin

    @property
    def free(self) -> int:
        """Blocks that no request holds, with or without a hash."""
        return len(self._free)

    def longest_prefix(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Find a block for each of the leading hashes, at most `limit`. Reads only."""
        found: list[int | None] = []
        if self._first:
            for start in range(0, limit, LOOKED_UP_AT_ONCE):
                stretch = hashes[start : min(limit, start + LOOKED_UP_AT_ONCE)]
                found += map(self._first.get, stretch)
                if None in found[start:]:
                    del found[found.index(None, start) :]
                    break
        return cast("list[int]", found)

    def unheld(self, blocks: Sequence[int]) -> int:
        """Count those of `blocks` that sit in the free queue: to hold them leaves fewer free."""
        return sum(map(self._free.__contains__, blocks))

    def hold(self, blocks: Sequence[int]) -> None:
        """Add one holder to each block; a free one leaves the queue and keeps its hash."""
        free, extra = self._free, self._extra_holders
        for block in blocks:
            if block in free:
                del free[block]
            else:
                extra[block] = extra.get(block, 0) + 1

    def take(self, count: int) -> list[int]:
        """Take blocks from the head of the free queue; hashes they carried are reported removed.

        Raises KeyError where fewer are free: the caller has to look first.
        """
        pop = self._free.popitem
        blocks = [pop(False)[0] for _ in repeat(None, count)]
        if self._hash_of:
            self._forget(blocks, [*map(self._hash_of.pop, blocks, repeat(None))])
        return blocks

    def _forget(self, blocks: Sequence[int], names: Sequence[int | None]) -> None:
        """Drop each block as a copy of its name, where it had one, and report it."""
        gone = tuple([name for name in names if name is not None])
        if not gone:
            return
        if self._later.keys().isdisjoint(gone):
            deque(map(self._first.__delitem__, gone), maxlen=0)
        else:
            for block, name in zip(blocks, names, strict=True):
                if name is not None:
                    self._forget_copy(block, name)
        self.events.append(BlocksRemoved(gone))

    def _forget_copy(self, block: int, name: int) -> None:
        copies = self._later.get(name)
        if copies is None:
            del self._first[name]
            return
        if self._first[name] == block:
            self._first[name] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._later[name]

    def store(self, blocks: Sequence[int], stored: BlocksStored) -> None:
        """Name held blocks by the hashes of `stored`, in order, and report it."""
        if not self._keeps_hashes:
            return
        first, names = self._first, stored.hashes
        self._hash_of.update(zip(blocks, names, strict=True))
        if first.keys().isdisjoint(names):
            first.update(zip(names, blocks, strict=True))
        else:
            for block, name in zip(blocks, names, strict=True):
                if first.setdefault(name, block) != block:
                    self._later.setdefault(name, []).append(block)
        self.events.append(stored)

    def release(self, blocks: Sequence[int]) -> None:
        """Take one holder from each of a request's blocks, given first to last."""
        going = blocks[::-1]
        extra = self._extra_holders
        if extra and not extra.keys().isdisjoint(going):
            going = self._drop_shared(going)
        free, hash_of = self._free, self._hash_of
        named = [block for block in going if block in hash_of]
        free.update(dict.fromkeys(named))
        if len(named) == len(going):
            return
        for block in reversed([block for block in going if block not in hash_of]):
            free[block] = None
            free.move_to_end(block, last=False)

    def _drop_shared(self, blocks: Sequence[int]) -> list[int]:
        extra = self._extra_holders
        alone: list[int] = []
        for block in blocks:
            holders = extra.get(block)
            if holders is None:
                alone.append(block)
            elif holders == 1:
                del extra[block]
            else:
                extra[block] = holders - 1
        return alone

    def clear(self) -> bool:
        """Forget every hash, if no block is held; say whether that was done."""
        if len(self._free) != self.size:
            return False
        self._hash_of.clear()
        self._first.clear()
        self._later.clear()
        self.events.append(CacheCleared())
        return True

    def take_events(self) -> list[CacheEvent]:
        """Hand over what was reported since the last call."""
        events, self.events = self.events, []
        return events

    def check(self) -> None:
        """Assert that hashes and copies mirror each other and that only held blocks are shared."""
        named = {block: name for name, block in self._first.items()}
        for name, copies in self._later.items():
            assert copies
            assert name in self._first
            named |= dict.fromkeys(copies, name)
        assert named == self._hash_of
        assert self._free.keys().isdisjoint(self._extra_holders)
        assert all(holders > 0 for holders in self._extra_holders.values())
        assert len(self._free) <= self.size
