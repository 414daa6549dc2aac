"""Replays how vLLM V1 hands out its per-step token budget.

One `Replay` is the state of one engine scheduler: who runs, who waits, how many KV blocks are
free. `step` runs one engine step as the engine would; `skip` runs many equal ones at once, so
that a million-token prompt costs no more than a short one. Prices of an ordinary queue do not come
here: see `firstcome`. All decoding sequences move in
lockstep, one token a step, so they are kept as sums: their number, their context, and the step
(`tick`) at which each will end.

Running sequences take their tokens first, in the order of admission; then waiting ones are
admitted from the head of the queue, which blocks behind its first member that does not fit.
A sequence holds its slot until its last step is processed; with async scheduling one step longer,
and an arrival is seen one step later, because step N+1 is scheduled before step N's output is in.

What a sequence finds cached is asked at the moment of its admission, through `Lookup`.
Ignored here: encoder budgets, LoRA slots, spec decode, connectors; the token that an asynchronous
engine schedules in vain for a sequence that stops by itself; and whose blocks are shared: blocks
that several running sequences hold count as those of the first, and are free when it ends. A
preempted request is taken to find nothing of what it had computed. Before vLLM 0.33 a request
that preempts itself under the priority policy ends the step for all behind it; here it does not.
Source: vLLM 0.33 v1/core/sched/scheduler.py, Scheduler.schedule and update_from_output.
"""

from collections import deque
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple, TypeAlias

from leadsman.engine import EngineSettings
from leadsman.steptime import StepFeatures
from leadsman.units import BlockKey, Blocks, RequestId, Seconds, Tokens


class Seq:
    """One request inside an engine: what the scheduler knows of it."""

    __slots__ = (
        "arrival", "base", "blocks", "cached", "computed", "due", "expected", "generated", "id",
        "keys", "kin", "limit", "order", "priority", "prompt", "reads_cache", "shared", "uncached",
        "visible_at",
    )  # fmt: skip

    def __init__(self, request: RequestId, prompt: Tokens, visible_at: Seconds) -> None:
        self.id = request
        self.prompt = prompt
        self.visible_at = visible_at
        self.priority = 0
        self.arrival = 0
        self.limit: Tokens | None = None
        self.expected: Tokens = 1
        self.computed: Tokens = 0
        self.generated: Tokens = 0
        self.base = 0
        self.order = 0
        self.cached: Tokens | None = None
        self.blocks: Blocks = 0
        self.shared: Blocks = 0
        self.due = 0
        self.keys: list[BlockKey] = []
        self.kin: list[tuple[RequestId, Blocks]] = []
        self.reads_cache = True
        self.uncached: Tokens = 0

    def copy(self) -> "Seq":
        """Copy everything; a fork may then move it. Spelt out: a loop over the slots takes 4 us."""
        twin = Seq.__new__(Seq)
        twin.arrival, twin.base, twin.blocks = self.arrival, self.base, self.blocks
        twin.cached, twin.computed, twin.due = self.cached, self.computed, self.due
        twin.expected, twin.generated, twin.id = self.expected, self.generated, self.id
        twin.keys, twin.kin, twin.limit = self.keys, self.kin, self.limit
        twin.order, twin.priority, twin.prompt = self.order, self.priority, self.prompt
        twin.reads_cache, twin.uncached = self.reads_cache, self.uncached
        twin.shared, twin.visible_at = self.shared, self.visible_at
        return twin

    @property
    def last_tick(self) -> int | None:
        """The tick of its last token by `limit`, once it decodes."""
        return None if self.limit is None else self.base + self.limit - self.generated

    @property
    def target(self) -> Tokens:
        """Tokens to compute before the next output token: the prompt, and what it had said."""
        return self.prompt + self.generated


class Hit(NamedTuple):
    """What a lookup finds: `tokens` reusable, `pinned` of their blocks held by others already."""

    tokens: Tokens
    pinned: Blocks


NOTHING = Hit(0, 0)

Lookup: TypeAlias = Callable[[Seq], Hit]


Chunk: TypeAlias = tuple[Seq, Tokens]


class Step(NamedTuple):
    """What `repeats` equal engine steps did."""

    features: StepFeatures
    chunks: list[Chunk]
    finals: list[Seq]
    admitted: list[Seq]
    repeats: int


