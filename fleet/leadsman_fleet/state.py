"""What a log of records adds up to: the least that a newcomer must be told.

The state is a fold over records. It keeps of each worker its latest words (settings, trust, load,
what was learned), which blocks it holds per tier with their copies, and its live grants with the
tokens seen so far. It forgets who stored a block (`session`) and when: these belong to the step in
which they happen. What names a worker that is not there is ignored, so that a late record never
brings back what a departure gave away; a shared store is there from its first record on, until it
is said gone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from leadsman.records import (
    Cleared,
    Ended,
    Granted,
    KvEvents,
    Learned,
    LoadSample,
    Record,
    Removed,
    Stored,
    StoreSeen,
    TokensSeen,
    Trust,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
    is_store,
)
from leadsman.units import RequestId, Seconds, WorkerId

from leadsman_fleet.residency import Residency


@dataclass(slots=True)
class _Grant:
    granted: Granted
    source: str | None
    seen: TokensSeen | None = None


@dataclass(slots=True)
class _Cache:
    sequence: int = 0
    engine_time: Seconds = 0.0
    received_at: Seconds = 0.0
    tiers: dict[str, Residency] = field(default_factory=dict)


@dataclass(slots=True)
class _Worker:
    seen: WorkerSeen
    trust: TrustChanged | None = None
    load: LoadSample | None = None
    learned: Learned | None = None
    learned_by: str | None = None
    cache: _Cache = field(default_factory=_Cache)
    grants: dict[RequestId, _Grant] = field(default_factory=dict)


@dataclass(slots=True)
class _Store:
    seen: StoreSeen | None = None
    cache: _Cache = field(default_factory=_Cache)


class FleetState:
    """The fold. Memory: 12 to 24 bytes a block and worker, and the live grants."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, _Worker] = {}
        self._stores: dict[WorkerId, _Store] = {}

    def apply(self, record: Record, source: str | None = None) -> bool:
        """Fold one record in, and say whether it told anything new.

        source: the replica that reported it, where one did.
        """
        if isinstance(record, StoreSeen) or is_store(record.worker):
            return self._fold_store(record)
        if isinstance(record, WorkerSeen):
            return self._see(record)
        if isinstance(record, WorkerGone):
            return self._workers.pop(record.worker, None) is not None
        worker = self._workers.get(record.worker)
        if worker is None:
            return False
        return _fold(worker, record, source)

    def snapshot(self, *, without: str | None = None) -> list[Record]:
        """Say the state again, worker by worker, except what the replica `without` reported.

        Each worker's trust is said, also where nobody said it yet. Its KV events begin with a
        `Cleared` of every tier, so that they hold for a reader who already knew something, and
        their blocks name no session. A store that has not spoken of itself is first said gone, for
        a reader who heard an earlier one speak.
        """
        told = self.told()
        return [record for source, record in told if without is None or source != without]

    def told(self) -> Iterator[tuple[str | None, Record]]:
        """Say the state again, each record with the replica that reported it, where one did."""
        for worker in self._workers.values():
            yield from _restate(worker)
        for name, store in self._stores.items():
            yield None, store.seen or WorkerGone(worker=name)
            yield None, _restate_cache(name, store.cache)

    def workers(self) -> list[WorkerId]:
        """List the workers that are there."""
        return list(self._workers)

    def stores(self) -> list[WorkerId]:
        """List the shared stores that are there."""
        return list(self._stores)

    def sources(self) -> set[str]:
        """Give the replicas that hold live grants."""
        grants = (grant for worker in self._workers.values() for grant in worker.grants.values())
        return {grant.source for grant in grants if grant.source is not None}

    def grants_of(self, source: str) -> list[Granted]:
        """List the live grants of one replica."""
        return [
            grant.granted
            for worker in self._workers.values()
            for grant in worker.grants.values()
            if grant.source == source
        ]

    def lessons(self) -> list[Learned]:
        """List what was learned of each worker last."""
        return [one.learned for one in self._workers.values() if one.learned is not None]

    def _fold_store(self, record: Record) -> bool:
        match record:
            case StoreSeen():
                store = self._stores.setdefault(record.worker, _Store())
                changed, store.seen = store.seen != record, record
                return changed
            case KvEvents():
                _fold_events(self._stores.setdefault(record.worker, _Store()).cache, record)
                return True
            case WorkerGone():
                return self._stores.pop(record.worker, None) is not None
        return False

    def _see(self, record: WorkerSeen) -> bool:
        worker = self._workers.get(record.worker)
        if worker is None:
            self._workers[record.worker] = _Worker(record)
            return True
        changed = worker.seen != record
        worker.seen = record
        return changed


def _fold(
    worker: _Worker,
    record: KvEvents | TrustChanged | LoadSample | Granted | TokensSeen | Ended | Learned,
    source: str | None,
) -> bool:
    match record:
        case KvEvents():
            _fold_events(worker.cache, record)
        case TrustChanged():
            worker.trust = record
        case LoadSample():
            worker.load = record
        case Learned():
            if worker.learned == record:
                return False
            worker.learned, worker.learned_by = record, source
        case Granted():
            if record.request in worker.grants:
                return False
            worker.grants[record.request] = _Grant(record, source)
        case TokensSeen():
            return _fold_tokens(worker, record)
        case Ended():
            return worker.grants.pop(record.request, None) is not None
    return True


def _fold_tokens(worker: _Worker, record: TokensSeen) -> bool:
    grant = worker.grants.get(record.request)
    if grant is None or (grant.seen is not None and grant.seen.tokens >= record.tokens):
        return False
    grant.seen = record
    return True


def _fold_events(cache: _Cache, batch: KvEvents) -> None:
    cache.sequence = batch.sequence
    cache.engine_time = batch.engine_time
    cache.received_at = batch.received_at
    for event in batch.events:
        match event:
            case Stored():
                cache.tiers.setdefault(event.tier, Residency()).add(event.keys)
            case Removed():
                if event.tier in cache.tiers:
                    cache.tiers[event.tier].remove(event.keys)
            case Cleared():
                if event.tier is None:
                    cache.tiers.clear()
                else:
                    cache.tiers.pop(event.tier, None)


def _restate(worker: _Worker) -> Iterator[tuple[str | None, Record]]:
    yield None, worker.seen
    yield None, worker.trust or _untold(worker.seen.worker)
    yield None, _restate_cache(worker.seen.worker, worker.cache)
    if worker.load is not None:
        yield None, worker.load
    if worker.learned is not None:
        yield worker.learned_by, worker.learned
    for grant in worker.grants.values():
        yield grant.source, grant.granted
        if grant.seen is not None:
            yield grant.source, grant.seen


def _restate_cache(worker: WorkerId, cache: _Cache) -> KvEvents:
    return KvEvents(
        worker=worker,
        sequence=cache.sequence,
        engine_time=cache.engine_time,
        received_at=cache.received_at,
        events=(Cleared(), *_blocks(cache)),
    )


def _untold(worker: WorkerId) -> TrustChanged:
    return TrustChanged(worker=worker, trust=Trust.BLIND, reason="nothing heard of its cache yet")


def _blocks(cache: _Cache) -> Iterator[Stored]:
    """Store every block once, then those with a second copy once more, and so on."""
    for tier, residency in cache.tiers.items():
        keys, copies = residency.copies()
        for copy in range(int(np.max(copies, initial=0))):
            yield Stored(keys=keys[copies > copy], tier=tier)
