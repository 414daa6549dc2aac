"""Many equal steps at once, in closed form.

Where nobody comes, ends or is pushed out, steps differ in nothing but how far they are: chunks of a
prompt cost the same however they are cut, and the decodes' contexts are an arithmetic series.
"""

from leadsman.engine import EngineSettings
from leadsman.sequence import Seq, Step
from leadsman.serving import Serving
from leadsman.steptime import StepFeatures
from leadsman.units import Tokens


class Skipping(Serving):
    """Repeats a step. `_is_full`: it left no budget or no slot; `_refused`: who did not fit."""

    __slots__ = ("_is_full", "_refused")

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._is_full = False
        self._refused: Seq | None = None

    def skip(self, last: Step, longest: int) -> Step | None:
        """Repeat `last` as often as nothing changes, at most `longest` times, in closed form.

        None where the next step is not like the last one. Arrivals are the caller's: it passes a
        `longest` that none becomes visible in.
        """
        if last.finals or last.admitted or self._lingering or longest < 1 or not self.in_lockstep:
            return None
        if self._cut != self._threshold(self.clock):
            return None
        head = None if self._is_full else self._head_of_queue(self.clock)
        if head is not None and (head is not self._refused or (last.chunks and head.keys)):
            return None  # who did not fit may, once others have computed more of its prefix
        if len(self.decoding) != last.features.decodes or len(self.prefilling) > len(last.chunks):
            return None
        m = min(longest, self._next_end() - self.tick - 1)
        for seq, n in last.chunks:
            m = min(m, self._alike(seq, n))
        if m < 1 or not self._fits(last, m):
            return None
        return self._repeat(last, m)

    def _alike(self, seq: Seq, n: Tokens) -> int:
        """Count the further chunks of `n` tokens that a prompt is computed in."""
        size, last = self.settings.block_size, seq.target - 1
        if self.settings.aligns_chunks:
            if n % size or seq.computed % size:
                return 0
            last = last // size * size
        return (last - seq.computed) // n

    def _repeat(self, last: Step, m: int) -> Step:
        decodes = len(self.decoding)
        attention = 0.0
        for seq, n in last.chunks:
            attention += n * m * (seq.computed + 0.5 * n * m)
            seq.computed += n * m
            more = self._blocks(seq.computed) - seq.blocks
            seq.rows = seq.blocks = seq.blocks + more
            self._take(more)
        context = m * self.context + decodes * (m * (m - 1) // 2)
        self._take(self._growth(m))
        self.context += decodes * m
        self.tick += m
        prefill = m * last.features.prefill
        features = StepFeatures(m, prefill, attention, m * decodes, context, 0)
        return Step(features, last.chunks, [], [], m, [], [])

    def _fits(self, last: Step, m: int) -> bool:
        more = self._growth(m)
        for seq, n in last.chunks:
            more += self._blocks(seq.computed + n * m) - seq.blocks
        return more <= self.free
