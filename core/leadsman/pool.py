"""One worker's KV blocks in the order in which the engine will give them up.

The index knows *what* is cached; what a request will find when it is admitted depends on the order
too. Blocks of running requests are pinned. When a request ends, its blocks join the tail of the
free queue, deepest first; new tokens take free blocks that hold nothing first, then the queue's
head, whose content is thereby lost. So the longest prefix that is still there after the requests
ahead have taken their blocks is found without simulating a single block: a block is lost if fewer
than so many stand before it in the queue.

Residency follows the engine's events, as far as they are trusted, and what requests were seen to
find. What is in doubt keeps its place in the queue, and is not found until it is stored again or
was found by a request.
A prefix's blocks leave from its end, so residency is searched by bisection.
Source: vLLM 0.32 v1/core/block_pool.py, free_blocks and get_new_blocks.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from leadsman.records import Trust
from leadsman.units import BlockKey, Blocks


class Pool:
    """Resident blocks of one worker: pinned by running requests, or free but not yet reused.

    `pins` counts the running requests that hold a key; `free` maps a key to its stamp, in the
    order of the free queue: a smaller stamp is lost sooner.
    """

    def __init__(self) -> None:
        self.pins: dict[BlockKey, int] = {}
        self.free: dict[BlockKey, int] = {}
        self.doubted: set[BlockKey] = set()
        self._is_blind = False
        self._stamp = 0
        self._head: list[int] = []
        self._queue: Iterator[int] | None = None

    def __len__(self) -> int:
        return len(self.pins) + len(self.free)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self.pins or key in self.free

    def clear(self) -> None:
        """Forget what is cached; blocks of running requests are still theirs, but not findable."""
        self.pins.clear()
        self.free.clear()
        self.doubted.clear()
        self._queue = None

    def set_trust(self, trust: Trust) -> None:
        """Believe what is here this far from now on, as `CacheIndex.set_trust` does."""
        self._is_blind = trust is Trust.BLIND
        if trust in {Trust.SUSPECT, Trust.BLIND}:
            self.doubted.update(self.pins, self.free)
        else:
            self.doubted.clear()

    def note_stored(self, keys: Iterable[BlockKey]) -> None:
        """The engine says that these were stored; blind, its word does not count."""
        (self.doubted.update if self._is_blind else self.doubted.difference_update)(keys)

    def confirm(self, keys: Iterable[BlockKey], room: Blocks) -> list[BlockKey]:
        """These are there for certain; returns what must have gone for them, of `room` blocks."""
        for key in keys:
            self.doubted.discard(key)
            if key not in self:
                self.keep([key])
        gone = list(islice(self.free, max(0, len(self) - room)))
        self.remove(gone)
        return gone

    def vouch_for_doubted(self) -> None:
        """What is in doubt is there."""
        self.doubted.clear()

    def give_up_doubted(self) -> None:
        """What is in doubt still is gone."""
        self.remove(list(self.doubted))

    def depth(self, keys: Sequence[BlockKey], most: Blocks, cutoff: int = 0) -> Blocks:
        """Count the leading blocks, at most `most`, that are there and outlive `cutoff`."""
        return self._bisect(keys, most, cutoff)

    def claimed(self, keys: Sequence[BlockKey], most: Blocks) -> Blocks:
        """Count the leading blocks, at most `most`, that are there or in doubt."""
        return bisect_left(range(most), True, key=lambda place: keys[place] not in self)

    def pinned(self, keys: Sequence[BlockKey], most: Blocks) -> Blocks:
        """Count the leading blocks, at most `most`, that running requests hold."""
        return self._bisect(keys, most, None)

    def _bisect(self, keys: Sequence[BlockKey], most: Blocks, cutoff: int | None) -> Blocks:
        """Count how many of the first `most` hold, where none holds after one that does not."""
        if most <= 0 or not self._holds(keys[0], cutoff):
            return 0
        if self._holds(keys[most - 1], cutoff):
            return most
        low, high = 0, most - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._holds(keys[middle], cutoff):
                low = middle
            else:
                high = middle
        return high

    def _holds(self, key: BlockKey, cutoff: int | None) -> bool:
        """Tell whether a key is pinned or, with a cutoff, there and outlives it."""
        if cutoff is None:
            return key in self.pins
        return (key in self.pins or self.free.get(key, -1) >= cutoff) and key not in self.doubted

    def cutoff(self, lost: Blocks, touched: Sequence[int] = ()) -> int:
        """Return the stamp below which everything is gone once `lost` cached blocks were reused.

        touched: rising stamps of blocks that were taken out of the queue for their content.
        """
        if lost <= 0:
            return 0
        skipped = 0
        while (stamp := self._stamp_at(lost + skipped)) is not None:
            if (below := bisect_right(touched, stamp)) == skipped:
                return stamp
            skipped = below
        return self._stamp + 1

    def _stamp_at(self, place: int) -> int | None:
        """Read the stamp at a place of the queue; one run into the future asks for many."""
        if self._queue is None:
            self._head, self._queue = [], iter(self.free.values())
        if place >= len(self._head):
            self._head += islice(self._queue, place + 1 - len(self._head))
        return self._head[place] if place < len(self._head) else None

    def pin(self, keys: Iterable[BlockKey]) -> None:
        """Let one more running request hold these blocks."""
        pins, free, self._queue = self.pins, self.free, None
        for key in keys:
            free.pop(key, None)
            pins[key] = pins.get(key, 0) + 1

    def unpin(self, keys: Sequence[BlockKey]) -> None:
        """A request that held these ends: what nobody else holds joins the queue, deepest first."""
        pins, free, stamp = self.pins, self.free, self._stamp
        for key in reversed(keys):
            held = pins.get(key, 0)
            if held > 1:
                pins[key] = held - 1
            elif held:
                del pins[key]
                stamp += 1
                free[key] = stamp
        self._stamp, self._queue = stamp, None

    def keep(self, keys: Iterable[BlockKey]) -> None:
        """Blocks that were stored by nobody known: they are there, and lost last."""
        pins, free, self._queue = self.pins, self.free, None
        fresh = [key for key in keys if key not in pins] if pins else list(keys)
        if len(set(fresh)) < len(fresh):  # only the last of each counts
            fresh = list(dict.fromkeys(reversed(fresh)))[::-1]
        if not free.keys().isdisjoint(fresh):
            for key in fresh:
                free.pop(key, None)
        before, self._stamp = self._stamp, self._stamp + len(fresh)
        free.update(zip(fresh, range(before + 1, self._stamp + 1), strict=True))

    def remove(self, keys: Iterable[BlockKey]) -> None:
        """The engine says that these are gone: a copy that is still pinned is another one."""
        self._queue = None
        for key in keys:
            self.free.pop(key, None)
            if key not in self.pins:
                self.doubted.discard(key)

    def check(self) -> None:
        """Assert what must hold: no key both pinned and free, stamps rise along the queue."""
        assert not self.pins.keys() & self.free.keys()
        assert all(key in self for key in self.doubted)
        stamps = list(self.free.values())
        assert stamps == sorted(set(stamps))
        assert all(count > 0 for count in self.pins.values())
