"""Replays how vLLM V1 hands out its per-step token budget.

One `Replay` is the state of one engine scheduler: who runs, who waits, how many KV blocks are
free. `step` runs one engine step as the engine would; `skip` runs many equal ones at once, so
that a million-token prompt costs no more than a short one. Prices of an ordinary queue do not come
here: see `firstcome`.

Running sequences take their tokens first, in the order of admission; then waiting ones are
admitted from the head of the queue, which blocks behind its first member that does not fit. Whoever
finds no block pushes out the one admitted last, or the least urgent. Where blocks are plenty and
all decode in lockstep, those are served as one sum; else each is served by itself.

A sequence holds its slot until its last step is processed; with async scheduling one step longer,
and an arrival is seen one step later, because step N+1 is scheduled before step N's output is in.
One that stops by itself there is served once more, in vain. A step's output counts here as soon as
the step is scheduled; what the engine does not know yet by then is told from `flying`, `rejected`
and `vain`.

What a sequence finds cached is asked at the moment of its admission, through `Lookup`.
Ignored here: encoder budgets, LoRA slots, connectors, drafters with slots of their own in the
budget, drafts of models with states. What differs between versions is in `rules`.
Source: vLLM 0.32 and 0.33, v1/core/sched/scheduler.py, Scheduler.schedule and update_from_output.
"""

from collections.abc import Callable
from typing import Self

from leadsman.engine import EngineSettings
from leadsman.sequence import Chunk, Hit, Lookup, Seq, Step
from leadsman.serving import Turn
from leadsman.skipping import Skipping
from leadsman.steptime import StepFeatures
from leadsman.units import Blocks, Seconds, Tokens


