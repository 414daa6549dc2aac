"""Replays how SGLang hands out its steps: prompts first, and decoding when there is none to do.

A step is either a prefill pass or one token for all who decode; only with `enable_mixed_chunk` do
the decodes ride along. At most one prompt is under way over several steps: the last one of a pass
that does not fit is cut to whole pages, and it goes on first in the next. Nobody is admitted past
a request that does not fit, and once memory or slots were lacking, nobody is tried until somebody
leaves (`_is_shut`). What those who decode may still need is kept for them, by a ratio that falls
with every step of decoding and is set anew when memory runs out: then those with the shortest
answers go back to the end of the queue, and with `async_scheduling` (its overlap schedule) lose
the token that was under way. Then also a prompt's last chunk can be found by others only a step
later, and who ends holds slot and memory for one step more.

The decoding sequences, their ends and their blocks are kept by `Replay`, whose ticks count here
only the steps that decode. A block is a page. `free` counts pages that nobody who runs holds.
Ignored: the token that an asynchronous engine decodes in vain for an answer that stops by itself;
hierarchical caches, LoRA slots, the prefill delayers and the pipeline's chunk sizes; that what
waits is looked up, and so used, in each pass.
Source: SGLang 0.5.23 srt/managers/scheduler.py, Scheduler.get_next_batch_to_run,
_get_new_batch_prefill_raw and update_running_batch; schedule_policy.py; schedule_batch.py,
ScheduleBatch.retract_decode; scheduler_components/new_token_ratio_tracker.py.
"""

from collections import deque
from typing import Self

from leadsman.sequence import Chunk, Hit, Lookup, Seq, Step
from leadsman.sglang_budget import Budget, Verdict
from leadsman.sglang_decode import SglangDecoding
from leadsman.sglang_queue import in_order
from leadsman.steptime import StepFeatures
from leadsman.units import Seconds, Tokens


