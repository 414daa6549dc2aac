"""What runs in an engine, as sums: decoding sequences, their ends, and the blocks that all hold.

All that decode move in lockstep, one token a step, so they are kept as their number, their context,
and how many need a block at which tick. Nothing is copied from the replay.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from leadsman.mirror import Mirror
from leadsman.sequence import Seq
from leadsman.units import BlockKey, Blocks, RequestId, Tokens

NEVER = 1 << 60


class Passage:
    """One request on its way through the engine: a `Seq`'s progress, without a copy of it."""

    __slots__ = ("base", "blocks", "cached", "computed", "seq", "shared", "target")

    def __init__(self, seq: Seq, target: Tokens, computed: Tokens, blocks: Blocks) -> None:
        self.seq, self.target = seq, target
        self.computed, self.blocks = computed, blocks
        self.cached, self.shared, self.base = seq.cached, seq.shared, 0

    @property
    def id(self) -> RequestId:
        """Whose passage this is."""
        return self.seq.id

    @property
    def keys(self) -> list[BlockKey]:
        """Name the blocks of its prompt."""
        return self.seq.keys


End: TypeAlias = tuple[int, bool, int, RequestId, Passage | Seq]
"""At which tick, whether that is only expected, since when, and who."""


class Running:
    """Sums of what runs, at the start of step `tick`.

    Of the `free` blocks, `unused` hold nothing; `lost` counts the cached ones that were taken.
    `phases` counts the decodes by (length - tick) modulo the block size, twice over, so that every
    window of ticks is one slice. `held` blocks of `holders` sequences that ended in the last step
    are given back in this one. `is_refused`: the head of the queue was asked in and did not fit,
    and nothing was given back since.
    """

    __slots__ = (
        "_ends", "_is_async", "_size", "context", "decodes", "ended", "free", "held", "holders",
        "is_refused", "lost", "next_end", "phases", "tick", "unused",
    )  # fmt: skip

    def __init__(self, mirror: Mirror) -> None:
        replay, size = mirror.replay, mirror.settings.block_size
        self._size, self._is_async = size, mirror.settings.async_scheduling
        self.tick, self.is_refused = replay.tick, False
        self.held, self.holders = replay.lingering, replay.lingerers
        self.free, self.unused = mirror.blocks_to_give()
        self.lost = 0
        self.ended: list[tuple[Passage | Seq, Tokens]] = []
        self.decodes, self.context = len(replay.decoding), replay.context
        self.phases = [0] * (2 * size)
        for phase, count in replay.phases.items():
            self.phases[phase] = self.phases[phase + size] = count
        self._ends = _ends_of(replay.decoding.values(), self.tick + 1)
        self.next_end = self._ends[0][0] if self._ends else NEVER

    def _give_back(self) -> None:
        """Give back what those held who had ended a step ago."""
        if self.holders:
            self.free += self.held
            self.held = self.holders = 0
            self.is_refused = False

    def _begin_decoding(self, passage: Passage) -> None:
        """Its prompt is done: it decodes up to the end that is expected, or is over at once."""
        seq, tick, size = passage.seq, self.tick, self._size
        passage.base = tick
        left = seq.expected - seq.generated - 1
        certain = left if seq.limit is None else seq.limit - seq.generated - 1
        if left <= 0 or certain <= 0:
            self._leave(passage, passage.computed, passage.blocks - passage.shared)
            return
        self.decodes += 1
        self.context += passage.computed + 1
        phase = (passage.computed - tick) % size
        self.phases[phase] += 1
        self.phases[phase + size] += 1
        is_expected = seq.limit is None or left < certain
        end = tick + (left if is_expected else certain)
        heappush(self._ends, (end, is_expected, end, seq.id, passage))
        self.next_end = self._ends[0][0]

    def _end_decodes(self) -> None:
        size, tick, ends = self._size, self.tick, self._ends
        while ends and ends[0][0] <= tick:
            seq = heappop(ends)[-1]
            length = seq.computed + tick - seq.base
            self.decodes -= 1
            self.context -= length + 1
            phase = (seq.computed - seq.base) % size
            self.phases[phase] -= 1
            self.phases[phase + size] -= 1
            self._leave(seq, length, -(-length // size) - seq.shared)
        self.next_end = ends[0][0] if ends else NEVER

    def _leave(self, seq: Passage | Seq, length: Tokens, blocks: Blocks) -> None:
        self.unused += length % self._size > 0
        self.ended.append((seq, length))
        if self._is_async:
            self.held += blocks
            self.holders += 1
        else:
            self.free += blocks
            self.is_refused = False


def _ends_of(decoding: Iterable[Seq], soonest: int) -> list[End]:
    """Queue the ends of those that decode already; whoever is overdue ends at `soonest`."""
    ends: list[End] = []
    for seq in decoding:
        due, limit = seq.due, seq.limit
        end, certain = (
            max(due, soonest),
            NEVER if limit is None else seq.base + limit - seq.generated,
        )
        if certain <= end:
            ends.append((certain, False, certain, seq.id, seq))
        else:
            ends.append((end, True, due, seq.id, seq))
    heapify(ends)
    return ends
