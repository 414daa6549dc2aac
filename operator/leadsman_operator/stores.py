"""The readers of a pool's shared stores, which change while they run.

Which stores there are follows from what was found: a profile says where its pods' store is, and the
pods' engines say which model and blocks it has. A store that no engine is left of is said gone, and
so is one that the log knows from before and that nobody means any more.
"""

import asyncio
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Final, TypeAlias

from leadsman.records import WorkerGone
from leadsman.units import WorkerId
from leadsman_engines.mooncake_master import MooncakeMaster
from leadsman_engines.profile import SharedStore
from leadsman_engines.store_reader import StoreReader

from leadsman_operator.collectors import Found
from leadsman_operator.endpoint import Surroundings
from leadsman_operator.targets import Target
from leadsman_operator.views import PoolView

_Reading: TypeAlias = tuple[StoreReader, asyncio.Task[None]]
_NEEDS: Final = "the operator needs pip install 'leadsman[lmcache]'"


class Stores:
    """One reader a store."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._running: dict[SharedStore, _Reading] = {}
        self._unread: set[SharedStore] = set()

    @property
    def all(self) -> set[SharedStore]:
        """Those that are read, or would be."""
        return self._running.keys() | self._unread

    async def set(
        self, stores: Collection[SharedStore], *, known: Collection[WorkerId] = ()
    ) -> None:
        """Read exactly these from now on. known: those that the log has; others of it are gone."""
        for store in self._running.keys() - set(stores):
            reader, task = self._running.pop(store)
            await _end(task)
            reader.leave()
        self._unread = {store for store in stores if not is_readable(store)}
        for store in stores:
            if store not in self._unread and store not in self._running:
                self._running[store] = self._begin(store)
        for name in set(known) - {store.worker for store in stores}:
            self._around.publish(WorkerGone(worker=name))

    def problems(self) -> Mapping[SharedStore, str | None]:
        """Say of each store that was asked why it cannot be read; None where it can."""
        readers = ((store, reader) for store, (reader, _) in self._running.items())
        read = {store: one.seen.problem for store, one in readers if one.seen is not None}
        return read | dict.fromkeys(self._unread, _NEEDS)

    async def stop(self) -> None:
        """Stop reading, and say nothing: what is known stays what it was."""
        for _, task in self._running.values():
            await _end(task)
        self._running.clear()

    def _begin(self, store: SharedStore) -> _Reading:
        reader = reader_of(store, self._around)
        task = asyncio.create_task(reader.run(self._around.http), name=f"store {store.url}")
        return reader, task


def reader_of(store: SharedStore, around: Surroundings) -> StoreReader:
    """Make the reader of a store that `is_readable`."""
    publish, clock = around.publish, around.clock
    if store.mooncake is not None:
        return MooncakeMaster(store, publish, clock, around.names[store.model])
    from leadsman_engines.lmcache_directory import LmcacheDirectory  # noqa: PLC0415  # an extra

    return LmcacheDirectory(store, publish, clock, secret=around.secret)


def is_readable(store: SharedStore) -> bool:
    """Say whether what reading it needs is installed."""
    return store.lmcache is None or find_spec("blake3") is not None


def stores_of(view: PoolView) -> set[SharedStore]:
    """Say which stores the engines of a pool share, as far as they were found."""
    found = [(target, view.found.get(endpoint)) for endpoint, target in view.targets.items()]
    return {store for target, one in found if one is not None for store in shared_by(target, one)}


def shared_by(target: Target, found: Found) -> set[SharedStore]:
    """Say which stores the engines of one endpoint share with others."""
    shared = target.profile.spec.shared_store if target.profile else None
    if shared is None:
        return set()
    return {
        SharedStore(
            lmcache=shared.lmcache,
            mooncake=shared.mooncake,
            model=worker.settings.model,
            block_size=worker.settings.block_size,
            stored_as=shared.stored_as,
        )
        for worker in found.workers
    }


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
