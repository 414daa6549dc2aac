"""What goes wrong, and how long until all is right again, without a restart of Leadsman.

Each fault meets an engine with a warm cache, in the middle of a slice at a quiet load, so that most
turns after it belong to conversations from before it: a stale view of the cache shows at once.

socket: its event sockets are cut for some seconds while it works; counted from when they are back.
reset: its prefix cache is emptied while it is idle, and it says nothing of it; counted from there.
kill: it is killed with requests in flight, and started again; counted from when it serves.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from leadsman.units import Seconds
from leadsman_bench.player import Planned
from leadsman_bench.traces import TraceRequest

from engine.cells import graded, recovered
from engine.plan import wanted
from engine.stage import Stage

CUT_FOR: Final[Seconds] = 3.0
IDLE_FOR: Final[Seconds] = 3.0


def faults(
    stage: Stage, slices: Sequence[Sequence[TraceRequest]], spans: Sequence[Seconds]
) -> dict[str, Seconds | None]:
    """Let each fault happen in the middle of its slice; gives the seconds until all was right.

    spans: how long each slice takes, at a quiet load. None: never right again.
    """
    found: dict[str, Seconds | None] = {}
    for (name, happen), rows, span in zip(FAULTS.items(), slices, spans, strict=True):
        planned = wanted(f"{name}-{stage.engine.slots}", rows, span)
        planned = [replace(one, max_queue_wait=None) for one in planned]
        since = happen(stage, planned, planned[len(rows) // 2].at)
        found[name] = recovered(graded(stage.outcomes()), {one.id for one in planned}, since)
    return found


def _socket(stage: Stage, planned: Sequence[Planned], middle: Seconds) -> Seconds:
    back: list[Seconds] = []

    def cut() -> None:
        for relay in stage.relays:
            relay.cut()
        time.sleep(CUT_FOR)
        for relay in stage.relays:
            relay.mend()
        back.append(time.monotonic())

    _meanwhile(stage, planned, middle, cut)
    return back[0]


def _reset(stage: Stage, planned: Sequence[Planned], middle: Seconds) -> Seconds:
    before, after = _halves(planned, middle)
    stage.play(before)
    time.sleep(IDLE_FOR)
    stage.reset_prefix_cache()
    since = time.monotonic()
    stage.play(after)
    return since


def _kill(stage: Stage, planned: Sequence[Planned], middle: Seconds) -> Seconds:
    before, after = _halves(planned, middle)
    _meanwhile(stage, before, before[-1].at, stage.engine.kill)
    stage.engine.start()
    stage.engine.wait()
    since = time.monotonic()
    stage.play(after)
    return since


def _meanwhile(
    stage: Stage, planned: Sequence[Planned], at: Seconds, happen: Callable[[], None]
) -> None:
    """Play, and let something happen a moment after the request that is sent at `at`."""
    timer = threading.Timer(at + 0.1, happen)
    timer.start()
    stage.play(planned)
    timer.join()


def _halves(planned: Sequence[Planned], middle: Seconds) -> tuple[list[Planned], list[Planned]]:
    """Part a plan in two; the second one begins at 0 again."""
    return (
        [one for one in planned if one.at < middle],
        [replace(one, at=one.at - middle) for one in planned if one.at >= middle],
    )


FAULTS: Final = {"socket": _socket, "reset": _reset, "kill": _kill}
"""What each does with its slice; gives when it was over, on the picker's clock."""
