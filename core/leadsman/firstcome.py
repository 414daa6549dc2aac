"""Serves an ordinary first-come queue in closed form, from event to event.

An event is a step in which a prompt ends or begins, or the last one of a decoding sequence. From
one to the next nothing but sums change: the running prompt takes what the decodes leave of the
budget, so n tokens of it, on c of context, cost a·n + b·n·(c + n/2) however they are cut, and the
steps' decodes and contexts are arithmetic series. So a queued prompt costs two or three rounds of
this loop, whatever its length, and no sequence is copied.

Exactly what `Replay` does step by step, under its rules, or None: where anything happens that only
it knows (a preemption, a request that never fits) its answer counts. Nothing is changed but what is
made here.
"""

from heapq import heappop, heappush
from typing import NamedTuple

from leadsman.future import FutureCache
from leadsman.mirror import Mirror
from leadsman.replay import Hit, Replay, Seq
from leadsman.steptime import StepWeights
from leadsman.units import BlockKey, Blocks, RequestId, Seconds, Tokens

SOON: Seconds = 1e-3
"""A step that should be over but was not seen to be ends so soon."""

MOST_EVENTS = 20_000
"""More than any queue has: a run that does not end is left to the replay."""

NEVER = 1 << 60

NOTHING = Hit(0, 0)


class Forecast(NamedTuple):
    """When a request will be scheduled first, have its first token, and what it will find."""

    scheduled_at: Seconds
    first_token_at: Seconds
    cached_tokens: Tokens


class Passage:
    """One request on its way through the engine: a `Seq`'s progress, without a copy of it."""

    __slots__ = (
        "base", "blocks", "cached", "computed", "end", "id", "keys", "seq", "shared", "target",
    )  # fmt: skip

    def __init__(self, seq: Seq, target: Tokens, computed: Tokens, blocks: Blocks) -> None:
        self.seq, self.target = seq, target
        self.id: RequestId = seq.id
        self.keys: list[BlockKey] = seq.keys
        self.computed, self.blocks = computed, blocks
        self.cached, self.shared = seq.cached, seq.shared
        self.base = self.end = 0


def is_first_come(replay: Replay) -> bool:
    """Say whether a replay's rules and state are those of an ordinary first-come queue."""
    settings = replay.settings
    return (
        settings.policy == "fcfs"
        and settings.enable_chunked_prefill
        and settings.long_prefill_token_threshold is None
        and max(settings.max_num_seqs, replay.slots_used) < settings.max_num_batched_tokens
        and len(replay.prefilling) <= 1
    )


