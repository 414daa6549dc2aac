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
from typing import NamedTuple

from leadsman.future import FutureCache
from leadsman.mirror import Mirror
from leadsman.replay import Replay
from leadsman.running import Passage, Running
from leadsman.schedulers import prompts_go_first
from leadsman.sequence import NOTHING, Seq
from leadsman.steptime import StepWeights
from leadsman.units import RequestId, Seconds, Tokens

SOON: Seconds = 1e-3
"""A step that should be over but was not seen to be ends so soon."""

MOST_EVENTS = 20_000
"""More than any queue has: a run that does not end is left to the replay."""


class Forecast(NamedTuple):
    """When a request will be scheduled first, have its first token, and what it will find."""

    scheduled_at: Seconds
    first_token_at: Seconds
    cached_tokens: Tokens


def is_first_come(replay: Replay) -> bool:
    """Say whether a replay's rules and state are those of an ordinary first-come queue."""
    settings = replay.settings
    return (
        not prompts_go_first(settings)
        and settings.policy == "fcfs"
        and replay.in_lockstep
        and settings.enable_chunked_prefill
        and settings.long_prefill_token_threshold is None
        and not settings.aligns_chunks
        and max(settings.max_num_seqs, replay.slots_used) < settings.max_num_batched_tokens
        and len(replay.prefilling) <= 1
    )


class FirstCome(Running):
    """One run from a mirror's state to a target's first token.

    `clock` stands at a step's start, `before` at that of the step before it. `sees_all`: everybody
    who waits is there.
    """

    __slots__ = (
        "_budget", "_is_whole", "_kept", "_mine", "_mirror", "_now", "_slots", "_soonest",
        "_target", "_weights", "before", "clock", "entered", "latest", "place", "prefill", "queue",
        "scheduled_at", "sees_all",
    )  # fmt: skip

    def __init__(
        self,
        mirror: Mirror,
        target: Seq,
        weights: StepWeights,
        now: Seconds,
        behind: Seq | None = None,
    ) -> None:
        super().__init__(mirror)
        self._mirror = mirror
        replay, settings = mirror.replay, mirror.settings
        self._budget, self._slots = settings.max_num_batched_tokens, settings.max_num_seqs
        self._is_whole = settings.reserve_full_isl
        self._kept = int(settings.watermark * (settings.num_blocks + 1))
        self._target, self._weights = target, weights
        self._now, self._soonest = now, now + SOON
        self.clock, self.before = replay.clock, replay.seen_until
        self.queue, self.place = [*replay.waiting, target], 0
        self._mine = len(replay.waiting)
        if behind is not None:
            self.queue.append(behind)
        self.latest = max([seq.visible_at for seq in self.queue])
        self.sees_all = False
        self.scheduled_at: Seconds | None = None
        self.prefill: Passage | None = None
        self.entered: dict[RequestId, Passage] = {}
        if replay.prefilling:
            seq = replay.prefilling[0]
            self.prefill = Passage(seq, seq.target, seq.computed, seq.blocks)
            self.entered[seq.id] = self.prefill

    def run(self) -> Forecast | None:
        """Run until the target has its first token. None: ask the replay."""
        cache = FutureCache(self._mirror, self)  # not kept: it points back here
        for _ in range(MOST_EVENTS):
            if not self._advance(self._steps(), cache):
                return None
            if self.scheduled_at is not None:
                mine = self.entered[self._target.id]
                if mine.computed == mine.target:
                    begun = max(self.scheduled_at, self._now)
                    return Forecast(begun, self.clock, mine.cached or 0)
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

    def _advance(self, steps: int, cache: FutureCache) -> bool:  # noqa: C901  # the hot loop: calls cost more
        """Run so many steps, of which the last may be unlike the others; False: ask the replay."""
        t0, a, b, t_d, e, s = self._weights
        decodes, prefill, size = self.decodes, self.prefill, self._size
        spare = self._budget - decodes
        is_idle = prefill is None and not decodes and self._wakes()
        context = self.context + 0.5 * decodes * (steps - 1)
        seconds = steps * (t0 + t_d * decodes + e * context)
        more = chunk = 0
        if decodes:
            rest = steps % size
            low = (1 - self.tick - rest) % size
            more = steps // size * decodes + sum(self.phases[low : low + rest])
        finals: list[Passage] = []
        if prefill is not None:
            n = min(steps * spare, prefill.target - prefill.computed)
            spare, chunk = steps * spare - n, n - (steps - 1) * spare
            seconds += n * (a + b * (prefill.computed + 0.5 * n))
            prefill.computed += n
            blocks = -(-prefill.computed // size)
            more += blocks - prefill.blocks
            prefill.blocks = blocks
            if prefill.computed == prefill.target:
                finals.append(prefill)
                self.prefill = None
        if more > self.free:
            return False
        self.free -= more
        self.unused -= more
        if self.unused < 0:
            self.lost -= self.unused
            self.unused = 0
        if self.holders and steps > 1:
            self._give_back()
        began = None if self.sees_all else self._began(steps, seconds, prefill, chunk)
        if spare and not self.is_refused and (self.sees_all or steps == 1):
            place, running = self.place, seconds
            seconds += self._admit(spare, finals, cache)
            if self.place > self._mine and self.scheduled_at is None:
                self.scheduled_at = self._began(steps, running, prefill, chunk)
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

    def _began(
        self, steps: int, seconds: Seconds, prefill: Passage | None, chunk: Tokens
    ) -> Seconds:
        """Give the moment at which the last of so many steps began, with such a chunk in it."""
        if steps == 1:
            return self.clock
        t0, a, b, t_d, e, _ = self._weights
        last = t0 + t_d * self.decodes + e * (self.context + self.decodes * (steps - 1))
        if prefill is not None:
            last += chunk * (a + b * (prefill.computed - 0.5 * chunk))
        return self.clock + seconds - last

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
        if self.holders and (self.sees_all or head.visible_at <= self._visible()):
            return False
        self.clock, self.before = max(self.clock, head.visible_at), None
        self._give_back()
        return True

    def _visible(self) -> Seconds:
        """Give the time until which an arrival is seen by the next step."""
        if self._is_async and self.before is not None:
            return self.before
        return self.clock

    def _admit(self, spare: Tokens, finals: list[Passage], cache: FutureCache) -> Seconds:
        """Admit from the head of the queue; returns what the chunks add to the step."""
        _, a, b, _, _, _ = self._weights
        size, is_whole, queue, place = self._size, self._is_whole, self.queue, self.place
        slots = self._slots - self.decodes - self.holders - len(finals)
        visible, seconds = math.inf if self.sees_all else self._visible(), 0.0
        while spare > 0 and place < len(queue):
            seq = queue[place]
            if seq.visible_at > visible:
                break
            hit, pinned = cache.lookup(seq) if slots > 0 else NOTHING
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
                self.lost -= self.unused
                self.unused = 0
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
