"""Every pool's collectors and its log, made to fit the world.

Called again and again with the whole world; what it does depends only on how that differs from
what runs. A pool that is deleted loses its workers, and its log stays for whoever follows it.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import aiohttp
from leadsman.declared import Declared
from leadsman.engine import EngineSettings
from leadsman.records import Ended, Granted, Record, TokensSeen, WorkerGone, WorkerSeen, is_store
from leadsman.units import Seconds, WorkerId
from leadsman_fleet.log import FleetLog
from leadsman_fleet.pools import Pools
from leadsman_fleet.server import FleetService
from leadsman_fleet.state import FleetState

from leadsman_operator.collectors import Collectors
from leadsman_operator.endpoint import (
    Before,
    CollectorTiming,
    Names,
    Publish,
    Surroundings,
    new_names,
)
from leadsman_operator.lessons import Lessons
from leadsman_operator.objects import InferencePool, Key
from leadsman_operator.outlets import Outlet
from leadsman_operator.pasts import Pasts, address_of
from leadsman_operator.precedence import declared, importance_of, ranked
from leadsman_operator.stores import Stores, stores_of
from leadsman_operator.targets import targets_of
from leadsman_operator.views import PoolView
from leadsman_operator.world import World


@dataclass(slots=True, kw_only=True)
class Fleets:
    """The pools. secret: names this deployment's block keys, the same in every picker.

    past: what is known of pools from the leader before.
    """

    http: aiohttp.ClientSession
    secret: bytes
    clock: Callable[[], Seconds]
    timing: CollectorTiming = field(default_factory=CollectorTiming)
    lessons: Lessons = field(default_factory=Lessons)
    past: Mapping[Key, FleetState] = field(default_factory=dict)
    pools: Pools = field(init=False)
    _pasts: dict[Key, Pasts] = field(default_factory=dict)
    _collectors: dict[Key, Collectors] = field(default_factory=dict)
    _stores: dict[Key, Stores] = field(default_factory=dict)
    _names: defaultdict[Key, Names] = field(default_factory=lambda: defaultdict(new_names))
    _planned: dict[Key, PoolView] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pools = Pools(self._service)

    async def become(self, world: World) -> None:
        """Follow the pods and declare the budgets that the world says."""
        for key in self._stores.keys() - world.pools.keys():
            await self._stores.pop(key).set(())
        for key in self._collectors.keys() - world.pools.keys():
            await self._collectors.pop(key).set(())
            self._outlet(key).declare(Declared())
            del self._planned[key]
        for key, pool in world.pools.items():
            await self._fit(key, pool, world)

    def views(self) -> Mapping[Key, PoolView]:
        """Say what has become of each pool."""
        return {
            key: replace(view, found=self._collectors[key].found())
            for key, view in self._planned.items()
        }

    def is_settled(self) -> bool:
        """Whether no less is told of any pool than before: what the leader before knew of it, or
        else what every endpoint that may take requests has said.
        """
        return all(view.is_settled for key, view in self.views().items() if key not in self.past)

    async def read_stores(self, views: Mapping[Key, PoolView]) -> Mapping[Key, PoolView]:
        """Read what the engines found share, from now on; gives the views with how that goes.

        What is read goes on being read until every engine that there should be has been asked.
        """
        for key, view in views.items():
            if key not in self._collectors:
                continue
            stores = self._stores.get(key)
            if stores is None:
                stores = self._stores[key] = Stores(self._around(key, self._outlet(key)))
            meant, known = stores_of(view), self._outlet(key).stores()
            if view.is_settled:
                await stores.set(meant, known=known)
            else:
                await stores.set(meant | stores.all)
        problems = {key: stores.problems() for key, stores in self._stores.items()}
        return {key: replace(view, stores=problems.get(key, {})) for key, view in views.items()}

    def learn(self) -> bool:
        """Remember what pickers have learned meanwhile; True where it is news."""
        outlets = [self._outlet(key) for key in self._collectors]
        news = [self.lessons.take(outlet.lessons()) for outlet in outlets]
        return any(news)

    def states(self) -> dict[Key, FleetState]:
        """Give what each pool's log says now."""
        return {key: self.pools.of(str(key)).state for key in self._collectors}

    async def stop(self) -> None:
        """Stop collecting, and say nothing."""
        await self._stop_stores()
        for collectors in self._collectors.values():
            await collectors.stop()

    async def _stop_stores(self) -> None:
        for stores in self._stores.values():
            await stores.stop()
        self._stores.clear()

    def _outlet(self, key: Key) -> Outlet:
        return self.pools.of(str(key))

    async def _fit(self, key: Key, pool: InferencePool, world: World) -> None:
        view = planned(pool, world)
        outlet = self._outlet(key)
        if key not in self._collectors:
            self._begin_with_past(key, view, outlet)
            self._collectors[key] = Collectors(self._around(key, outlet))
        outlet.declare(declared(view.budgets, view.importance))
        await self._collectors[key].set(view.targets.keys(), closed=view.closed())
        self._planned[key] = view

    def _begin_with_past(self, key: Key, view: PoolView, outlet: Outlet) -> None:
        """Say what is known of the workers that are still there; pickers say their grants again."""
        if key in self.past:
            addresses = {endpoint.address for endpoint in view.targets}
            self._pasts[key] = Pasts(self.past[key], addresses)
            for record in self.past[key].snapshot():
                is_pickers = isinstance(record, Granted | TokensSeen | Ended)
                is_there = address_of(record.worker) in addresses or is_store(record.worker)
                if is_there and not is_pickers:
                    outlet.publish(record)

    def _before_of(self, key: Key) -> Before | None:
        return self._pasts[key].take if key in self._pasts else None

    def _around(self, key: Key, outlet: Outlet) -> Surroundings:
        return Surroundings(
            http=self.http,
            publish=self._teaching(outlet),
            clock=self.clock,
            secret=self.secret,
            timing=self.timing,
            before=self._before_of(key),
            names=self._names_of(key),
        )

    def _teaching(self, outlet: Outlet) -> Publish:
        """Publish to a pool, and with each worker that appears what is known of its like."""
        taught: dict[WorkerId, EngineSettings] = {}

        def publish(record: Record) -> None:
            outlet.publish(record)
            if isinstance(record, WorkerGone):
                taught.pop(record.worker, None)
            elif isinstance(record, WorkerSeen) and taught.get(record.worker) != record.settings:
                taught[record.worker] = record.settings
                lesson = self.lessons.of(record)
                if lesson is not None:
                    outlet.publish(lesson)

        return publish

    def _names_of(self, key: Key) -> Names:
        return self._names[key]

    def _service(self, pool: str) -> FleetService:
        return FleetService(FleetLog(epoch=uuid.uuid4().hex), pool=pool, clock=self.clock)


def planned(pool: InferencePool, world: World) -> PoolView:
    """Say what a pool should become."""
    return PoolView(
        pool=pool,
        targets=targets_of(world, pool),
        budgets=ranked(world, pool),
        found={},
        importance=importance_of(world, pool),
    )
