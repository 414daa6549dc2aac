"""Runs one engine's mirror into the future, until a request has its first token.

Prefill ahead, slots, blocks and the budget are the replay's; how long each step lasts is the step
model's; when the others end is what lengths are expected; what is cached by then is asked at the
moment of simulated admission, behind whatever the requests ahead have pushed out by then. An
ordinary queue is run from event to event in closed form (`firstcome`); where its rules do not
hold, and they say so themselves, a fork of the replay is stepped; so it is where other ranks step
with it (`together`).
"""

from leadsman.firstcome import SOON, FirstCome, Forecast, is_first_come
from leadsman.mirror import Mirror
from leadsman.replay import Replay
from leadsman.sequence import Seq, Step
from leadsman.steptime import StepWeights
from leadsman.together import Beside, into_the_future
from leadsman.units import Seconds

MOST_STEPS = 20_000
"""A replay that needs more is of a request that the engine can never admit."""


def forecast(
    mirror: Mirror,
    target: Seq,
    weights: StepWeights,
    now: Seconds,
    behind: Seq | None = None,
) -> Forecast | None:
    """Predict `target`, added behind all that is queued now. None if it never gets in.

    behind: who is expected to come next, and to fill what `target` leaves of its last step. Reads
    the mirror only.
    """
    found = None
    if is_first_come(mirror.replay) and not mirror.beside:
        found = FirstCome(mirror, target, weights, now, behind).run()
    return found or stepwise(mirror, target, weights, now, behind)


def stepwise(  # noqa: PLR0913  # the oracle's, which alone gives the last one
    mirror: Mirror,
    target: Seq,
    weights: StepWeights,
    now: Seconds,
    behind: Seq | None = None,
    *,
    skips: bool = True,
) -> Forecast | None:
    """Predict as `forecast` does, whatever the engine's rules and whatever happens.

    skips: whether equal steps may be run as one.
    """
    replay, cache = into_the_future(mirror)
    others, lookup = Beside(mirror.beside), cache.lookup
    replay.add(target)
    if behind is not None:
        replay.add(behind)
    scheduled_at, found = None, target
    for _ in range(MOST_STEPS):
        others.meet(replay)
        is_idle = not (replay.has_work or others.has_work)
        if is_idle:
            if not replay.waiting:
                return None
            others.wake(replay)
        started = replay.clock
        step = replay.step(lookup)
        lasts = others.lengthen(weights.seconds(step.features), started)
        if is_idle and not (step.admitted or lasts):
            return None
        replay.ran(step, max(started + lasts, now + SOON))
        for seq in step.admitted:
            if seq.id == target.id and scheduled_at is None:
                scheduled_at, found = started, seq
        if any(seq.id == target.id for seq in step.finals):
            assert scheduled_at is not None
            return Forecast(max(scheduled_at, now), replay.clock, found.cached or 0)
        if skips and not others.has_requests:
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