class Replay:
    """One engine scheduler. `believes` says whether expected ends count, or only certain ones.

    Of the free blocks, `unused` hold nothing and are given out first; `lost` counts the cached
    ones that new tokens have been given: how far eviction has come. A fork shares the sequences
    that it does not move; `entered` are those it did, and `ended` those that left it since, in
    order, with their lengths. `crowd` counts how often it has changed who decodes.
    """

    __slots__ = (
        "_cut", "_is_full", "_lingering", "_orders", "_preempted", "_refused", "believes", "clock",
        "context", "crowd", "decoding", "ended", "entered", "expectations", "free", "limits",
        "lost", "phases", "prefilling", "seen_until", "settings", "tick", "unused", "waiting",
    )  # fmt: skip

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.believes = False
        self.clock: Seconds = 0.0
        self.tick = 0
        self.prefilling: list[Seq] = []
        self.decoding: dict[RequestId, Seq] = {}
        self.waiting: deque[Seq] = deque()
        self.entered: dict[RequestId, Seq] = {}
        self.ended: list[tuple[Seq, Tokens]] = []
        self.context: Tokens = 0
        self.free: Blocks = settings.num_blocks
        self.unused: Blocks = settings.num_blocks
        self.lost: Blocks = 0
        self.phases: dict[int, int] = {}
        self.crowd = 0
        self.limits: list[tuple[int, RequestId]] = []
        self.expectations: list[tuple[int, RequestId]] = []
        self._lingering: list[tuple[Seq, Blocks]] = []
        self._is_full = self._preempted = False
        self._refused: Seq | None = None
        self._cut: Tokens | None = None
        self._orders = 0
        self.seen_until: Seconds | None = None

    def fork(self) -> "Replay":
        """Copy the state so that it can be run into the future; expected ends count there."""
        twin = Replay.__new__(Replay)
        twin.settings, twin.believes = self.settings, True
        twin.clock, twin.tick = self.clock, self.tick
        twin.prefilling = [seq.copy() for seq in self.prefilling]
        twin.decoding = self.decoding.copy()
        twin.ended = []
        twin.entered = {seq.id: seq for seq in twin.prefilling}
        twin.waiting = self.waiting.copy()
        twin.limits = self.limits.copy()
        twin.expectations = self.expectations.copy()
        twin.context, twin.free = self.context, self.free
        twin.unused, twin.lost = self.unused, self.lost
        twin.phases = self.phases.copy()
        twin._lingering = self._lingering.copy()
        twin._orders, twin.seen_until = self._orders, self.seen_until
        twin._is_full = twin._preempted = False
        twin.crowd = self.crowd
        twin._refused, twin._cut = None, None
        return twin

    @property
    def has_work(self) -> bool:
        """Something runs, or a step follows in which who has just ended holds its slot."""
        if self.prefilling or self.decoding:
            return True
        return bool(self._lingering) and self._head_of_queue(self._visible()) is not None

    @property
    def slots_used(self) -> int:
        """Sequences that hold one of `max_num_seqs`."""
        return len(self.prefilling) + len(self.decoding) + len(self._lingering)

    @property
    def lingering(self) -> Blocks:
        """Blocks of ended sequences that are given back one step later."""
        return sum(blocks for _, blocks in self._lingering)

    @property
    def lingerers(self) -> int:
        """Ended sequences that hold their slot for one more step."""
        return len(self._lingering)

    def generated(self, seq: Seq) -> Tokens:
        """Output tokens that a sequence has by now."""
        return seq.generated + (self.tick - seq.base if seq.id in self.decoding else 0)

    # -- what comes from outside ---------------------------------------------------------------

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
            self.free += self._leave_decoding(seq)
        elif seq in self.prefilling:
            self.prefilling.remove(seq)
            self.free += seq.blocks - seq.shared
        elif seq in self.waiting:
            self.waiting.remove(seq)

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

    def ran(self, step: Step, until: Seconds) -> None:
        """`step` ended at `until`: the next one starts there."""
        start = self.clock
        self.clock = until
        self.seen_until = start
        if step.repeats > 1:
            self.seen_until = until - (until - start) / step.repeats

    def place(self, seq: Seq, computed: Tokens) -> None:
        """Put a sequence where it was seen to be: `computed` tokens done, whatever was believed."""
        self.drop(seq)
        self._orders += 1
        seq.order, seq.generated = self._orders, 0
        seq.computed = computed
        seq.blocks, seq.shared = self._blocks(seq.computed), 0
        self.free -= seq.blocks
        if computed < seq.prompt:
            self.prefilling.append(seq)
        else:
            seq.generated = 1 + computed - seq.prompt
            self._start_decoding(seq)

    def rewind(self, ticks: int) -> None:
        """Take back the last `ticks` tokens of all who decode: they were not made yet."""
        self.tick -= ticks
        self.context, self.phases = 0, {}
        decoding, self.decoding = self.decoding, {}
        for seq in decoding.values():
            if seq.base <= self.tick:
                seq.computed += self.tick - seq.base
                seq.generated += self.tick - seq.base
                seq.blocks = self._blocks(seq.computed)
            self._start_decoding(seq)

    # -- one step ------------------------------------------------------------------------------

    def step(self, lookup: Lookup) -> Step:
        """Schedule one step that starts at `clock`, and process its output; `ran` moves the clock.

        The step has no work where nothing runs and nobody who waits is visible yet.
        """
        if not (self.prefilling or self.waiting or self._lingering):
            more = self.phases.get(-self.tick % self.settings.block_size, 0)
            if more <= self.free:
                return self._only_decode(more)
        chunks: list[Chunk] = []
        self._preempted = False
        self._cut = self._threshold(self._visible())
        left = self._schedule_running(chunks)
        decodes, context = len(self.decoding), self.context
        admitted: list[Seq] = []
        self._refused, self._is_full = None, left <= 0
        if self._preempted:
            self._is_full = False
        elif left > 0:
            self._admit(left, chunks, admitted, lookup)
        self._release_lingering()
        prefill, attention = 0, 0.0
        for seq, n in chunks:
            prefill += n
            attention += n * (seq.computed - 0.5 * n)
        finals = self._process(chunks)
        busy = 1 if prefill or decodes else 0
        features = StepFeatures(busy, prefill, attention, decodes, context, len(finals))
        return Step(features, chunks, finals, admitted, 1)

    def _only_decode(self, more: Blocks) -> Step:
        """Run the commonest of steps: no prompt is to be computed; `more` blocks are needed."""
        self._preempted = self._is_full = False
        self._refused, self._cut = None, self._threshold(self.clock)
        decodes, context = len(self.decoding), self.context
        self._take(more)
        self._process([])
        busy = 1 if decodes else 0
        return Step(StepFeatures(busy, 0, 0.0, decodes, context, 0), [], [], [], 1)

    def _schedule_running(self, chunks: list[Chunk]) -> Tokens:
        self._grow_decoding()
        left = self.settings.max_num_batched_tokens - len(self.decoding)
        threshold = self._cut
        for seq in self.prefilling.copy():
            n = min(seq.target - seq.computed, left)
            if threshold is not None:
                n = min(n, threshold)
            if n <= 0 or seq not in self.prefilling:
                continue
            left += self._make_room(seq, n, chunks)
            if seq in self.prefilling:
                self._extend(seq, n)
                chunks.append((seq, n))
                left -= n
        return left

    def _make_room(self, seq: Seq, n: Tokens, chunks: list[Chunk]) -> Tokens:
        """Preempt until `n` more tokens fit or `seq` is out itself; returns tokens taken back."""
        more, taken_back = self._blocks(seq.computed + n) - seq.blocks, 0
        while self.free < more and seq in self.prefilling:
            decodes = len(self.decoding)
            victim = self._preempt(has_grown=True)
            taken_back += decodes - len(self.decoding)
            for chunk in [chunk for chunk in chunks if chunk[0] is victim]:
                chunks.remove(chunk)
                taken_back += chunk[1]
        return taken_back

    def _extend(self, seq: Seq, n: Tokens) -> None:
        more = self._blocks(seq.computed + n) - seq.blocks
        seq.computed += n
        seq.blocks += more
        self._take(more)

    def _admit(
        self, left: Tokens, chunks: list[Chunk], admitted: list[Seq], lookup: Lookup
    ) -> None:
        settings = self.settings
        threshold = self._cut
        visible = self._visible()
        slots = settings.max_num_seqs - self.slots_used
        while left > 0 and slots > 0:
            seq = self._head_of_queue(visible)
            if seq is None:
                return
            hit = lookup(seq)
            n = seq.target - hit.tokens
            if threshold is not None:
                n = min(n, threshold)
            if (n > left and not settings.enable_chunked_prefill) or not self._may_enter(
                seq, hit, min(n, left)
            ):
                self._refused = None if self._lingering else seq
                return
            self.waiting.remove(seq)
            seq = seq.copy() if self.believes else seq
            self._enter(seq, hit, min(n, left))
            chunks.append((seq, min(n, left)))
            admitted.append(seq)
            left -= min(n, left)
            slots -= 1
        self._is_full = left <= 0 or not self._lingering

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

    def _may_enter(self, seq: Seq, hit: Hit, n: Tokens) -> bool:
        settings = self.settings
        reach = seq.target if settings.reserve_full_isl else hit.tokens + n
        spare = int(settings.watermark * (settings.num_blocks + 1)) if self.slots_used else 0
        return self._blocks(reach) - hit.pinned + spare <= self.free

    def _enter(self, seq: Seq, hit: Hit, n: Tokens) -> None:
        seq.computed = hit.tokens + n
        if seq.cached is None:
            seq.cached = hit.tokens
        seq.blocks, seq.shared = self._blocks(seq.computed), hit.pinned
        found = hit.tokens // self.settings.block_size
        self.free -= found - seq.shared
        self._take(seq.blocks - found)
        self._orders += 1
        seq.order = self._orders
        self.prefilling.append(seq)
        if self.believes:
            self.entered[seq.id] = seq

    def _process(self, chunks: list[Chunk]) -> list[Seq]:
        self.tick += 1
        self.context += len(self.decoding)
        self._end_decodes()
        finals = []
        for seq, _ in chunks:
            if seq.computed >= seq.target and seq in self.prefilling:
                finals.append(seq)
                self.prefilling.remove(seq)
                seq.generated += 1
                self._start_decoding(seq)
        return finals

    # -- many equal steps ----------------------------------------------------------------------

    def skip(self, last: Step, longest: int) -> Step | None:
        """Repeat `last` as often as nothing changes, at most `longest` times, in closed form.

        None where the next step is not like the last one. Arrivals are the caller's: it passes a
        `longest` that none becomes visible in.
        """
        if last.finals or last.admitted or self._lingering or longest < 1:
            return None
        if self._cut != self._threshold(self.clock):
            return None
        head = None if self._is_full else self._head_of_queue(self.clock)
        if head is not None and head is not self._refused:
            return None
        if len(self.decoding) != last.features.decodes or len(self.prefilling) > len(last.chunks):
            return None
        m = min(longest, self._next_end() - self.tick - 1)
        for seq, n in last.chunks:
            m = min(m, (seq.target - seq.computed - 1) // n)
        if m < 1 or not self._fits(last, m):
            return None
        return self._repeat(last, m)

    def _repeat(self, last: Step, m: int) -> Step:
        decodes = len(self.decoding)
        attention = 0.0
        for seq, n in last.chunks:
            attention += n * m * (seq.computed + 0.5 * n * m)
            seq.computed += n * m
            more = self._blocks(seq.computed) - seq.blocks
            seq.blocks += more
            self._take(more)
        context = m * self.context + decodes * (m * (m - 1) // 2)
        self._take(self._growth(m))
        self.context += decodes * m
        self.tick += m
        prefill = m * last.features.prefill
        features = StepFeatures(m, prefill, attention, m * decodes, context, 0)
        return Step(features, last.chunks, [], [], m)

    def _fits(self, last: Step, m: int) -> bool:
        more = self._growth(m)
        for seq, n in last.chunks:
            more += self._blocks(seq.computed + n * m) - seq.blocks
        return more <= self.free

    # -- blocks --------------------------------------------------------------------------------

    def _blocks(self, tokens: Tokens) -> Blocks:
        return -(-tokens // self.settings.block_size)

    def _threshold(self, visible: Seconds) -> Tokens | None:
        """Give the most that one prompt gets of a step, where more than one request is there."""
        threshold = self.settings.long_prefill_token_threshold
        if threshold is None:
            return None
        present = self.slots_used + sum(seq.visible_at <= visible for seq in self.waiting)
        return threshold if present > 1 else None

    def _growth(self, m: int) -> Blocks:
        """Blocks that the decoding sequences will need for their next `m` tokens."""
        size = self.settings.block_size
        whole, rest = divmod(m, size)
        more = whole * len(self.decoding)
        if rest:
            for phase, count in self.phases.items():
                more += count * ((-phase - self.tick) % size < rest)
        return more

    def _grow_decoding(self) -> None:
        while (more := self.phases.get(-self.tick % self.settings.block_size, 0)) > self.free:
            if self._preempt() is None:
                break
        self._take(more)

    def _take(self, blocks: Blocks) -> None:
        self.free -= blocks
        self.unused -= blocks
        if self.unused < 0:
            self.lost -= self.unused
            self.unused = 0

    def _preempt(self, *, has_grown: bool = False) -> Seq | None:
        """Send the last running sequence back to the head of the queue, its blocks given back.

        has_grown: the decoding ones have this step's block already. One that has ended counts as
        running until its output is processed; it only gives its blocks back.
        """
        running = [*self.prefilling, *self.decoding.values(), *(seq for seq, _ in self._lingering)]
        if not running:
            return None
        if self.settings.policy == "priority":
            victim = max(running, key=lambda s: (s.priority, s.arrival))
        else:
            victim = max(running, key=lambda s: s.order)
        self._preempted = True
        generated, length = self.generated(victim), victim.computed + self.tick - victim.base
        if has_grown and victim.id in self.decoding and length % self.settings.block_size == 0:
            self.free += 1
        if self._release_lingering(victim):
            return victim
        self.drop(victim)
        again = victim.copy() if self.believes else victim
        again.generated, again.computed, again.blocks, again.shared = generated, 0, 0, 0
        self.waiting.appendleft(again)
        self._order_waiting()
        return victim

    def _release_lingering(self, only: Seq | None = None) -> bool:
        """Give back the blocks of sequences that ended a step ago; False where there are none."""
        released = [held for held in self._lingering if only is None or held[0] is only]
        for held in released:
            self.free += held[1]
            self._lingering.remove(held)
        return bool(released)

    # -- decoding and its ends -----------------------------------------------------------------

    def _start_decoding(self, seq: Seq) -> None:
        seq.base = self.tick
        if seq.limit is not None and seq.generated >= seq.limit:
            self._end(seq, seq.computed, seq.blocks - seq.shared)
            return
        if self.believes and seq.generated >= seq.expected:
            self._end(seq, seq.computed, seq.blocks - seq.shared)
            return
        self.decoding[seq.id] = seq
        self.crowd += 1
        self.context += seq.computed + 1
        phase = (seq.computed - self.tick) % self.settings.block_size
        self.phases[phase] = self.phases.get(phase, 0) + 1
        if seq.limit is not None:
            heappush(self.limits, (self.tick + seq.limit - seq.generated, seq.id))
        self.expect(seq, seq.expected)

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

    def _next_end(self) -> int:
        """The tick of the next end that counts, far off where there is none."""
        return min(self._head(self.limits, None), self._head(self.expectations, self.believes))

    def _head(self, heap: list[tuple[int, RequestId]], believed: bool | None) -> int:
        if believed is False:
            return self.tick + (1 << 60)
        while heap:
            tick, request = heap[0]
            seq = self.decoding.get(request)
            if seq is not None and tick == (seq.last_tick if believed is None else seq.due):
                return tick
            heappop(heap)
        return self.tick + (1 << 60)

    def _end_decodes(self) -> None:
        while self._next_end() <= self.tick:
            heap = self.limits
            if self._head(heap, None) > self.tick:
                heap = self.expectations
            seq = self.decoding[heappop(heap)[1]]
            length, generated = seq.computed + self.tick - seq.base, self.generated(seq)
            self._end(seq, length, self._leave_decoding(seq))
            if not self.believes:
                seq.generated = generated

    def _end(self, seq: Seq, length: Tokens, blocks: Blocks) -> None:
        self.unused += length % self.settings.block_size > 0
        if self.believes:
            self.ended.append((seq, length))
        if self.settings.async_scheduling:
            self._lingering.append((seq, blocks))
        else:
            self.free += blocks

    def _leave_decoding(self, seq: Seq) -> Blocks:
        """Take a sequence out of the sums; returns the blocks that it gives back."""
        del self.decoding[seq.id]
        self.crowd += 1
        length = seq.computed + self.tick - seq.base
        self.context -= length + 1
        phase = (seq.computed - seq.base) % self.settings.block_size
        self.phases[phase] -= 1
        if not self.phases[phase]:
            del self.phases[phase]
        return self._blocks(length) - seq.shared