class FirstCome:
    """One run from a mirror's state to a target's first token.

    `tick` and `clock` stand at a step's start, `before` at that of the step before it. `held`
    blocks of `holders` sequences that ended in the last step are given back in this one.
    `is_refused`: the head of the queue was asked in and did not fit, and nothing was given back
    since. `sees_all`: everybody who waits is there.
    """

    __slots__ = (
        "_budget", "_cache", "_decoding", "_expectations", "_gone", "_limits", "_settings",
        "_size", "_target", "_weights", "before", "clock", "context", "decodes", "ended", "entered",
        "free", "held", "holders", "is_idle", "is_refused", "latest", "lost", "next_end", "now",
        "passing", "phases", "place", "prefill", "queue", "scheduled_at", "sees_all", "tick",
        "unused",
    )  # fmt: skip

    def __init__(self, mirror: Mirror, target: Seq, weights: StepWeights, now: Seconds) -> None:
        replay = mirror.replay
        self._settings, self._target, self._weights = mirror.settings, target, weights
        self._budget, self._size = (
            mirror.settings.max_num_batched_tokens,
            mirror.settings.block_size,
        )
        self.now, self.clock, self.tick = now, replay.clock, replay.tick
        self.before = replay.seen_until
        self.queue, self.place = [*replay.waiting, target], 0
        self.latest = max([seq.visible_at for seq in self.queue])
        self.held, self.holders = replay.lingering, replay.lingerers
        self.free, self.lost = mirror.free_blocks() - self.held, 0
        self.unused = max(0, self.free - len(mirror.pool.free))
        self.scheduled_at: Seconds | None = None
        self.prefill: Passage | None = None
        self.entered: dict[RequestId, Passage] = {}
        self.ended: list[tuple[Passage | Seq, Tokens]] = []
        if replay.prefilling:
            seq = replay.prefilling[0]
            self.prefill = Passage(seq, seq.target, seq.computed, seq.blocks)
            self.entered[seq.id] = self.prefill
        self.is_idle = self.is_refused = self.sees_all = False
        self._cache = FutureCache(mirror, self)
        self._take_over_decodes(replay)

    def run(self) -> Forecast | None:
        """Run until the target has its first token. None: ask the replay."""
        last = len(self.queue)
        for _ in range(MOST_EVENTS):
            if not self._advance(self._steps()):
                return None
            if self.place == last and self.prefill is None:
                assert self.scheduled_at is not None
                cached = self.entered[self._target.id].cached or 0
                return Forecast(max(self.scheduled_at, self.now), self.clock, cached)
        return None

    # -- how far to the next event ---------------------------------------------------------------

    def _steps(self) -> int:
        """Count the steps up to the next event, its own among them."""
        to_end, prefill = max(1, self.next_end - self.tick), self.prefill
        self.is_idle = False
        if prefill is not None:
            left = self._budget - self.decodes
            steps = min(to_end, -((prefill.computed - prefill.target) // left))
        elif not self.decodes:
            self._wake()
            return 1
        elif self.is_refused:
            steps = min(to_end, 2) if self.holders else to_end
        else:
            steps = 1 if self.sees_all else min(to_end, self._steps_until_visible())
        return steps if self.clock >= self.now + SOON else 1

    def _wake(self) -> None:
        """Nothing runs: wait for the head of the queue, unless it only waits for who just ended."""
        head = self.queue[self.place]
        if not (self.holders and self._sees(head, 1, None)):
            self.is_idle = True
            self.clock, self.before = max(self.clock, head.visible_at), None
            self._give_back()

    def _steps_until_visible(self) -> int:
        """Count steps of decoding, too few rather than too many, until the head is there."""
        weights, decodes = self._weights, self.decodes
        step = weights.t0 + weights.t_d * decodes + weights.e * self.context
        steps = int((self.queue[self.place].visible_at - self.clock) / (1.05 * step + 1e-9))
        if growth := weights.e * decodes:
            steps = min(steps, 1 + int(0.1 * step / growth))
        return max(1, steps)

    def _stretch(self, steps: int, computed: Tokens | None) -> Seconds:
        """Give the length of whole steps from now on, with a prompt's chunks from `computed` on."""
        t0, a, b, t_d, e, _ = self._weights
        decodes = self.decodes
        seconds = steps * (t0 + t_d * decodes + e * (self.context + 0.5 * decodes * (steps - 1)))
        if computed is not None:
            n = steps * (self._budget - decodes)
            seconds += n * (a + b * (computed + 0.5 * n))
        return seconds

    def _sees(self, seq: Seq, steps: int, began: Tokens | None) -> bool:
        """Say whether an arrival is seen by the last of so many steps."""
        if self.sees_all:
            return True
        visible = self.clock
        if not self._settings.async_scheduling:
            visible += self._stretch(steps - 1, began)
        elif steps > 1:
            visible += self._stretch(steps - 2, began)
        elif self.before is not None:
            visible = self.before
        return seq.visible_at <= visible

    # -- to the next event -----------------------------------------------------------------------

    def _advance(self, steps: int) -> bool:
        """Run so many steps, of which only the last is unlike the others; False: ask the replay."""
        t0, a, b, t_d, e, s = self._weights
        decodes, prefill, spare = self.decodes, self.prefill, self._budget - self.decodes
        seconds = steps * (t0 + t_d * decodes + e * (self.context + 0.5 * decodes * (steps - 1)))
        more = self._growth(steps) if decodes else 0
        finals: list[Passage] = []
        began = None
        if prefill is not None:
            began = prefill.computed
            n = min(steps * spare, prefill.target - began)
            spare = steps * spare - n
            seconds += n * (a + b * (began + 0.5 * n))
            prefill.computed = began + n
            blocks = -(-prefill.computed // self._size)
            more += blocks - prefill.blocks
            prefill.blocks = blocks
            if prefill.computed == prefill.target:
                finals.append(prefill)
                self.prefill = None
        if more > self.free:
            return False
        self._take(more)
        if steps > 1:
            self._give_back()
        if spare:
            place = self.place
            seconds += self._admit(spare, steps, began, finals)
            if began is None and not decodes:
                seconds -= t0 if place == self.place else 0.0
                if self.is_idle and place == self.place:
                    return False
        self._end_step(steps, began, seconds + s * len(finals))
        for passage in finals:
            self._begin_decoding(passage)
        return True

    def _end_step(self, steps: int, began: Tokens | None, seconds: Seconds) -> None:
        clock = self.clock
        if self.sees_all or self.latest <= clock:
            self.sees_all = True
        else:
            self.before = clock + self._stretch(steps - 1, began)
        self.clock = max(clock + seconds, self.now + SOON)
        self.tick += steps
        self.context += steps * self.decodes
        self._give_back()
        if self.next_end <= self.tick:
            self._end_decodes()

    def _admit(
        self, spare: Tokens, steps: int, began: Tokens | None, finals: list[Passage]
    ) -> Seconds:
        """Admit into the last step from the head of the queue; returns what its chunks add."""
        settings, size, queue = self._settings, self._size, self.queue
        _, a, b, _, _, _ = self._weights
        slots = settings.max_num_seqs - self.decodes - self.holders - (began is not None)
        seconds, self.is_refused = 0.0, False
        while spare > 0 and self.place < len(queue):
            seq = queue[self.place]
            if not self._sees(seq, steps, began):
                break
            hit = self._cache.lookup(seq) if slots > 0 else NOTHING
            target = seq.prompt + seq.generated
            n = min(target - hit.tokens, spare)
            reach = target if settings.reserve_full_isl else hit.tokens + n
            if slots <= 0 or -(-reach // size) - hit.pinned + self._kept_free(slots) > self.free:
                self.is_refused = settings.reserve_full_isl or not hit.tokens
                break
            passage = self._enter(seq, target, hit, n)
            seconds += n * (a + b * (hit.tokens + 0.5 * n))
            spare -= n
            slots -= 1
            if seq is self._target:
                self.scheduled_at = self.clock + self._stretch(steps - 1, began)
            if passage.computed == target:
                finals.append(passage)
            else:
                self.prefill = passage
        return seconds

    def _kept_free(self, slots: int) -> Blocks:
        settings = self._settings
        if not settings.watermark or slots == settings.max_num_seqs:
            return 0
        return int(settings.watermark * (settings.num_blocks + 1))

    def _enter(self, seq: Seq, target: Tokens, hit: Hit, n: Tokens) -> Passage:
        computed, found = hit.tokens + n, hit.tokens // self._size
        passage = Passage(seq, target, computed, -(-computed // self._size))
        passage.shared = hit.pinned
        if passage.cached is None:
            passage.cached = hit.tokens
        self.free -= found - hit.pinned
        self._take(passage.blocks - found)
        self.entered[seq.id] = passage
        self.place += 1
        return passage

    # -- blocks ----------------------------------------------------------------------------------

    def _take(self, blocks: Blocks) -> None:
        self.free -= blocks
        self.unused -= blocks
        if self.unused < 0:
            self.lost -= self.unused
            self.unused = 0

    def _give_back(self) -> None:
        """Give back what those held who had ended a step ago."""
        if self.holders:
            self.free += self.held
            self.held = self.holders = 0
            self.is_refused = False

    def _growth(self, steps: int) -> Blocks:
        """Blocks that the decoding sequences need for their next tokens."""
        whole, rest = divmod(steps, self._size)
        low = -(self.tick + rest - 1) % self._size
        return whole * self.decodes + sum(self.phases[low : low + rest])

    # -- decoding and its ends -------------------------------------------------------------------

    def _take_over_decodes(self, replay: Replay) -> None:
        size = self._size
        self.decodes, self.context = len(replay.decoding), replay.context
        self.phases = [0] * (2 * size)
        for phase, count in replay.phases.items():
            self.phases[phase] = self.phases[phase + size] = count
        self._decoding, self._gone = replay.decoding, set[RequestId]()
        self._limits, self._expectations = replay.limits.copy(), replay.expectations.copy()
        self.passing: dict[RequestId, Passage] = {}
        self.next_end = self._find_next_end()

    def _begin_decoding(self, passage: Passage) -> None:
        """Its prompt is done: it decodes up to the end that is expected, or is over at once."""
        seq, tick, size = passage.seq, self.tick, self._size
        passage.base = tick
        left = max(seq.expected - seq.generated - 1, 0)
        certain = NEVER if seq.limit is None else max(seq.limit - seq.generated - 1, 0)
        if not min(left, certain):
            self._leave(passage, passage.computed, passage.blocks - passage.shared)
            return
        self.decodes += 1
        self.context += passage.computed + 1
        phase = (passage.computed - tick) % size
        self.phases[phase] += 1
        self.phases[phase + size] += 1
        passage.end = tick + min(left, certain)
        self.passing[passage.id] = passage
        heap = self._limits if certain <= left else self._expectations
        heappush(heap, (passage.end, passage.id))
        self.next_end = min(self.next_end, passage.end)

    def _end_decodes(self) -> None:
        size, tick = self._size, self.tick
        while self.next_end <= tick:
            is_certain = self._head(self._limits, is_limit=True) <= tick
            request = heappop(self._limits if is_certain else self._expectations)[1]
            seq: Passage | Seq | None = self.passing.pop(request, None)
            if seq is None:
                seq = self._decoding[request]
                self._gone.add(request)
            length = seq.computed + tick - seq.base
            self.decodes -= 1
            self.context -= length + 1
            phase = (seq.computed - seq.base) % size
            self.phases[phase] -= 1
            self.phases[phase + size] -= 1
            self._leave(seq, length, -(-length // size) - seq.shared)
            self.next_end = self._find_next_end()

    def _leave(self, seq: Passage | Seq, length: Tokens, blocks: Blocks) -> None:
        self.unused += length % self._size > 0
        self.ended.append((seq, length))
        if self._settings.async_scheduling:
            self.held += blocks
            self.holders += 1
        else:
            self.free += blocks
            self.is_refused = False

    def _find_next_end(self) -> int:
        """Find the tick of the next end, far off where there is none."""
        limit = self._head(self._limits, is_limit=True)
        return min(limit, self._head(self._expectations, is_limit=False))

    def _head(self, heap: list[tuple[int, RequestId]], *, is_limit: bool) -> int:
        while heap:
            tick, request = heap[0]
            passage = self.passing.get(request)
            seq = None if request in self._gone else self._decoding.get(request)
            if passage is not None:
                end: int | None = passage.end
            elif seq is not None:
                end = seq.last_tick if is_limit else seq.due
            else:
                end = None
            if end == tick:
                return tick
            heappop(heap)
        return NEVER
