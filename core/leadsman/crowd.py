"""Those that decode, all in lockstep: one token each a step, so they are kept as sums.

Their number, their context, how many of them will need a block at which `tick`, and the tick at
which each will end. Where steps are not alike (a sequence may take several tokens a step, or give
blocks back while it runs) nobody is in lockstep: then who decodes is only listed here, and the
replay moves each by itself.
"""

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from leadsman.engine import EngineSettings
from leadsman.sequence import Seq
from leadsman.units import Blocks, RequestId, Tokens

NEVER = 1 << 60


class Crowd:
    """The decoding sequences of one engine. `crowd` counts how often it has changed who they are.

    believes: whether expected ends count, or only certain ones.
    """

    __slots__ = (
        "believes", "context", "crowd", "decoding", "expectations", "in_lockstep", "limits",
        "phases", "settings", "tick",
    )  # fmt: skip

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.believes = False
        self.in_lockstep = settings.decodes_in_lockstep
        self.tick = 0
        self.decoding: dict[RequestId, Seq] = {}
        self.context: Tokens = 0
        self.phases: dict[int, int] = {}
        self.crowd = 0
        self.limits: list[tuple[int, RequestId]] = []
        self.expectations: list[tuple[int, RequestId]] = []

    def generated(self, seq: Seq) -> Tokens:
        """Output tokens that a sequence has by now."""
        return seq.generated + (self.tick - seq.base if seq.id in self.decoding else 0)

    def expect(self, seq: Seq, expected: Tokens) -> None:
        """Believe from now on that `seq` will have `expected` output tokens; it ends then."""
        seq.expected = expected
        if seq.id in self.decoding:
            seq.due = self.tick + max(expected - self.generated(seq), 0)
            heappush(self.expectations, (seq.due, seq.id))

    def expect_all(self, left: Mapping[RequestId, int]) -> None:
        """Believe from now on that all who decode will end after so many more tokens."""
        for seq in self.decoding.values():
            seq.expected, seq.due = self.generated(seq) + left[seq.id], self.tick + left[seq.id]
        self.expectations = [(seq.due, seq.id) for seq in self.decoding.values()]
        heapify(self.expectations)

    @property
    def has_overdue(self) -> bool:
        """Whether somebody decodes on who was expected to have ended."""
        return self._head(self.expectations, believed=True) <= self.tick

    def _join(self, seq: Seq) -> None:
        """Let `seq` decode from the next step on."""
        seq.base = self.tick
        self.decoding[seq.id] = seq
        self.crowd += 1
        if not self.in_lockstep:
            return
        self.context += seq.computed + 1
        phase = (seq.computed - self.tick) % self.settings.block_size
        self.phases[phase] = self.phases.get(phase, 0) + 1
        last = seq.certain
        seq.last_tick = None if last is None else self.tick + last - seq.generated
        if seq.last_tick is not None:
            heappush(self.limits, (seq.last_tick, seq.id))
        self.expect(seq, seq.expected)

    def _leave(self, seq: Seq) -> Seq:
        """Take a sequence out of the sums; returns it as it is now, a fork's as a copy."""
        del self.decoding[seq.id]
        self.crowd += 1
        if not self.in_lockstep:
            return seq
        ran = self.tick - seq.base
        self.context -= seq.computed + ran + 1
        phase = (seq.computed - seq.base) % self.settings.block_size
        self.phases[phase] -= 1
        if not self.phases[phase]:
            del self.phases[phase]
        if self.believes:
            seq = seq.copy()
        seq.computed, seq.generated, seq.base = seq.computed + ran, seq.generated + ran, self.tick
        seq.rows = seq.blocks = self._blocks(seq.computed)
        return seq

    def _end_decodes(self) -> list[Seq]:
        """Take out those whose last token this was."""
        over = []
        while self._next_end() <= self.tick:
            heap = self.limits
            if self._head(heap, None) > self.tick:
                heap = self.expectations
            over.append(self._leave(self.decoding[heappop(heap)[1]]))
        return over

    def _next_end(self) -> int:
        """The tick of the next end that counts, far off where there is none."""
        return min(self._head(self.limits, None), self._head(self.expectations, self.believes))

    def _head(
        self,
        heap: list[tuple[int, RequestId]],
        believed: bool | None,  # noqa: FBT001
    ) -> int:
        if believed is False:
            return self.tick + NEVER
        while heap:
            tick, request = heap[0]
            seq = self.decoding.get(request)
            if seq is not None and tick == (seq.last_tick if believed is None else seq.due):
                return tick
            heappop(heap)
        return self.tick + NEVER

    def _blocks(self, tokens: Tokens) -> Blocks:
        return -(-tokens // self.settings.block_size)

    def _growth(self, m: int) -> Blocks:
        """Blocks that the crowd will need for its next `m` tokens."""
        size = self.settings.block_size
        whole, rest = divmod(m, size)
        more = whole * len(self.decoding)
        if rest:
            for phase, count in self.phases.items():
                more += count * ((-phase - self.tick) % size < rest)
        return more