class SglangReplay(SglangDecoding):
    """One SGLang scheduler.

    `_reopens`: the engine notes that it is shut on the batch that runs, and forgets it with that
    batch, where a pass found none running or took all along, and where a prompt goes on.
    """

    __slots__ = ()

    def fork(self) -> Self:
        """Copy the state so that it can be run into the future; expected ends count there."""
        twin = super().fork()
        twin.ratio, twin._fresh, twin._tried = self.ratio, self._fresh, self._tried
        twin._is_shut, twin._reopens, twin._all_lag = self._is_shut, self._reopens, self._all_lag
        return twin

    # -- what comes from outside ---------------------------------------------------------------

    def add(self, seq: Seq) -> None:
        """Queue a request behind all others; the order of admission is found in each pass."""
        self.waiting.append(seq)

    @property
    def next_arrival(self) -> Seconds | None:
        """When the next request becomes visible."""
        return min((s.visible_at for s in self.waiting if s.visible_at > self.clock), default=None)

    def _head_of_queue(self, visible: Seconds) -> Seq | None:
        return next((seq for seq in self.waiting if seq.visible_at <= visible), None)

    def wake(self) -> None:
        """Begin a busy stretch; an engine that was idle has forgotten its ratio."""
        if self._head_of_queue(self.clock) is None:
            self.ratio = self._first_ratio
        self._fresh, self._all_lag = {}, False
        super().wake()

    # -- one step ------------------------------------------------------------------------------

    def step(self, lookup: Lookup) -> Step:
        """Schedule one step that starts at `clock`, and process its output; `ran` moves the clock.

        The step has no work where nothing can be run, or memory is about to be given back.
        """
        chunks, admitted = self._prefill(lookup)
        was_running = self._running
        runs = self._may_join() if chunks else self._may_decode()
        decodes, context = (len(self.decoding), self.context) if runs else (0, 0)
        prefill, attention = 0, 0.0
        for seq, n in chunks:
            prefill += n
            attention += n * (seq.computed - 0.5 * n)
        if self._lingering:
            self._is_shut = False
        self._release_lingering()
        finals = self._finish(chunks, runs=runs, was_running=was_running)
        busy = 1 if chunks or decodes else 0
        features = StepFeatures(busy, prefill, attention, decodes, context, len(finals))
        return Step(features, chunks, finals, admitted, 1, [], [])

    def _prefill(self, lookup: Lookup) -> tuple[list[Chunk], list[Seq]]:
        """Compose a prefill pass; nothing of it can be found before it is over."""
        self._reopen()
        visible, running = self._visible(), self._running
        queue = [seq for seq in self.waiting if seq.visible_at <= visible]
        if not self.prefilling:
            if self._is_shut or not queue:
                return [], []
            if running >= self.settings.max_num_seqs and not self.rules.enable_priority_scheduling:
                self._is_shut = True
                return [], []
        mixed = running if self._mixes else 0
        kept = sum([self._kept(seq) for seq in self._all_running()])
        budget = Budget(self.rules, self.settings.block_size, self.free, kept, mixed)
        chunks: list[Chunk] = []
        for seq in self.prefilling:
            n = budget.go_on(seq.target - seq.computed, self._bound(seq))
            chunks.append((seq, n))
        if not self.settings.is_first_come:
            queue = self._sort(queue, lookup)
        found = self._take_in(queue, lookup, budget, chunks)
        return chunks + found, [seq for seq, _ in found]

    def _sort(self, queue: list[Seq], lookup: Lookup) -> list[Seq]:
        """Order those who wait, and leave them so: the next pass starts from there."""
        unseen = [seq for seq in self.waiting if seq not in queue]
        page, entered = self.settings.block_size, self.entered
        queue = in_order(queue, self.rules, lookup, page, entered)
        self.waiting = deque(queue + unseen)
        return queue

    def _reopen(self) -> None:
        """Try again once a step changed who runs as a whole, or if some may be sent back.

        The engine notes that it is shut on the batch that runs, and forgets it with that batch:
        where a pass found none running, or took all along.
        """
        shut_is_moot = self.rules.enable_priority_scheduling or not self._running
        if self._reopens or shut_is_moot:
            self._is_shut = False
        self._reopens = False

    def _take_in(
        self, queue: list[Seq], lookup: Lookup, budget: Budget, under_way: list[Chunk]
    ) -> list[Chunk]:
        """Admit from the head of the queue until a budget is spent or somebody does not fit."""
        found: list[tuple[Seq, Tokens, Hit]] = []
        most = self.rules.prefill_max_requests
        for seq in queue:
            taken = len(under_way) + len(found)
            if budget.verdict is Verdict.SPENT:
                break
            if taken >= self.settings.max_num_seqs - self._running:
                self._is_shut = True
            if self._is_shut and not self._send_back_for(seq, lookup, budget):
                break
            if most is not None and taken >= most:
                break
            hit, answer = lookup(seq), (self._bound(seq, seq.generated), self._bound(seq))
            n = budget.admit(seq.target - hit.tokens, hit, answer, is_first=not taken)
            if not isinstance(n, Verdict):
                found.append((seq, n, hit))
            else:
                self._note_tried(seq)
            verdict = n if isinstance(n, Verdict) else budget.verdict
            if verdict is Verdict.FULL:
                self._is_shut = bool(under_way or found or self._running)
            if verdict is not Verdict.OPEN:
                break
        for seq, n in under_way:
            self._stretch(seq, n)
            seq.computed += n
        return [(self._let_in(seq, n, hit), n) for seq, n, hit in found]

    def _let_in(self, seq: Seq, n: Tokens, hit: Hit) -> Seq:
        self.waiting.remove(seq)
        seq = seq.copy() if self.believes else seq
        self._enter(seq, hit, n)
        seq.computed += n
        return seq

    def _finish(self, chunks: list[Chunk], *, runs: bool, was_running: int) -> list[Seq]:
        """Process a step's output: in it everybody who decodes has `runs`, or nobody."""
        before, self._fresh, self._all_lag = [*self.decoding], {}, runs
        self._reopens = bool(chunks) and (runs or not was_running)
        if runs:
            self.tick += 1
            self.context += len(self.decoding)
            for seq in self._end_decodes():
                self._end(seq, None)
        finals = []
        for seq, n in chunks:
            if seq.computed < seq.target:
                self._reopens = True
                continue
            finals.append(seq)
            self._fresh[seq.id] = seq.computed - n
            self.prefilling.remove(seq)
            seq.generated += 1
            self._begin_decoding(seq, seq.generated - 1)
        if not self.settings.async_scheduling:
            self._fresh, self._all_lag = {}, False
        elif not (runs or chunks):
            self._all_lag = False
        if runs and finals:
            self._put_last([request for request in before if request in self.decoding])
        return finals
