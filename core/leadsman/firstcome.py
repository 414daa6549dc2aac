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

import math
from heapq import heappop, heappush
from typing import NamedTuple

from leadsman.future import FutureCache
from leadsman.mirror import Mirror
from leadsman.replay import NOTHING, Replay, Seq
from leadsman.steptime import StepWeights
from leadsman.units import BlockKey, Blocks, RequestId, Seconds, Tokens

SOON: Seconds = 1e-3
"""A step that should be over but was not seen to be ends so soon."""

MOST_EVENTS = 20_000
"""More than any queue has: a run that does not end is left to the replay."""

NEVER = 1 << 60


class Forecast(NamedTuple):
    """When a request will be scheduled first, have its first token, and what it will find."""

    scheduled_at: Seconds
    first_token_at: Seconds
    cached_tokens: Tokens


class Passage:
    """One request on its way through the engine: a `Seq`'s progress, without a copy of it."""

    __slots__ = ("base", "blocks", "cached", "computed", "seq", "shared", "target")

    def __init__(self, seq: Seq, target: Tokens, computed: Tokens, blocks: Blocks) -> None:
        self.seq, self.target = seq, target
        self.computed, self.blocks = computed, blocks
        self.cached, self.shared, self.base = seq.cached, seq.shared, 0

    @property
    def id(self) -> RequestId:
        """Whose passage this is."""
        return self.seq.id

    @property
    def keys(self) -> list[BlockKey]:
        """Name the blocks of its prompt."""
        return self.seq.keys


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
        "_budget", "_cache", "_decoding", "_ends", "_expectations", "_gone", "_is_whole", "_kept",
        "_limits", "_reached", "_settings", "_size", "_slots", "_soonest", "_target", "_weights",
        "before", "clock", "context", "decodes", "ended", "entered", "free", "held", "holders",
        "is_refused", "latest", "lost", "next_end", "now", "phases", "place", "prefill", "queue",
        "scheduled_at", "sees_all", "tick", "unused",
    )  # fmt: skip

    def __init__(self, mirror: Mirror, target: Seq, weights: StepWeights, now: Seconds) -> None:
        replay = mirror.replay
        self._settings = settings = mirror.settings
        self._budget, self._size = settings.max_num_batched_tokens, settings.block_size
        self._slots, self._is_whole = settings.max_num_seqs, settings.reserve_full_isl
        self._kept = int(settings.watermark * (settings.num_blocks + 1))
        self._target, self._weights = target, weights
        self.now, self._soonest = now, now + SOON
        self.clock, self.tick = replay.clock, replay.tick
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
        self._reached = 0
        self.is_refused = self.sees_all = False
        self._cache = FutureCache(mirror, self)
        self._take_over_decodes(replay)

    def run(self) -> Forecast | None:
        """Run until the target has its first token. None: ask the replay."""
        for _ in range(MOST_EVENTS):
            if not self._advance(self._steps()):
                return None
            if self.prefill is None and self.scheduled_at is not None:
                cached = self.entered[self._target.id].cached or 0
                return Forecast(max(self.scheduled_at, self.now), self.clock, cached)
        return None

    # -- how far it is to the next event ---------------------------------------------------------

    def _steps(self) -> int:
        """Count the next steps of which all but the last are alike."""
        prefill, to_end = self.prefill, self.next_end - self.tick
        if self.clock < self._soonest:
            return 1
        if prefill is not None:
            missing, left = prefill.target - prefill.computed, self._budget - self.decodes
            steps = -(-missing // left) if self.sees_all else (missing - 1) // left
        elif self.is_refused:
            steps = 1 if self.holders else to_end
        else:
            steps = 1 if self.sees_all or not self.decodes else self._steps_unseen()
        return max(1, min(steps, to_end))

    def _steps_unseen(self) -> int:
        """Count steps of decoding, too few rather than too many, that do not see the head yet."""
        weights, decodes = self._weights, self.decodes
        step = weights.t0 + weights.t_d * decodes + weights.e * self.context
        steps = int((self.queue[self.place].visible_at - self.clock) / (1.05 * step + 1e-9)) - 1
        if growth := weights.e * decodes:
            steps = min(steps, int(0.1 * step / growth))
        return steps

    # -- to the next event -----------------------------------------------------------------------

    def _advance(self, steps: int) -> bool:  # noqa: C901  # the hot loop: calls cost more
        """Run so many steps, of which the last may be unlike the others; False: ask the replay."""
        t0, a, b, t_d, e, s = self._weights
        decodes, prefill, spare = self.decodes, self.prefill, self._budget - self.decodes
        is_idle = prefill is None and not decodes and self._wakes()
        context = self.context + 0.5 * decodes * (steps - 1)
        seconds = steps * (t0 + t_d * decodes + e * context)
        more = self._growth(steps) if decodes else 0
        chunk = 0
        finals: list[Passage] = []
        if prefill is not None:
            n = min(steps * spare, prefill.target - prefill.computed)
            spare, chunk = steps * spare - n, n - (steps - 1) * spare
            seconds += n * (a + b * (prefill.computed + 0.5 * n))
            more += self._extend(prefill, n, finals)
        if more > self.free:
            return False
        self.free -= more
        self.unused -= more
        if self.unused < 0:
            self._lose()
        if self.holders and steps > 1:
            self._give_back()
        began = None if self.sees_all else self._began(steps, seconds, chunk)
        if spare and not self.is_refused and (self.sees_all or steps == 1):
            place, running = self.place, seconds
            seconds += self._admit(spare, finals)
            if self.place == len(self.queue) and self.scheduled_at is None:
                self.scheduled_at = self._began(steps, running, chunk)
            if is_idle and place == self.place:
                return False
        if finals:
            seconds += s * len(finals)
        elif not (decodes or self.prefill or prefill):
            seconds = 0.0
        self._end_steps(steps, seconds, began)
        for passage in finals:
            self._begin_decoding(passage)
        return True

    def _growth(self, steps: int) -> Blocks:
        """Count the blocks that the decoding sequences need for their next tokens."""
        rest = steps % self._size
        low = (1 - self.tick - rest) % self._size
        return steps // self._size * self.decodes + sum(self.phases[low : low + rest])

    def _extend(self, prefill: Passage, n: Tokens, finals: list[Passage]) -> Blocks:
        """Compute so many more tokens of the prompt; returns the blocks that they need."""
        prefill.computed = self._reached = prefill.computed + n
        before, prefill.blocks = prefill.blocks, -(-prefill.computed // self._size)
        if prefill.computed == prefill.target:
            finals.append(prefill)
            self.prefill = None
        return prefill.blocks - before

    def _began(self, steps: int, seconds: Seconds, chunk: Tokens) -> Seconds:
        """Give the moment at which the last of so many steps began, with such a chunk in it."""
        if steps == 1:
            return self.clock
        t0, a, b, t_d, e, _ = self._weights
        last = t0 + t_d * self.decodes + e * (self.context + self.decodes * (steps - 1))
        return self.clock + seconds - last - chunk * (a + b * (self._reached - 0.5 * chunk))

    def _end_steps(self, steps: int, seconds: Seconds, began: Seconds | None) -> None:
        if began is not None:
            self.before, self.sees_all = began, self.latest <= began
        self.clock = max(self.clock + seconds, self._soonest)
        self.tick += steps
        self.context += steps * self.decodes
        if self.holders:
            self._give_back()
        if self.next_end <= self.tick:
            self._end_decodes()

    def _wakes(self) -> bool:
        """Nothing runs: wait for the head of the queue, unless it only waits for who just ended."""
        head = self.queue[self.place]
        if self.holders and head.visible_at <= self._visible():
            return False
        self.clock, self.before = max(self.clock, head.visible_at), None
        self._give_back()
        return True

    def _visible(self) -> Seconds:
        """Give the time until which an arrival is seen by the next step."""
        if self.sees_all:
            return math.inf
        if self._settings.async_scheduling and self.before is not None:
            return self.before
        return self.clock

    def _admit(self, spare: Tokens, finals: list[Passage]) -> Seconds:
        """Admit from the head of the queue; returns what the chunks add to the step."""
        _, a, b, _, _, _ = self._weights
        size, is_whole, queue, place = self._size, self._is_whole, self.queue, self.place
        slots = self._slots - self.decodes - self.holders - len(finals)
        visible, seconds = self._visible(), 0.0
        while spare > 0 and place < len(queue):
            seq = queue[place]
            if seq.visible_at > visible:
                break
            hit, pinned = self._cache.lookup(seq) if slots > 0 else NOTHING
            target = seq.prompt + seq.generated
            n = min(target - hit, spare)
            computed = hit + n
            reach = -(-(target if is_whole else computed) // size) - pinned
            if slots <= 0 or reach + (slots < self._slots and self._kept) > self.free:
                self.is_refused = is_whole or not hit
                break
            seconds += n * (a + b * (hit + 0.5 * n))
            passage = Passage(seq, target, computed, -(-computed // size))
            passage.shared = pinned
            if passage.cached is None:
                passage.cached = hit
            self.free -= passage.blocks - pinned
            self.unused -= passage.blocks - hit // size
            if self.unused < 0:
                self._lose()
            self.entered[seq.id] = passage
            place += 1
            spare -= n
            slots -= 1
            if computed == target:
                finals.append(passage)
            else:
                self.prefill = passage
        self.place = place
        return seconds

    # -- blocks ----------------------------------------------------------------------------------

    def _lose(self) -> None:
        """Blocks were taken that hold something: what they held is lost."""
        if self.unused < 0:
            self.lost -= self.unused
            self.unused = 0

    def _give_back(self) -> None:
        """Give back what those held who had ended a step ago."""
        if self.holders:
            self.free += self.held
            self.held = self.holders = 0
            self.is_refused = False

    # -- decoding and its ends -------------------------------------------------------------------

    def _take_over_decodes(self, replay: Replay) -> None:
        size = self._size
        self.decodes, self.context = len(replay.decoding), replay.context
        self.phases = [0] * (2 * size)
        for phase, count in replay.phases.items():
            self.phases[phase] = self.phases[phase + size] = count
        self._decoding, self._gone = replay.decoding, set[RequestId]()
        self._limits, self._expectations = replay.limits.copy(), replay.expectations.copy()
        self._ends: list[tuple[int, bool, RequestId, Passage | Seq]] = []
        self.next_end = NEVER
        self._await_earlier(self.tick + 1)

    def _await_earlier(self, soonest: int) -> None:
        """Put the next to end of those that decoded from the start among the ends."""
        limit = self._head(self._limits, is_limit=True)
        due = max(soonest, self._head(self._expectations, is_limit=False))
        heap = self._limits if limit <= due else self._expectations
        if heap:
            request = heappop(heap)[1]
            self._gone.add(request)
            seq = self._decoding[request]
            heappush(self._ends, (min(limit, due), limit > due, request, seq))
            self.next_end = self._ends[0][0]

    def _head(self, heap: list[tuple[int, RequestId]], *, is_limit: bool) -> int:
        while heap:
            tick, request = heap[0]
            seq = None if request in self._gone else self._decoding.get(request)
            if seq is not None and tick == (seq.last_tick if is_limit else seq.due):
                return tick
            heappop(heap)
        return NEVER

    def _begin_decoding(self, passage: Passage) -> None:
        """Its prompt is done: it decodes up to the end that is expected, or is over at once."""
        seq, tick, size = passage.seq, self.tick, self._size
        passage.base = tick
        left = seq.expected - seq.generated - 1
        certain = left if seq.limit is None else seq.limit - seq.generated - 1
        if left <= 0 or certain <= 0:
            self._leave(passage, passage.computed, passage.blocks - passage.shared)
            return
        self.decodes += 1
        self.context += passage.computed + 1
        phase = (passage.computed - tick) % size
        self.phases[phase] += 1
        self.phases[phase + size] += 1
        is_expected = seq.limit is None or left < certain
        end = tick + (left if is_expected else certain)
        heappush(self._ends, (end, is_expected, seq.id, passage))
        self.next_end = min(self.next_end, end)

    def _end_decodes(self) -> None:
        size, tick, ends = self._size, self.tick, self._ends
        while ends and ends[0][0] <= tick:
            seq = heappop(ends)[3]
            length = seq.computed + tick - seq.base
            self.decodes -= 1
            self.context -= length + 1
            phase = (seq.computed - seq.base) % size
            self.phases[phase] -= 1
            self.phases[phase + size] -= 1
            self._leave(seq, length, -(-length // size) - seq.shared)
            if isinstance(seq, Seq):
                self._await_earlier(tick)
        self.next_end = ends[0][0] if ends else NEVER

    def _leave(self, seq: Passage | Seq, length: Tokens, blocks: Blocks) -> None:
        self.unused += length % self._size > 0
        self.ended.append((seq, length))
        if self._settings.async_scheduling:
            self.held += blocks
            self.holders += 1
        else:
            self.free += blocks
            self.is_refused = False