class Replay(Skipping):
    """One engine scheduler."""

    __slots__ = ("accepts",)

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.accepts: Callable[[Seq], Tokens] = _none
        """How many of the next drafts of a sequence will be right."""

    def fork(self) -> Self:
        """Copy the state so that it can be run into the future; expected ends count there."""
        twin = type(self)(self.settings)
        twin.believes, twin.accepts = True, self.accepts
        twin.clock, twin.tick = self.clock, self.tick
        twin.prefilling = [seq.copy() for seq in self.prefilling]
        twin.decoding = self.decoding.copy()
        if not self.in_lockstep:
            twin.decoding = {seq.id: seq.copy() for seq in self.decoding.values()}
        twin.entered = {seq.id: seq for seq in twin.prefilling}
        twin.waiting = self.waiting.copy()
        twin.limits = self.limits.copy()
        twin.expectations = self.expectations.copy()
        twin.context, twin.free = self.context, self.free
        twin.unused, twin.lost = self.unused, self.lost
        twin.phases = self.phases.copy()
        twin._lingering = [seq.copy() for seq in self._lingering]
        twin._orders, twin.seen_until = self._orders, self.seen_until
        twin.crowd = self.crowd
        return twin

    def ran(self, step: Step, until: Seconds) -> None:
        """`step` ended at `until`: the next one starts there."""
        start = self.clock
        self.clock = until
        self.seen_until = start
        if step.repeats > 1:
            self.seen_until = until - (until - start) / step.repeats

    # -- one step ------------------------------------------------------------------------------

    def step(self, lookup: Lookup) -> Step:
        """Schedule one step that starts at `clock`, and process its output; `ran` moves the clock.

        The step has no work where nothing runs and nobody who waits is visible yet.
        """
        if self.in_lockstep and not (self.prefilling or self.waiting or self._lingering):
            more = self.phases.get(-self.tick % self.settings.block_size, 0)
            if more <= self.free:
                return self._only_decode(more)
        turn = Turn()
        self._cut = self._threshold(self._visible())
        left = self._serve_together(turn) if self.in_lockstep else None
        postponed: list[Seq] = []
        if left is None:
            left = self._serve_each(turn)
            if self.in_lockstep:
                behind = [seq for seq in self.decoding.values() if seq not in turn.served]
                postponed = [self._leave(seq) for seq in behind]
        self._refused, self._is_full = None, left <= 0
        if turn.preempted:
            self._is_full = False
        elif left > 0:
            self._admit(turn, left, lookup)
        features, chunks = self._worked(turn)
        self._release_lingering()
        finals = self._process(turn, postponed)
        features = features._replace(finals=len(finals))
        turns = list(turn.served.items())
        return Step(features, chunks, finals, turn.admitted, 1, turn.preempted, turns)

    def _only_decode(self, more: Blocks) -> Step:
        """Run the commonest of steps: no prompt is to be computed; `more` blocks are needed."""
        self._is_full = False
        self._refused, self._cut = None, self._threshold(self.clock)
        decodes, context = len(self.decoding), self.context
        self._take(more)
        self._process(None, [])
        busy = 1 if decodes else 0
        features = StepFeatures(busy, 0, 0.0, decodes, context, 0)
        return Step(features, [], [], [], 1, [], [])

    def _worked(self, turn: Turn) -> tuple[StepFeatures, list[Chunk]]:
        """Sum up what a step computes, and list the prompts' parts of it."""
        decodes, context = (len(self.decoding), self.context) if self.in_lockstep else (0, 0)
        prefill, attention, chunks = 0, 0.0, []
        for seq, n in turn.served.items():
            if not (seq.vain or seq.id in self.decoding):
                chunks.append((seq, n))
                prefill += n
                attention += n * (seq.computed - 0.5 * n)
            elif seq.vain or not self.in_lockstep:
                decodes, context = decodes + 1, context + seq.computed
        busy = 1 if prefill or decodes else 0
        return StepFeatures(busy, prefill, attention, decodes, context, 0), chunks

    def _admit(self, turn: Turn, left: Tokens, lookup: Lookup) -> None:
        settings, visible = self.settings, self._visible()
        slots = settings.max_num_seqs - self.slots_used
        turn.serves_running = bool(turn.served)
        spare = int(settings.watermark * (settings.num_blocks + 1))
        while left > 0 and slots > 0:
            seq = self._head_of_queue(visible)
            if seq is None:
                return
            hit = lookup(seq)
            n = self._wish_of_newcomer(turn, seq, hit, left)
            if n <= 0 or not self._may_enter(seq, hit, n, spare if self.slots_used else 0):
                self._refused = None if self._lingering else seq
                return
            self.waiting.remove(seq)
            seq = seq.copy() if self.believes else seq
            self._enter(seq, hit, n)
            turn.admitted.append(seq)
            self._serve(turn, seq, n)
            left -= n
            slots -= 1
        self._is_full = left <= 0 or not self._lingering

    def _wish_of_newcomer(self, turn: Turn, seq: Seq, hit: Hit, left: Tokens) -> Tokens:
        """Give the tokens that a request would get in its first step, 0 where it has to wait.

        One that lacks a single token is filled up to what a decoding one takes.
        """
        settings, n = self.settings, seq.target - hit.tokens
        drafts = settings.num_speculative_tokens
        is_padded = n == 1 and not turn.prefills and (turn.serves_running or hit.tokens)
        if drafts and is_padded and seq.target + drafts < settings.max_model_len:
            n += drafts
            if n > left:
                return 0
        if self._cut is not None:
            n = min(n, self._cut)
        if n > left and not settings.enable_chunked_prefill:
            return 0
        return self._aligned(seq, hit.tokens, min(n, left))

    def _enter(self, seq: Seq, hit: Hit, n: Tokens) -> None:
        if seq.cached is None:
            seq.cached = hit.tokens
        self._seat(seq, hit, n)
        self._orders += 1
        seq.order = self._orders
        self.prefilling.append(seq)
        if self.believes:
            self.entered[seq.id] = seq

    def _process(self, turn: Turn | None, postponed: list[Seq]) -> list[Seq]:
        """Take in the step's output; returns those whose prompt is done."""
        self.tick += 1
        if self.in_lockstep:
            self.context += len(self.decoding)
            for seq in self._end_decodes():
                is_certain = seq.last_tick is not None and seq.last_tick <= self.tick
                self._end(seq, seq.generated - 1 if is_certain else None)
            for seq in postponed:
                self._join(seq)
        finals: list[Seq] = []
        if turn is None:
            return finals
        for seq, n in turn.served.items():
            if not self.in_lockstep:
                seq.base, seq.flying = self.tick, n if self.settings.async_scheduling else 0
                if seq.id in self.decoding:
                    self._gain(seq)
            if seq in self.prefilling and seq.computed >= seq.target:
                finals.append(seq)
                self.prefilling.remove(seq)
                self._gain(seq)
        if not self.in_lockstep:
            self._settle(turn)
        return finals

    def _settle(self, turn: Turn) -> None:
        """Who was not served has nothing in flight."""
        for seq in (*self.prefilling, *self.decoding.values()):
            if seq not in turn.served:
                seq.base, seq.flying, seq.rejected = self.tick, 0, 0

    def _gain(self, seq: Seq) -> None:
        """Add the tokens that a step brought: one, and the drafts that were right."""
        drafts, before = seq.computed - seq.target, seq.generated
        if self.in_lockstep:
            seq.generated += 1
            self._begin_decoding(seq, before)
            return
        wrong = drafts - min(drafts, self.accepts(seq)) if drafts else 0
        seq.computed -= wrong
        seq.rejected = wrong if self.settings.async_scheduling else 0
        seq.generated = before + 1 + drafts - wrong
        if (last := seq.certain) is not None:
            seq.generated = min(seq.generated, last)
        if seq.id in self.decoding:
            self._leave(seq)
        self._begin_decoding(seq, before)


def _none(_: Seq) -> Tokens:
    return 0
