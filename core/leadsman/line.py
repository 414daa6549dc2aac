"""Who runs in one engine and who waits, and how they come in and go out.

A sequence is in one place: it waits, computes its prompt, decodes, or lingers: its last token is
scheduled, but an asynchronous engine has yet to process it, and until then it holds slot and
blocks.
"""

from collections import deque

from leadsman.engine import EngineSettings
from leadsman.rules import rules_of
from leadsman.sequence import Seq
from leadsman.tables import Tables
from leadsman.units import Blocks, RequestId, Seconds, Tokens


class Line(Tables):
    """The queues of one engine.

    A fork shares the sequences that it does not move; `entered` are those it did, and `ended` those
    that left it since, in order, with their lengths.
    """

    __slots__ = (
        "_lingering", "_orders", "_rules", "clock", "ended", "entered", "prefilling", "seen_until",
        "waiting",
    )  # fmt: skip

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.clock: Seconds = 0.0
        self.prefilling: list[Seq] = []
        self.waiting: deque[Seq] = deque()
        self.entered: dict[RequestId, Seq] = {}
        self.ended: list[tuple[Seq, Tokens]] = []
        self.seen_until: Seconds | None = None
        self._lingering: list[Seq] = []
        self._orders = 0
        self._rules = rules_of(settings.version)

    @property
    def has_work(self) -> bool:
        """Something runs, or a step follows in which who has just ended holds its slot."""
        if self.prefilling or self.decoding:
            return True
        if any(seq.vain for seq in self._lingering):
            return True
        return bool(self._lingering) and self._head_of_queue(self._visible()) is not None

    @property
    def slots_used(self) -> int:
        """Sequences that hold one of `max_num_seqs`."""
        return len(self.prefilling) + len(self.decoding) + len(self._lingering)

    @property
    def running(self) -> list[Seq]:
        """Who holds a slot, in the order of admission."""
        everybody = [*self.prefilling, *self.decoding.values(), *self._lingering]
        return sorted(everybody, key=lambda seq: seq.order)

    @property
    def lingering(self) -> Blocks:
        """Blocks of ended sequences that are given back one step later."""
        return sum(seq.blocks - seq.shared for seq in self._lingering)

    @property
    def lingerers(self) -> int:
        """Ended sequences that hold their slot for one more step."""
        return len(self._lingering)

    # -- coming and going ------------------------------------------------------------------------

    def add(self, seq: Seq) -> None:
        """Queue a request: behind all others, or by priority where the engine orders so."""
        self.waiting.append(seq)
        self._order_waiting()

    def _order_waiting(self) -> None:
        if self.settings.policy == "priority":
            self.waiting = deque(sorted(self.waiting, key=lambda s: (s.priority, s.arrival)))

    def drop(self, seq: Seq) -> None:
        """Take a request out, wherever it is: it ended or was aborted."""
        if seq.id in self.decoding:
            self._release(self._leave(seq))
        elif seq in self.prefilling:
            self.prefilling.remove(seq)
            self._release(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        elif seq in self._lingering:
            self._lingering.remove(seq)
            self._release(seq)

    def place(self, seq: Seq, computed: Tokens) -> None:
        """Put a sequence where it was seen to be: `computed` tokens done, whatever was believed."""
        self.drop(seq)
        self._orders += 1
        seq.order, seq.generated = self._orders, 0
        seq.computed, seq.rejected, seq.flying, seq.vain = computed, 0, 0, False
        seq.rows, seq.shared = self._blocks(computed), 0
        skipped = sum(self._skipped(window, computed) for window in self.settings.windows)
        seq.blocks = seq.rows * len(self.settings.windows) - skipped
        self.free -= seq.blocks
        if computed < seq.prompt:
            self.prefilling.append(seq)
        else:
            seq.generated = 1 + computed - seq.prompt
            self._begin_decoding(seq, seq.generated - 1)

    def rewind(self, ticks: int) -> None:
        """Take back the last `ticks` tokens of all who decode: they were not made yet."""
        self.tick -= ticks
        self.context, self.phases = 0, {}
        decoding, self.decoding = self.decoding, {}
        for seq in decoding.values():
            if seq.base <= self.tick:
                seq.computed += self.tick - seq.base
                seq.generated += self.tick - seq.base
                seq.rows = seq.blocks = self._blocks(seq.computed)
            self._begin_decoding(seq, seq.generated - 1)

    def _begin_decoding(self, seq: Seq, before: Tokens) -> None:
        """Let a sequence that had `before` tokens, and now has more, decode on if it does."""
        last = seq.certain
        if last is not None and seq.generated >= last:
            self._end(seq, before)
        elif self.believes and seq.generated >= seq.expected:
            self._end(seq, None)
        else:
            self._join(seq)

    def _end(self, seq: Seq, before: Tokens | None) -> None:
        """Let a sequence leave that is in no queue any more.

        before: its output tokens before its last step, None where its end is only believed: from
        one token before the limit on, the engine itself foresees it.
        """
        self.unused += seq.computed % self.settings.block_size > 0
        if self.believes:
            self.ended.append((seq, seq.computed))
        if not self.settings.async_scheduling:
            self._release(seq)
            return
        foresees = before is None or (seq.limit is not None and before + 1 >= seq.limit)
        seq.vain = not foresees
        self._lingering.append(seq)

    def _release_lingering(self) -> None:
        """Give back what those hold who ended a step ago."""
        if not self._lingering:
            return
        for seq in self._lingering:
            self._release(seq)
        self._lingering.clear()

    def _preempt(self, victim: Seq) -> None:
        """Send a running sequence back to the head of the queue, its blocks given back.

        One that has ended counts as running until its output is processed; it does not come back.
        """
        if victim in self._lingering:
            self.drop(victim)
            return
        if victim.id in self.decoding:
            again = self._leave(victim)
        else:
            self.prefilling.remove(victim)
            again = victim.copy() if self.believes else victim
        self._release(again)
        again.computed = again.rejected = again.flying = 0
        again.rows = again.blocks = again.shared = 0
        self.waiting.appendleft(again)
        self._order_waiting()

    # -- time ------------------------------------------------------------------------------------

    @property
    def next_arrival(self) -> Seconds | None:
        """When the next request becomes visible that may be admitted then; None: none will."""
        if self.settings.policy == "priority":
            later = [seq.visible_at for seq in self.waiting if seq.visible_at > self.clock]
            return min(later, default=None)
        if self.waiting and self.waiting[0].visible_at > self.clock:
            return self.waiting[0].visible_at
        return None

    def wake(self) -> None:
        """Begin a busy stretch when somebody is there: the engine is idle, and holds nothing."""
        arrival = None if self._head_of_queue(self.clock) else self.next_arrival
        self.clock, self.seen_until = arrival or self.clock, None
        self._release_lingering()

    def _visible(self) -> Seconds:
        """Give the time until which an arrival is seen by the next step."""
        if self.settings.async_scheduling and self.seen_until is not None:
            return self.seen_until
        return self.clock

    def _head_of_queue(self, visible: Seconds) -> Seq | None:
        if self.settings.policy == "priority":
            return next((seq for seq in self.waiting if seq.visible_at <= visible), None)
        head = self.waiting[0] if self.waiting else None
        return None if head is None or head.visible_at > visible else head
