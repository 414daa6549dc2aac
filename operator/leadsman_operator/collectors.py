"""The collectors of a set of endpoints that changes while they run."""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from leadsman.records import WorkerSeen
from leadsman.units import WorkerId

from leadsman_operator.collector import Collector
from leadsman_operator.endpoint import Endpoint, Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of one endpoint now. problem: why it is not followed; None while it is."""

    workers: tuple[WorkerSeen, ...]
    problem: str | None


class Collectors:
    """One collector an endpoint. An endpoint whose profile changed is another endpoint."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._running: dict[Endpoint, tuple[Collector, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def set(
        self, endpoints: Collection[Endpoint], *, closed: Collection[Endpoint] = ()
    ) -> None:
        """Collect from exactly these from now on; workers of those that left are said gone.

        closed: those among them that new requests may not go to.
        """
        for endpoint in self._running.keys() - set(endpoints):
            collector, task = self._running.pop(endpoint)
            await _stop(task)
            collector.leave()
        for endpoint in endpoints:
            if endpoint not in self._running:
                self._running[endpoint] = self._begin(endpoint)
            self._running[endpoint][0].roster.open(is_open=endpoint not in closed)

    async def pass_on(self, is_ours: Callable[[Endpoint], bool]) -> list[WorkerId]:
        """Stop collecting from what is not ours, and say nothing: another will. Gives the workers.

        None of these has a say once this returns.
        """
        passed = [endpoint for endpoint in self._running if not is_ours(endpoint)]
        collectors = [self._running.pop(endpoint) for endpoint in passed]
        for _, task in collectors:
            task.cancel()
        await asyncio.gather(*(task for _, task in collectors), return_exceptions=True)
        return [worker for collector, _ in collectors for worker in collector.roster.workers]

    def found(self) -> Mapping[Endpoint, Found]:
        """Say what is known of each endpoint."""
        return dict(self._found())

    def _found(self) -> Iterator[tuple[Endpoint, Found]]:
        for endpoint, (collector, _) in self._running.items():
            workers = tuple(collector.roster.told.values())
            yield endpoint, Found(workers=workers, problem=collector.problem)

    def _begin(self, endpoint: Endpoint) -> tuple[Collector, asyncio.Task[None]]:
        collector = Collector(endpoint, self._around)
        task = asyncio.create_task(collector.run(), name=f"collector {endpoint.url}")
        return collector, task

    async def stop(self) -> None:
        """Stop collecting, and say nothing: what is known stays what it was."""
        for _, task in self._running.values():
            await _stop(task)
        self._running.clear()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
