"""Who is served in a step of those that run, and who is pushed out for it.

They take their tokens in the order of their admission. Where blocks are plenty and all decode in
lockstep, they are served as one sum; else one after the other, and whoever finds no block pushes
out the one admitted last, or the least urgent, which may be itself.
Source: vLLM 0.33 v1/core/sched/scheduler.py, the first half of Scheduler.schedule.
"""

from leadsman.engine import EngineSettings
from leadsman.line import Line
from leadsman.sequence import Chunk, Seq
from leadsman.units import Seconds, Tokens


class Turn:
    """One step while it is put together: who was served with how much, admitted, pushed out."""

    __slots__ = ("admitted", "preempted", "prefills", "served", "serves_running")

    def __init__(self) -> None:
        self.served: dict[Seq, Tokens] = {}
        self.admitted: list[Seq] = []
        self.preempted: list[Seq] = []
        self.prefills = self.serves_running = False


class Serving(Line):
    """The first half of a step. `_cut` is what one prompt gets of it at most, None for all."""

    __slots__ = ("_cut",)

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._cut: Tokens | None = None

    def _serve_together(self, turn: Turn) -> Tokens | None:
        """Serve all who run at once; None, and nothing done, where blocks are short.

        So too where prompts are cut: one that left some of the budget to who runs behind it may
        take all with its next chunk, so that their order matters.
        """
        if self.settings.aligns_chunks and self.prefilling and self.decoding:
            return None
        left = self.settings.max_num_batched_tokens - len(self.decoding)
        grown = need = self.phases.get(-self.tick % self.settings.block_size, 0)
        plan: list[Chunk] = []
        for seq in self._lingering:
            if seq.vain:
                plan.append((seq, 1))
                need += self._short(seq, 1)
                left -= 1
        for seq in self.prefilling:
            n = min(seq.target - seq.computed, left if self._cut is None else min(left, self._cut))
            n = self._aligned(seq, seq.computed, n)
            if n > 0:
                plan.append((seq, n))
                need += self._blocks(seq.computed + n) - seq.blocks
                left -= n
        if need > self.free:
            return None
        self._take(grown)
        for seq, n in plan:
            self._stretch(seq, n)
            self._serve(turn, seq, n)
        return left

    def _serve_each(self, turn: Turn) -> Tokens:
        """Serve who runs one after the other; whoever lacks blocks pushes others out."""
        running = self.running
        left, place = self.settings.max_num_batched_tokens, 0
        by_urgency = self.settings.policy == "priority"
        while place < len(running) and left > 0:
            seq = running[place]
            place += 1
            n = self._wish(seq, left)
            if n <= 0:
                continue
            self._slide(seq)
            while self._short(seq, n) > self.free:
                victim = max(running, key=_least_urgent) if by_urgency else running[-1]
                place -= running.index(victim) < place
                running.remove(victim)
                left += self._push_out(turn, victim)
                if victim is seq:
                    break
            else:
                turn.prefills |= seq in self.prefilling
                self._stretch(seq, n)
                self._serve(turn, seq, n)
                left -= n
                continue
            if not (by_urgency and self._rules.serves_on):
                break
        return left

    def _push_out(self, turn: Turn, victim: Seq) -> Tokens:
        """Preempt a sequence; returns the tokens that it was served in this step already."""
        size, restored = self.settings.block_size, turn.served.pop(victim, 0)
        if restored and self.in_lockstep and victim.id in self.decoding:
            self.free += (victim.computed + self.tick - victim.base) % size == 0
        turn.preempted.append(victim)
        self._preempt(victim)
        return restored

    def _serve(self, turn: Turn, seq: Seq, n: Tokens) -> None:
        turn.served[seq] = n
        if not (self.in_lockstep and seq.id in self.decoding):
            seq.computed += n

    def _wish(self, seq: Seq, left: Tokens) -> Tokens:
        """Give the tokens that a running sequence gets if blocks suffice."""
        settings = self.settings
        if seq.vain or seq.id in self.decoding:
            room = settings.max_model_len - seq.computed - seq.rejected - 1
            n = min(1 + settings.num_speculative_tokens, room)
        elif seq in self._lingering:
            return 0
        else:
            n = seq.target - seq.computed
        n = min(n, left if self._cut is None else min(left, self._cut))
        return self._aligned(seq, seq.computed, n)

    def _aligned(self, seq: Seq, start: Tokens, n: Tokens) -> Tokens:
        """Cut a chunk of a prompt where a state can be kept, if the engine does: 0 is none at all.

        That is where a block ends, and first where prompts part or the last whole block before the
        prompt's last token does. A block that no step can hold is computed in pieces.
        Source: vLLM 0.33 v1/core/sched/scheduler.py, Scheduler._mamba_block_aligned_split.
        """
        settings, size = self.settings, self.settings.block_size
        end, last = start + n, max(seq.prompt, seq.target - 1)
        if not settings.aligns_chunks or start >= last or n <= 0:
            return n
        if end < last:
            most = settings.max_num_batched_tokens
            most = min(most, settings.long_prefill_token_threshold or most)
            whole = end // size * size
            if whole > start or size <= most:
                end = whole
        next_end = (start // size + 1) * size if start % size else 0
        parting = self._parting(seq)
        parting = start + (parting - start) // size * size if start < parting < end else 0
        stops = (next_end, (seq.target - 1) // size * size, parting)
        return max(0, min([stop for stop in stops if start < stop < end], default=end) - start)

    def _parting(self, _seq: Seq) -> Tokens:
        """Say where a prompt parts from what others had, beyond what it found: 0 where unknown."""
        return 0

    def _threshold(self, visible: Seconds) -> Tokens | None:
        """Give the most that one prompt gets of a step, where more than one request is there."""
        threshold = self.settings.long_prefill_token_threshold
        if threshold is None:
            return None
        present = self.slots_used + sum(seq.visible_at <= visible for seq in self.waiting)
        return threshold if present > 1 else None


def _least_urgent(seq: Seq) -> tuple[int, int]:
    return seq.priority, seq.arrival
