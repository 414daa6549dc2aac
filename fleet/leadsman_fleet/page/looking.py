"""Asks a fleet how its workers stand. One replay a worker, so it lets others run in between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

from leadsman.condition import Condition, Outlook
from leadsman.units import Seconds, WorkerId

from leadsman_fleet.page.shown import Held, Speed, Worker


class Fleet(Protocol):
    """What is asked: `leadsman.fleet.Fleet`."""

    def conditions(self) -> Iterable[Condition]:
        """Say how every worker stands."""
        ...

    def trust(self) -> Iterable[tuple[str, str, str]]:
        """Say of each worker how far its cache view is believed, and why."""
        ...

    def outlook(self, worker: WorkerId, now: Seconds) -> Outlook:
        """Say what is queued and held at a worker. Raises KeyError where it is gone."""
        ...


async def look(fleet: Fleet, clock: Callable[[], Seconds]) -> AsyncIterator[tuple[Worker, Speed]]:
    """Say how each worker stands, one after the other, in the order of their names."""
    trust = {worker: (far, why) for worker, far, why in fleet.trust()}
    for one in sorted(fleet.conditions(), key=lambda one: one.worker):
        try:
            outlook = fleet.outlook(one.worker, clock())
        except KeyError:  # it left while others were asked
            continue
        far, why = trust.get(one.worker, ("blind", ""))
        yield _worker(one, outlook, (far, why), clock()), _speed(one, outlook)
        await asyncio.sleep(0)


def _worker(one: Condition, outlook: Outlook, trust: tuple[str, str], now: Seconds) -> Worker:
    queue, load, size = outlook.queue, one.load, outlook.block_size
    return Worker(
        worker=one.worker,
        model=one.model,
        ready=one.ready,
        trust=str(trust[0]),
        reason=trust[1],
        unheard=None if one.heard_at is None else max(0.0, now - one.heard_at),
        queued_tokens=queue.queued_tokens,
        queued_requests=queue.queued_requests,
        wait=queue.queue_wait,
        in_flight=outlook.in_flight,
        slots=outlook.slots,
        running=None if load is None else load.running,
        waiting=None if load is None else load.waiting,
        cache=tuple(
            Held(tier=tier, tokens=blocks * size, room=outlook.room * size if not place else None)
            for place, (tier, blocks) in enumerate(outlook.held)
        ),
    )


def _speed(one: Condition, outlook: Outlook) -> Speed:
    curve, weights = one.curve, outlook.weights
    return Speed(
        curve=(curve.overhead, curve.a, curve.b),
        curve_from=outlook.curve_from,
        samples=outlook.samples,
        now=(weights.s, weights.t0, weights.a, 0.5 * weights.b),
        now_from=one.provenance,
        step_tokens=outlook.step_tokens,
    )
