"""The collectors of a set of endpoints that changes while they run."""

import asyncio
from collections.abc import Iterable

from leadsman_operator.collector import Collector
from leadsman_operator.endpoint import Endpoint, Surroundings


class Collectors:
    """One collector an endpoint. An endpoint whose profile changed is another endpoint."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._running: dict[Endpoint, tuple[Collector, asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def set(self, endpoints: Iterable[Endpoint]) -> None:
        """Collect from exactly these from now on; workers of those that left are said gone."""
        wanted = list(endpoints)
        for endpoint in self._running.keys() - set(wanted):
            collector, task = self._running.pop(endpoint)
            await _stop(task)
            collector.leave()
        for endpoint in wanted:
            if endpoint not in self._running:
                collector = Collector(endpoint, self._around)
                task = asyncio.create_task(collector.run(), name=f"collector {endpoint.url}")
                self._running[endpoint] = (collector, task)

    async def stop(self) -> None:
        """Stop collecting, and say nothing: what is known stays what it was."""
        for _, task in self._running.values():
            await _stop(task)
        self._running.clear()


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
