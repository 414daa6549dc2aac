"""All that the operator watches, put together to one world."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from leadsman.units import Seconds

from leadsman_operator.informer import Informer, WatchTiming
from leadsman_operator.kube import Api
from leadsman_operator.objects import BUDGETS, KINDS, OBJECTIVES, PODS, POOLS, PROFILES, Kind
from leadsman_operator.world import World


@dataclass(slots=True, kw_only=True)
class Watching:
    """The informers of every kind, in some namespaces; none given: in all."""

    api: Api
    namespaces: Sequence[str]
    timing: WatchTiming = field(default_factory=WatchTiming)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    informers: list[Informer] = field(init=False)

    def __post_init__(self) -> None:
        namespaces: Sequence[str | None] = self.namespaces or [None]
        self.informers = [
            Informer(
                api=self.api,
                kind=kind,
                namespace=namespace,
                on_change=self.changed.set,
                timing=self.timing,
            )
            for kind in KINDS
            for namespace in namespaces
        ]

    async def run(self) -> None:
        """Follow all until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self.informers:
                tasks.create_task(informer.run(), name=f"informer {informer.kind.plural}")

    async def synced(self) -> None:
        """Wait until every kind has been listed once."""
        for informer in self.informers:
            await informer.synced.wait()

    def is_synced(self) -> bool:
        """Whether every kind has been listed once."""
        return all(informer.synced.is_set() for informer in self.informers)

    def is_alive(self, now: Seconds) -> bool:
        """Whether every informer still turns; one that hangs never will again."""
        return all(now - one.turned_at <= 2 * self.timing.turn for one in self.informers)

    def world(self) -> World:
        """Give all objects, as they are now."""
        return World(
            pools=self._of([POOLS]),
            pods=self._of([PODS]),
            budgets=self._of([BUDGETS]),
            profiles=self._of([PROFILES]),
            objectives=self._of(OBJECTIVES[1:]) | self._of(OBJECTIVES[:1]),
        )

    def _of(self, kinds: Iterable[Kind]) -> dict[Any, Any]:
        """Join the objects of kinds; which type they have, their kind says."""
        kinds = list(kinds)
        return {
            key: item
            for informer in self.informers
            if informer.kind in kinds
            for key, item in informer.items.items()
        }
