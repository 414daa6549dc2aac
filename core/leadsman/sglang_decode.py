"""What decodes in an SGLang scheduler: its memory, and who is sent back where it is lacking.

The sums of `Replay` hold, with ticks that count only the steps that decode. What those who decode
may still need is kept for them, by a ratio that falls with every such step and is set anew when
memory runs out: then those with the shortest answers go back to the end of the queue, and with
`async_scheduling` (the overlap schedule) lose the token that was under way.
Source: SGLang 0.5.23 srt/managers/schedule_batch.py, ScheduleBatch.retract_decode; scheduler.py,
Scheduler.update_running_batch; scheduler_components/new_token_ratio_tracker.py.
"""

from leadsman.engine import EngineSettings, SglangRules
from leadsman.replay import Replay
from leadsman.sequence import Lookup, Seq, Step
from leadsman.sglang_budget import CLIP, Budget
from leadsman.units import Blocks, RequestId, Tokens

FIRST_RATIO, LEAST_RATIO, DECAY_STEPS, RETRACT_STEPS = 0.7, 0.14, 600, 20


class SglangDecoding(Replay):
    """One SGLang scheduler's decodes. `ratio`: the share of their bound that answers will need.

    With overlap an engine has not counted the last step's tokens yet: not those of `_fresh`, whose
    prompts it finished (by how much others can find of them), and if it was one of decoding, as
    `_all_lag` says, not anybody's. `_is_shut`: nobody is tried until somebody leaves.
    """

    __slots__ = ("_all_lag", "_fresh", "_is_shut", "_reopens", "_tried", "ratio", "rules")

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        assert settings.sglang is not None
        self.rules: SglangRules = settings.sglang
        self.ratio = self._first_ratio
        self._is_shut = self._reopens = self._all_lag = False
        self._fresh: dict[RequestId, Tokens] = {}
        self._tried: frozenset[RequestId] = frozenset()

    @property
    def _first_ratio(self) -> float:
        return min(FIRST_RATIO * self.rules.schedule_conservativeness, 1.0)

    def drop(self, seq: Seq) -> None:
        """Take a request out, wherever it is: it ended or was aborted."""
        super().drop(seq)
        self._is_shut = False

    def stored(self, request: RequestId, computed: Tokens) -> Tokens:
        """Count the tokens of a request that others can find: not a last chunk under way."""
        return self._fresh.get(request, computed)

    def _end(self, seq: Seq, before: Tokens | None) -> None:  # noqa: ARG002
        super()._end(seq, None)  # a token in vain is ignored here: every end counts as foreseen
        if not self.settings.async_scheduling:
            self._is_shut = False

    def _put_last(self, requests: list[RequestId]) -> None:
        """Order who decodes: a mixed step's prompts stand before those who decoded in it."""
        for request in requests:
            self.decoding[request] = self.decoding.pop(request)

    def _growth_now(self) -> Blocks:
        return self.phases.get(-self.tick % self.settings.block_size, 0)

    @property
    def _mixes(self) -> bool:
        return self.rules.enable_mixed_chunk and self.rules.chunked_prefill_size is not None

    def _may_join(self) -> bool:
        """Let who decodes ride along with a prefill pass, if it left them memory."""
        if not (self._mixes and self.decoding) or self._growth_now() > self.free:
            return False
        self._take(self._growth_now())
        return True

    def _may_decode(self) -> bool:
        """Make room for one more token of all who decode, if need be by sending some back."""
        if not self.decoding:
            return False
        if self._growth_now() <= self.free:
            self.ratio = max(self.ratio - self._decay, self._least_ratio)
        elif self._lingering:
            return False
        else:
            self._retract()
        self._take(self._growth_now())
        return bool(self.decoding)

    def _retract(self) -> None:
        """Send back those with the shortest answers, one at least, until the others have room."""
        kept = sorted(
            self.decoding.values(), key=lambda s: (self._told(s), -s.prompt), reverse=True
        )
        while len(kept) > 1:
            self._send_back(kept.pop())
            if self._growth_now() <= self.free:
                break
        told = sum([self._told(seq) for seq in kept]) + RETRACT_STEPS * len(kept)
        self.ratio = min(1.0, told / (sum([seq.limit or CLIP for seq in kept]) + 1))
        self._put_last([seq.id for seq in kept])

    def _note_tried(self, seq: Seq) -> None:
        if self.rules.enable_priority_scheduling:
            self._tried = (self._tried & {one.id for one in self.waiting}) | {seq.id}

    def _was_tried(self, seq: Seq) -> bool:
        return seq.id in self._tried or seq.cached is not None

    def _send_back(self, victim: Seq) -> None:
        """Put one who decodes at the end of the queue; what was computed of it is lost."""
        told = self._told(victim)
        self.drop(victim)
        again = victim.copy() if self.believes else victim
        again.generated = told
        again.computed = again.rows = again.blocks = again.shared = 0
        everyone = [*self.waiting, *self.decoding.values(), again]
        again.arrival = 1 + max(other.arrival for other in everyone)
        unseen = [place for place, one in enumerate(self.waiting) if one.visible_at > self.clock]
        self.waiting.insert(min(unseen, default=len(self.waiting)), again)

    def _send_back_for(self, seq: Seq, lookup: Lookup, budget: Budget) -> bool:
        """Send back who matters enough less than `seq` for it to fit; False where that is nobody.

        The prompt of one who was never tried counts as nothing: its length is set when it is.
        """
        rules, victims = self.rules, list[Seq]()
        if not rules.enable_priority_scheduling:
            return False
        sign = -1 if rules.low_priority_first else 1
        prompt = seq.target - lookup(seq).tokens if self._was_tried(seq) else 0
        missing = prompt + self._bound(seq) - budget.total
        ranked = sorted(self._all_running(), key=lambda s: (sign * s.priority, -s.arrival))
        for other in ranked:
            if sign * (seq.priority - other.priority) <= rules.preemption_threshold:
                break
            victims.append(other)
            missing -= self._kept(other)
            if missing <= 0:
                break
        if not victims or missing > 0:
            return False
        for other in [one for one in self._all_running() if one in victims]:
            kept, free = self._kept(other), self.free
            self._send_back(other)
            budget.free_up(self.free - free, kept)
        self._is_shut = True
        return True

    # -- what the engine counts ----------------------------------------------------------------

    @property
    def _running(self) -> int:
        return len(self.decoding) + self.lingerers

    def _all_running(self) -> list[Seq]:
        return [*self.decoding.values(), *self._lingering]

    def _told(self, seq: Seq) -> Tokens:
        """Count the output tokens that the engine has counted of one who runs."""
        has_ended = seq.id not in self.decoding
        return self.generated(seq) - (has_ended or self._all_lag or seq.id in self._fresh)

    def _bound(self, seq: Seq, told: Tokens = 0) -> Tokens:
        """Bound the tokens that an answer may still get."""
        return min(max((seq.limit or CLIP) - told, 0), CLIP)

    def _kept(self, seq: Seq) -> float:
        """Tokens that are kept for the answer of one who runs."""
        return min((seq.limit or CLIP) - self._told(seq), CLIP) * self.ratio

    @property
    def _least_ratio(self) -> float:
        return min(self._first_ratio * LEAST_RATIO, 1.0)

    @property
    def _decay(self) -> float:
        return (self._first_ratio - self._least_ratio) / DECAY_STEPS

    # -- many equal steps ----------------------------------------------------------------------

    def skip(self, last: Step, longest: int) -> Step | None:
        """Repeat `last` as often as nothing changes, at most `longest` times, in closed form:
        decoding while nobody can be tried, and whole chunks.
        """
        if last.finals or last.admitted or self._lingering or longest < 1:
            return None
        decodes = last.features.decodes
        if decodes and (last.chunks or self.prefilling or decodes != len(self.decoding)):
            return None
        if not last.chunks and not self._is_shut and self._head_of_queue(self.clock) is not None:
            return None
        m = min(longest, self._next_end() - self.tick - 1) if decodes else longest
        for seq, n in last.chunks:
            if self._mixes or n != self.rules.chunked_prefill_size:
                return None
            m = min(m, (seq.target - seq.computed - 1) // n)
        if m < 1 or not self._fits_many(last, m):
            return None
        return self._repeat(last, m)

    def _fits_many(self, last: Step, m: int) -> bool:
        if not last.chunks:
            return self._growth(m) <= self.free
        kept = sum([self._kept(seq) for seq in self._all_running()])
        needed = sum([n * m for _, n in last.chunks])
        return needed + self.settings.block_size + kept < self.free * self.settings.block_size

    def _repeat(self, last: Step, m: int) -> Step:
        if last.features.decodes:
            self.ratio = max(self.ratio - m * self._decay, self._least_ratio)
            return super()._repeat(last, m)
        tick, context = self.tick, self.context
        decoding, self.decoding = self.decoding, {}
        phases, self.phases = self.phases, {}
        step = super()._repeat(last, m)
        self.decoding, self.phases = decoding, phases
        self.tick, self.context = tick, context
        features = step.features._replace(decodes=0, context=0)
        return step._replace(features=features)
