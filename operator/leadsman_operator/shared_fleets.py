"""Every pool's collectors where several operators share them, and a log that outlives each.

Each replica knows the whole world and collects from its share alone. An endpoint that falls to
another is passed on in silence: its workers are not gone. Whoever takes it up reads from the log
what its caches held (`succession.py`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from leadsman.units import WorkerId
from leadsman_fleet.state import FleetState

from leadsman_operator.collectors import Collectors, Found
from leadsman_operator.endpoint import Before, Endpoint, Names, Past
from leadsman_operator.fleets import Fleets, planned
from leadsman_operator.objects import InferencePool, Key
from leadsman_operator.outlets import Outlet, SharedOutlet
from leadsman_operator.pasts import Pasts
from leadsman_operator.precedence import declared
from leadsman_operator.seats import Shares
from leadsman_operator.shared_names import SharedNames, new_shared_names
from leadsman_operator.stores import stores_of
from leadsman_operator.views import PoolView
from leadsman_operator.world import World

_LEADING = "leading"


@dataclass(slots=True, kw_only=True)
class SharedFleets(Fleets):
    """The pools. shares: who does what now. open_log: gives a pool's log."""

    open_log: Callable[[str], SharedOutlet]
    shares: Shares = field(default_factory=Shares)
    _logs: dict[Key, SharedOutlet] = field(default_factory=dict)
    _shared_names: defaultdict[Key, SharedNames] = field(
        default_factory=lambda: defaultdict(new_shared_names)
    )
    _before: dict[Key, Pasts] = field(default_factory=dict)

    @property
    def leads(self) -> bool:
        """Whether this replica writes what is to be written once."""
        return self.shares.owns(_LEADING)

    async def make_way(self, shares: Shares) -> None:
        """Do from now on only what is ours; what is not has ended when this returns."""
        self.shares = shares
        if not self.leads:
            await self._stop_stores()
        await asyncio.gather(*(self._pass_on(*one) for one in self._collectors.items()))
        await asyncio.gather(*(log.lead(leads=self.leads) for log in self._logs.values()))

    async def tell(self) -> None:
        """Let the leader know what this replica found."""
        if self.shares.mine is not None:
            for key, view in self.views().items():
                await self._logs[key].tell(self.shares.mine, view.found)
                await self._logs[key].tell_names(self._shared_names[key])

    async def whole_views(self) -> Mapping[Key, PoolView]:
        """Say what has become of each pool, by what all replicas found."""
        return {key: await self._whole(key, view) for key, view in self.views().items()}

    async def read_stores(self, views: Mapping[Key, PoolView]) -> Mapping[Key, PoolView]:
        """See `Fleets`; only while this replica leads."""
        if not self.leads:
            return views
        for key, view in views.items():
            if any(store.mooncake for store in stores_of(view)):
                await self._logs[key].hear_names(self._shared_names[key])
        views = await Fleets.read_stores(self, views)
        if not self.leads:
            await self._stop_stores()
        return views

    async def retain(self) -> None:
        """Say that workers are gone which nobody else will say it of."""
        for key, view in self.views().items():
            await self._logs[key].retain({endpoint.address for endpoint in view.targets})

    async def stop(self) -> None:
        """Stop collecting, and say nothing."""
        await Fleets.stop(self)
        for outlet in self._logs.values():
            await outlet.close()

    async def _whole(self, key: Key, view: PoolView) -> PoolView:
        told = await self._logs[key].told()
        found: dict[Endpoint, Found] = {
            endpoint: told[endpoint.url, endpoint.pod]
            for endpoint in view.targets
            if (endpoint.url, endpoint.pod) in told
        }
        return replace(view, found=found | dict(view.found))

    def _outlet(self, key: Key) -> Outlet:
        return self._log(key)

    def _log(self, key: Key) -> SharedOutlet:
        if key not in self._logs:
            self._logs[key] = self.open_log(str(key))
        return self._logs[key]

    def _names_of(self, key: Key) -> Names:
        return self._shared_names[key]

    def _is_ours(self, key: Key, endpoint: Endpoint) -> bool:
        return self.shares.owns(f"{key} {endpoint.address}")

    async def _pass_on(self, key: Key, collectors: Collectors) -> None:
        workers = await collectors.pass_on(lambda one: self._is_ours(key, one))
        if workers:
            await self._logs[key].let_go(workers)

    async def _fit(self, key: Key, pool: InferencePool, world: World) -> None:
        view, outlet = planned(pool, world), self._log(key)
        if key not in self._collectors:
            self._collectors[key] = Collectors(self._around(key, outlet))
        collectors = self._collectors[key]
        outlet.declare(declared(view.budgets, view.importance))
        await outlet.lead(leads=self.leads)
        await self._look_back(key, view)
        await self._pass_on(key, collectors)
        ours = {endpoint for endpoint in view.targets if self._is_ours(key, endpoint)}
        await collectors.set(ours, closed=view.closed() & ours)
        self._planned[key] = view
        # What fell to another while this waited is stopped here before it took its first step.
        await self._pass_on(key, collectors)

    async def _look_back(self, key: Key, view: PoolView) -> None:
        """Read what is known of endpoints that are new to us; a new pod at an old address is new.

        Where the log cannot be read, nothing is known, and what it still says will be replaced.
        """
        running = self._collectors[key].found()
        new = [one for one in view.targets if self._is_ours(key, one) and one not in running]
        if not new:
            return
        known = await self._log(key).before()
        was = self._planned[key].targets if key in self._planned else {}
        pods = {endpoint.address: endpoint.pod for endpoint in was}
        taken = {one.address for one in new if pods.get(one.address, one.pod) == one.pod}
        self._before[key] = Pasts(known or FleetState(), taken)

    def _before_of(self, key: Key) -> Before:
        def before(address: str) -> Mapping[WorkerId, Past]:
            return self._before[key].take(address) if key in self._before else {}

        return before
