"""Runs a fork of one engine's mirror into the future, until a request has its first token.

Prefill ahead, slots, blocks and the budget are the replay's; how long each step lasts is the step
model's; when the others end is what lengths are expected; what is cached by then is asked at the
moment of simulated admission, behind whatever the requests ahead have pushed out by then.
"""

from typing import NamedTuple

from leadsman.mirror import Mirror
from leadsman.replay import Hit, Replay, Seq, Step
from leadsman.steptime import StepWeights
from leadsman.units import Seconds, Tokens

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
    unused = replay.free - len(mirror.pool.free)
    taken = replay.taken

    def lookup(seq: Seq) -> Hit:
        cutoff = mirror.pool.cutoff(replay.taken - taken - unused)
        return mirror.find(seq, cutoff, lambda request: _seq_of(replay, request))

    replay.add(target)
    scheduled_at, found = None, target
    for _ in range(MOST_STEPS):
        if not replay.has_work:
            if not replay.waiting:
                return None
            replay.wake(max(replay.clock, replay.waiting[0].visible_at))
        started = replay.clock
        step = replay.step(lookup)
        if not step.features.steps and not step.admitted and not replay.has_work:
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
    if replay.waiting:
        until_visible = replay.waiting[0].visible_at - replay.clock
        if until_visible > 0:
            longest = int(until_visible / (1.05 * weights.seconds(step.features) + 1e-9)) - 1
        elif step.features.prefill == 0 and replay.slots_used < replay.settings.max_num_seqs:
            longest = 0
    more = replay.skip(step, longest)
    if more is not None:
        replay.ran(more, replay.clock + weights.seconds(more.features))


def _seq_of(replay: Replay, request: str) -> Seq | None:
    return replay.entered.get(request) or replay.decoding.get(request)  # type: ignore[call-overload]
