"""Stretches of decode steps that differ in nothing but the length of their contexts.

While every running request decodes, nothing waits, and no block is taken, named or released, each
step adds one token to each request. Such steps need no scheduling: only their times are drawn.
"""

from collections import deque
from collections.abc import Callable

from leadsman_engines.simulated.scheduler import Scheduler
from leadsman_engines.simulated.sequences import Tracked
from leadsman_engines.simulated.settings import SimulatedSettings
from leadsman_engines.simulated.steps import Step

MARGIN = 3
"""Steps that are left before a request's end, so that none of those in the queue has it."""


def in_steady_decode(scheduler: Scheduler, steps: deque[Step], depth: int) -> bool:
    """Whether each step in the queue decodes every running request, and does nothing else."""
    if scheduler.waiting or scheduler.pool.events or len(steps) < depth:
        return False
    for step in steps:
        if step.chunks or step.membership != scheduler.membership:
            return False
    return len(steps[-1].decode_contexts) == len(scheduler.running)


def equal_steps(running: list[Tracked], settings: SimulatedSettings, least: int) -> int:
    """Count the steps before any request starts, takes or fills a block, or nears its end.

    Zero where that is fewer than `least`.
    """
    fewest = block_size = settings.block_size
    for request in running:
        if request.tokens == request.prompt:
            return 0
        computed = request.computed
        named = request.named if settings.enable_prefix_caching else computed // block_size
        to_fill = (named + 1) * block_size - 1 - computed
        to_take = len(request.blocks) * block_size - computed
        to_end = request.ends_at - request.tokens - MARGIN
        fewest = min(fewest, to_fill, to_take, to_end)
        if fewest < least:
            return 0
    return fewest


def time_stretch(
    steps: deque[Step],
    seconds: Callable[[list[int]], float],
    *,
    longest: int,
    until: float,
) -> tuple[float, ...]:
    """Time up to `longest` further steps that end before `until`, and the queue behind them.

    seconds: draws the time of a step from the contexts that it decodes. At least one step is timed.
    Changes when the queued steps end; `move_ahead` does the rest.
    """
    contexts = steps[-1].decode_contexts
    queue = deque(step.ends_at for step in steps)
    ends: list[float] = []
    while not ends or (len(ends) < longest and queue[0] < until):
        ends.append(queue.popleft())
        contexts = [context + 1 for context in contexts]
        begin = queue[-1] if queue else ends[-1]
        queue.append(begin + seconds(contexts))
    for step, moment in zip(steps, queue, strict=True):
        step.ends_at = moment
    return tuple(ends)


def move_ahead(running: list[Tracked], steps: deque[Step], count: int) -> None:
    """Account for `count` such steps."""
    for request in running:
        request.tokens += count
        request.computed += count
    for step in steps:
        step.decode_contexts = [context + count for context in step.decode_contexts]
