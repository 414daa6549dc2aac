"""Ranks of one server that step together: each step lasts as long as that of the slowest.

With attention in parallel over ranks, each has a scheduler, a queue and a cache of its own, but all
launch at once, and who has nothing to run runs an empty batch beside the others. So a rank is idle
only when all are, and a prompt on one of them delays every token of the rest. A forecast of one
rank therefore runs forks of the others along with its own.

Ignored: that a rank's steps are slower where others compute many tokens with it (experts are
shared), and that a rank's step times are learned from steps that others made long.
Source: SGLang 0.5.23 srt/managers/scheduler_components/dp_attn.py, prepare_mlp_sync_batch.
"""

from collections.abc import Iterable

from leadsman.future import FutureCache
from leadsman.mirror import Mirror
from leadsman.replay import Replay
from leadsman.steptime import StepWeights
from leadsman.units import Seconds


def into_the_future(mirror: Mirror) -> tuple[Replay, FutureCache]:
    """Fork a mirror's replay so that it can be run on; with what it will find cached."""
    replay = mirror.replay.fork()
    replay.free, replay.unused = mirror.blocks_to_give()
    replay.lost = 0
    return replay, FutureCache(mirror, replay)


class Beside:
    """The other ranks, run along with a forecast; none of them for most workers."""

    def __init__(self, others: Iterable[tuple[Mirror, StepWeights]]) -> None:
        self._runs = [(*into_the_future(mirror), weights) for mirror, weights in others]

    @property
    def has_work(self) -> bool:
        """Whether any of them runs something."""
        return any(replay.has_work for replay, _, _ in self._runs)

    @property
    def has_requests(self) -> bool:
        """Whether any of them runs something, or will when it comes."""
        return self.has_work or any(replay.waiting for replay, _, _ in self._runs)

    def meet(self, replay: Replay) -> None:
        """Bring all to where the one is that has come farthest, of those that run something."""
        if not self._runs:
            return
        everyone = [replay, *(other for other, _, _ in self._runs)]
        busy = [one for one in everyone if one.has_work]
        if busy:
            lead = max(busy, key=lambda one: one.clock)
            for one in everyone:
                one.clock, one.seen_until = lead.clock, lead.seen_until

    def wake(self, replay: Replay) -> None:
        """Begin a busy stretch, of all at once, with whoever's request comes first."""
        everyone = [replay, *(other for other, _, _ in self._runs)]
        for one in everyone:
            one.wake()
        first = min(one.clock for one in everyone if one.waiting)
        for one in everyone:
            one.clock = first

    def lengthen(self, own: Seconds, start: Seconds) -> Seconds:
        """Run a step of each of the others; returns how long the longest of all lasts."""
        longest, steps = own, []
        for replay, cache, weights in self._runs:
            replay.clock = start
            step = replay.step(cache.lookup)
            steps.append((replay, step))
            longest = max(longest, weights.seconds(step.features))
        for replay, step in steps:
            replay.ran(step, start + longest)
        return longest
