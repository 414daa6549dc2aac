"""Commits an engine's steps, and settles when they ended.

A committed step was composed and processed as the engine does it; a settled one was seen to end.
What was committed beyond the last settled end is *unsettled*: its end is guessed by the step model
until something shows it. Stretches between two settled ends are what the step model learns from.
"""

from collections.abc import Callable, Sequence

from leadsman.engine import EngineSettings
from leadsman.holding import Holding
from leadsman.schedulers import tells_early
from leadsman.sequence import Seq, Step
from leadsman.steptime import StepFeatures, StepLearner
from leadsman.units import Seconds, Tokens

OVERDUE: Seconds = 2.0
"""A step that should have been seen is waited for so long, or three times its length."""

SHORTEST: Seconds = 1e-3
"""No step is shorter: before its decode steps are learned, a worker's weights say that they cost
nothing, and the clock would commit them without end."""


class Stepping(Holding):
    """An engine's steps up to now; see the module."""

    def __init__(self, settings: EngineSettings, learner: StepLearner) -> None:
        super().__init__(settings)
        self.learner = learner
        self.follows_events = False
        self._unsettled: list[tuple[StepFeatures, Seconds]] = []
        self._last_end: Seconds | None = None
        self._last_seconds: Seconds = 0.0

    def _is_watched(self, seq: Seq) -> bool:
        """Say whether a stream is read chunk by chunk, and decoded."""
        flight = self.flights.get(seq.id)
        return flight is not None and flight.is_witness and seq.id in self.replay.decoding

    @property
    def _has_witness(self) -> bool:
        """Whether a stream is watched at all."""
        return any(self._is_watched(flight.seq) for flight in self.flights.values())

    def _is_same_moment(self, at: Seconds) -> bool:
        """Say whether `at` is too soon after the last settled end to be the next one."""
        return self._last_end is not None and abs(at - self._last_end) < self._blur()

    def _is_late(self, at: Seconds) -> bool:
        """Say whether what was seen at `at` is older than the last settled end."""
        if self._last_end is None or at >= self._last_end:
            return False
        return at < self._last_end - max(1e-3, self._blur())

    def _steps_after(self, seq: Seq, tokens: Tokens) -> int:
        """Count the unsettled steps after the one that gave `seq` its last of so many tokens.

        Negative where that one is still to be committed. Where prompts go first, steps pass that
        give no token to who decodes.
        """
        made, after = self.replay.generated(seq), 0
        if made < tokens or seq.id not in self.replay.decoding:
            return made - tokens
        for step, _ in reversed(self._unsettled):
            gives = step.decodes if made > 1 else step.finals
            if gives and made == tokens:
                return after
            made -= bool(gives)
            after += 1
        return after + made - tokens

    def _blur(self) -> Seconds:
        """How far apart two sights of the same step's end may be: a part of the shortest step."""
        return 0.3 * self._decode_step()

    def _decode_step(self) -> Seconds:
        """Predict the shortest that a step can be now: one without prefill."""
        weights, replay = self.learner.weights, self.replay
        return weights.t0 + weights.t_d * len(replay.decoding) + weights.e * replay.context

    def _steps_to_first(self) -> int:
        """Bound the steps that it may take until a request that waits has its first token."""
        ahead = self.queued_tokens // self.settings.max_num_batched_tokens
        return ahead + len(self.replay.waiting) + 3

    def _commit_until(self, reached: Callable[[], bool], at: Seconds, most: int) -> bool:
        """Commit steps, at most so many, until `reached`; False if time until `at` is too short."""
        for _ in range(most):
            if self._commit() is None:
                return False
            if reached():
                return True
            since = 0.0 if self._last_end is None else at - self._last_end
            if self.replay.clock > at + max(3.0 * self._last_seconds, 0.5 * since):
                return False
        return False

    def _commit(self) -> Step | None:
        replay = self.replay
        is_idle = not replay.has_work
        if is_idle:
            if not replay.waiting:
                return None
            replay.wake()
            self._break()
        if replay.waiting:
            self._await_evidence()
            if self.follows_events:
                replay.free, _ = self.blocks_to_give()
        step = replay.step(self.lookup)
        if not step.features.steps:
            return None if is_idle else self._commit()
        for seq in step.admitted:
            flight = self.flights.get(seq.id)
            if flight is not None:
                self._believe(flight, seq.cached or 0)
            found = seq.keys[: (seq.cached or 0) // self.settings.block_size]
            self._hold(seq, [key for key in found if key in self.pool] if seq.reach else found)
        self._last_seconds = max(self.learner.weights.seconds(step.features), SHORTEST)
        replay.ran(step, replay.clock + self._last_seconds)
        self._unsettled.append((step.features, self._last_seconds))
        return step

    def _await_evidence(self) -> None:
        """With async scheduling the events tell of an admission a step ahead: without, none was."""
        waiting = self.replay.waiting
        if not (tells_early(self.settings) and self.follows_events and waiting):
            return
        seq = waiting[0]
        flight = self.flights.get(seq.id)
        if flight is None or flight.blocks_seen:
            return
        new = min(seq.target - self.lookup(seq).tokens, self.settings.max_num_batched_tokens // 2)
        if new > self.settings.block_size and self.replay.has_work:
            seq.visible_at = max(seq.visible_at, self.replay.clock)

    def _settle(self, at: Seconds, *, left: int = 0) -> None:
        """Take `at` as the end of the last committed step, or of the one `left` before it."""
        count = len(self._unsettled) - left
        ended, self._unsettled = self._unsettled[:count], self._unsettled[count:]
        if self._last_end is not None and at > self._last_end and ended:
            features: Sequence[float] = ended[0][0]
            if len(ended) > 1:
                features = list(map(sum, zip(*(step for step, _ in ended), strict=True)))
            self.learner.observe(features, at - self._last_end)
        self._anchor(at)

    def _lose_track(self, at: Seconds) -> None:
        """A step ended at `at` that cannot be told: what would be over by then is, unlearned."""
        self.learner.interrupt()
        clock = self.replay.clock
        ahead = self._unsettled
        self._unsettled = []
        for step, seconds in reversed(ahead):
            if clock <= at:
                break
            self._unsettled.insert(0, (step, seconds))
            clock -= seconds
        self._anchor(at)

    def _anchor(self, at: Seconds) -> None:
        """A step ended at `at`; what is unsettled follows it."""
        self._last_end = at
        self.replay.clock = at + sum(seconds for _, seconds in self._unsettled)

    def _break(self) -> None:
        """The engine was idle: no stretch to learn from leads here."""
        self.learner.interrupt()
        self._unsettled, self._last_end = [], None

    def catch_up(self, now: Seconds) -> None:
        """Commit by the clock the steps that nothing will show, up to `now`."""
        replay = self.replay
        while replay.decoding and replay.clock + self._last_seconds + self._patience() < now:
            if self._commit() is None:
                return

    def _patience(self) -> Seconds:
        """How long a step may be overdue before it is taken to be over unseen."""
        if self.replay.prefilling or self._has_witness:
            return max(OVERDUE, 3.0 * self._last_seconds)
        return 0.0
