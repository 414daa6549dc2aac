"""Runs a fork of one engine's mirror into the future, until a request has its first token.

Prefill ahead, slots, blocks and the budget are the replay's; how long each step lasts is the step
model's; when the others end is what lengths are expected; what is cached by then is asked at the
moment of simulated admission, behind whatever the requests ahead have pushed out by then.
"""

from typing import NamedTuple

from leadsman.mirror import Mirror
from leadsman.replay import Hit, Replay, Seq, Step
from leadsman.steptime import StepWeights
from leadsman.units import Blocks, RequestId, Seconds, Tokens

SOON: Seconds = 1e-3
"""A step that should be over but was not seen to be ends so soon."""

MOST_STEPS = 20_000
"""A replay that needs more is of a request that the engine can never admit."""


class Forecast(NamedTuple):
    """When a request will be scheduled first, have its first token, and what it will find."""

    scheduled_at: Seconds
    first_token_at: Seconds
    cached_tokens: Tokens


def forecast(mirror: Mirror, target: Seq, weights: StepWeights, now: Seconds) -> Forecast | None:
    """Predict `target`, added behind all that is queued now. None if it never gets in.

    Reads the mirror only.
    """
    replay = mirror.replay.fork()
    lookup = _FutureCache(mirror, replay).lookup
    replay.add(target)
    scheduled_at, found = None, target
    for _ in range(MOST_STEPS):
        is_idle = not replay.has_work
        if is_idle:
            if not replay.waiting:
                return None
            replay.wake()
        started = replay.clock
        step = replay.step(lookup)
        if is_idle and not step.admitted:
            return None
        replay.ran(step, max(started + weights.seconds(step.features), now + SOON))
        for seq in step.admitted:
            if seq.id == target.id and scheduled_at is None:
                scheduled_at, found = started, seq
        if any(seq.id == target.id for seq in step.finals):
            assert scheduled_at is not None
            return Forecast(max(scheduled_at, now), replay.clock, found.cached or 0)
        _skip(replay, step, weights)
    return None


def _skip(replay: Replay, step: Step, weights: StepWeights) -> None:
    """Repeat the step as long as nothing changes and nobody who arrives could be admitted."""
    longest = 1 << 40
    arrival = replay.next_arrival
    if arrival is not None:
        until_visible = arrival - replay.clock
        longest = int(until_visible / (1.05 * weights.seconds(step.features) + 1e-9)) - 1
    more = replay.skip(step, longest)
    if more is not None:
        replay.ran(more, replay.clock + weights.seconds(more.features))


class _FutureCache:
    """What will be cached while a fork runs on: its requests store, touch and push out blocks.

    Blocks are pushed out from the head of today's free queue first, then from what requests gave
    back that ended in the fork, in the order of their ends, each from its deepest block on.
    """

    def __init__(self, mirror: Mirror, replay: Replay) -> None:
        self._mirror, self._replay = mirror, replay
        replay.free = mirror.free_blocks() - replay.lingering
        replay.unused, replay.lost = max(0, replay.free - len(mirror.pool.free)), 0
        self._touched: list[int] = []
        self._touched_by = 0

    def lookup(self, seq: Seq) -> Hit:
        """Look up what `seq` finds cached if it is admitted in the fork's next step."""
        mirror, pool = self._mirror, self._mirror.pool
        most = mirror.readable(seq)
        if not most:
            return Hit(0, 0)
        pinned = pool.pinned(seq.keys, most)
        lost = self._replay.lost
        if lost > 0:
            self._touch()
        alive = self._alive(seq, most, lost - len(pool.free) + len(self._touched))
        depth = pool.depth(seq.keys, most, pool.cutoff(lost, self._touched))
        depth = max(depth, alive) if alive >= pinned else min(depth, alive)
        return Hit(depth * mirror.settings.block_size, min(max(pinned, alive), depth))

    def _touch(self) -> None:
        free, size = self._mirror.pool.free, self._mirror.settings.block_size
        entered = list(self._replay.entered.values())
        for seq in entered[self._touched_by :]:
            hit = (seq.cached or 0) // size
            self._touched += [free[key] for key in seq.keys[seq.shared : hit] if key in free]
        self._touched_by = len(entered)
        self._touched.sort()

    def _alive(self, seq: Seq, most: Blocks, eaten: Blocks) -> Blocks:
        """Count the leading blocks that those in flight before `seq` hold, or gave back last."""
        replay, size = self._replay, self._mirror.settings.block_size
        left = self._left(eaten) if eaten > 0 and seq.kin else {}
        alive = 0
        for request, common in seq.kin:
            if common > alive:
                other = replay.entered.get(request) or self._began_before(request)
                if other is not None:
                    stored = min(other.computed // size, left.get(request, 1 << 30))
                    alive = max(alive, min(common, stored, most))
        return alive

    def _began_before(self, request: RequestId) -> Seq | None:
        flight = self._mirror.flights.get(request)
        return flight.seq if flight is not None and flight.seq.computed else None

    def _left(self, eaten: Blocks) -> dict[RequestId, Blocks]:
        """Count what is left of each ended request once `eaten` of the blocks given back went."""
        size = self._mirror.settings.block_size
        left: dict[RequestId, Blocks] = {}
        for seq, length in self._replay.ended:
            left.setdefault(seq.id, max(0, length // size - max(0, eaten)))
            eaten -= length // size - seq.shared
        return left
