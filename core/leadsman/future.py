"""What a request will find cached when its turn comes: the mirror's pool, run into the future.

Blocks are pushed out from the head of today's free queue first, then from what requests gave back
that ended since, in the order of their ends, each from its deepest block on. What those ahead of a
request have stored by then is found, as far as their prompts are the same.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Protocol

from leadsman.mirror import Mirror
from leadsman.schedulers import findable
from leadsman.sequence import NOTHING, Hit, Seq
from leadsman.units import BlockKey, Blocks, RequestId, Tokens


class Passing(Protocol):
    """A request that was admitted since the mirror's state; `shared` blocks were others' before."""

    cached: Tokens | None
    shared: Blocks
    computed: Tokens

    @property
    def id(self) -> RequestId:
        """Whose passage this is."""
        ...

    @property
    def keys(self) -> list[BlockKey]:
        """Name the blocks of its prompt."""
        ...


class Future(Protocol):
    """A run from the mirror's state on.

    lost: cached blocks that were given to new tokens since. entered: requests that run or ran, by
    their admission. ended: those that are over, in order, with their lengths.
    """

    @property
    def lost(self) -> Blocks:
        """How far eviction has come."""
        ...

    @property
    def entered(self) -> Mapping[RequestId, Passing]:
        """Who has run since, in the order of admission."""
        ...

    @property
    def ended(self) -> Sequence[tuple[Passing, Tokens]]:
        """Who has ended since, in order, with their lengths."""
        ...


class FutureCache:
    """Looks up what is cached at each moment of one run into the future."""

    def __init__(self, mirror: Mirror, future: Future) -> None:
        self._mirror, self._future = mirror, future
        self._touched: list[int] = []
        self._touched_by = 0
        self._given: dict[RequestId, tuple[Blocks, Blocks]] = {}
        self._given_back: Blocks = 0
        self._noted = 0

    def lookup(self, seq: Seq) -> Hit:
        """Look up what `seq` finds cached if it is admitted in the next step."""
        mirror, pool, keys = self._mirror, self._mirror.pool, seq.keys
        if not keys or not (seq.kin or seq.reach or keys[0] in pool):
            return NOTHING
        most = mirror.readable(seq)
        if not most:
            return NOTHING
        pinned = pool.pinned(seq.keys, most)
        lost = self._future.lost
        if lost > 0:
            self._touch()
        alive = self._alive(seq, most, lost - len(pool.free) + len(self._touched))
        depth = pool.depth(seq.keys, most, pool.cutoff(lost, self._touched))
        depth = max(depth, alive) if alive >= pinned else min(depth, alive)
        depth = max(mirror.usable(seq.keys, depth), min(seq.reach, most))
        return Hit(depth * mirror.settings.block_size, min(max(pinned, alive), depth))

    def _touch(self) -> None:
        entered = self._future.entered
        if len(entered) == self._touched_by:
            return
        free, size = self._mirror.pool.free, self._mirror.settings.block_size
        for seq in islice(entered.values(), self._touched_by, None):
            hit = (seq.cached or 0) // size
            self._touched += [free[key] for key in seq.keys[seq.shared : hit] if key in free]
        self._touched_by = len(entered)
        self._touched.sort()

    def _alive(self, seq: Seq, most: Blocks, eaten: Blocks) -> Blocks:
        """Count the leading blocks that those in flight before `seq` hold, or gave back last."""
        entered, size = self._future.entered, self._mirror.settings.block_size
        if eaten > 0:
            self._note_ended()
        alive = 0
        for request, common in seq.kin:
            if common <= alive:
                break
            other = entered.get(request) or self._began_before(request)
            if other is not None:
                tokens = findable(self._future, request, other.computed)
                stored = min(tokens // size, self._left(request, eaten))
                alive = max(alive, min(common, stored, most))
        return alive

    def _began_before(self, request: RequestId) -> Seq | None:
        flight = self._mirror.flights.get(request)
        return flight.seq if flight is not None and flight.seq.computed else None

    def _left(self, request: RequestId, eaten: Blocks) -> Blocks:
        """Count what is left of a request once `eaten` of the blocks given back went."""
        if eaten <= 0 or request not in self._given:
            return 1 << 60
        before, length = self._given[request]
        return max(0, length - max(0, eaten - before))

    def _note_ended(self) -> None:
        """Note of each that ended how much others gave back before it, and what it gave."""
        ended, size = self._future.ended, self._mirror.settings.block_size
        for seq, length in ended[self._noted :]:
            self._given.setdefault(seq.id, (self._given_back, length // size))
            self._given_back += length // size - seq.shared
        self._noted = len(ended)
