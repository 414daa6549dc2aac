"""Who keeps a log in Redis short: one of many, which holds a lease there.

It folds the log, writes what that adds up to as a snapshot, cuts the log behind the snapshot before
the last, and ends the grants of replicas that are gone. Where Redis has lost everything it founds
the next epoch.
"""

import asyncio
import logging
import uuid
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from leadsman.declared import Declared
from leadsman.records import Ended, Learned, Outcome, Record, WorkerGone
from leadsman.units import Seconds, WorkerId

from leadsman_fleet.codec import weight
from leadsman_fleet.redis_ends import PART_BYTES, RedisTiming, again_and_again
from leadsman_fleet.redis_log import (
    START,
    Batch,
    Entries,
    RedisLog,
    Snapshot,
    Tail,
    heed_cancellation,
    snapshot_fields,
)
from leadsman_fleet.state import FleetState

log = logging.getLogger(__name__)
_AT_ONCE: Final[Seconds] = 0.001


class RedisKeeper:
    """Keeps the log short: one of many holds the lease, writes snapshots, and ends the grants of
    replicas that are gone.
    """

    def __init__(self, redis_log: RedisLog, *, timing: RedisTiming | None = None) -> None:
        self._log = redis_log
        self._timing = timing or RedisTiming()
        self._name = uuid.uuid4().hex
        self._tail = Tail(redis_log, patience=self._timing.patience)
        self._state = FleetState()
        self._declared: Declared | None = None
        self._kept = START
        self._read = 0
        self._number = 0
        self._numbers_before: dict[bytes, int] = {}
        self._looked_at: Seconds | None = None
        self._missing: set[str] = set()

    def workers(self) -> list[WorkerId]:
        """List the workers that the log knows, as far as this keeper has read."""
        return self._state.workers()

    def stores(self) -> list[WorkerId]:
        """List the shared stores that the log knows, as far as this keeper has read."""
        return self._state.stores()

    def lessons(self) -> list[Learned]:
        """List what was learned of each worker last, as far as this keeper has read."""
        return self._state.lessons()

    async def run(self) -> None:
        """Keep, whenever the lease can be had, until cancelled."""
        await again_and_again(self._keep, "keep")

    async def retain(self, workers: Collection[WorkerId]) -> None:
        """Say of every other worker that it is gone: nobody who could is there any more."""
        gone = [one for one in self._state.workers() if one not in workers]
        if gone:
            await self._append(None, [WorkerGone(worker=worker) for worker in gone])

    async def _keep(self) -> None:
        while await self._holds_lease():
            heed_cancellation()
            read = await self._tail.read()
            if read is None:
                await self._found()
                continue
            if isinstance(read, Snapshot):
                self._state, self._kept = FleetState(), self._tail.position
            self._fold(read)
            if self._read >= self._timing.entries:
                await self._write(epoch=self._tail.epoch or "", upto=self._tail.position)
            await self._end_orphans()
        await asyncio.sleep(self._timing.lease / 4)

    def _fold(self, read: Entries | Snapshot) -> None:
        self._read += len(read.batches)
        for batch in read.batches:
            self._declared = batch.declared or self._declared
            for record in batch.records:
                self._state.apply(record, batch.source)

    async def _holds_lease(self) -> bool:
        key, lease = self._log.names["keeper"], int(self._timing.lease * 1000)
        redis = self._log.redis
        if await redis.set(key, self._name, px=lease, nx=True):
            return True
        if await redis.get(key) != self._name.encode():
            return False
        return bool(await redis.pexpire(key, lease))

    async def _found(self) -> None:
        """Begin an epoch, with what this keeper still knows of the last.

        It waits a little: owners of collectors notice too, and say their state into the new log,
        so that nobody hears of workers that leave for a moment.
        """
        await asyncio.sleep(self._timing.lease / 4)
        self._kept = START
        self._fold(await self._tail.whole_log())
        await self._write(epoch=uuid.uuid4().hex, upto=self._tail.position)
        self._tail.epoch = None

    async def _write(self, *, epoch: str, upto: bytes) -> None:
        """Write a snapshot and cut the log behind the last one; not if the lease was lost."""
        names = self._log.names
        told = list(_parts(self._state))
        fields = snapshot_fields(self._log, told, declared=self._declared)
        fields |= {"epoch": epoch, "upto": upto, "floor": self._kept}
        numbers = self._tail.numbers
        fields |= {f"w:{writer.decode()}": numbers[writer] for writer in self._fresh_writers()}
        async with self._log.redis.pipeline(transaction=True) as pipe:
            await pipe.watch(names["keeper"])
            if await pipe.get(names["keeper"]) != self._name.encode():
                return
            pipe.multi()
            pipe.delete(names["snapshot"])
            pipe.hset(names["snapshot"], mapping=fields)
            pipe.xtrim(names["log"], minid=self._kept, approximate=False)
            await pipe.execute()
        self._kept, self._read, self._numbers_before = upto, 0, dict(numbers)

    def _fresh_writers(self) -> list[bytes]:
        """List who wrote since the last snapshot: only they may send a batch of before again."""
        numbers, before = self._tail.numbers, self._numbers_before
        return [writer for writer, number in numbers.items() if before.get(writer) != number]

    async def _end_orphans(self) -> None:
        """End the grants of replicas that were not there twice, a while apart."""
        now = self._log.time.clock()
        if self._looked_at is not None and now - self._looked_at < self._timing.grace / 4:
            return
        self._looked_at = now
        missing = {one for one in self._state.sources() if not await self._is_alive(one)}
        for source in missing & self._missing:
            grants = self._state.grants_of(source)
            log.warning("replica is gone", extra={"replica": source, "grants_ended": len(grants)})
            ends = [
                Ended(worker=one.worker, request=one.request, at=now, outcome=Outcome.CUT_OFF)
                for one in grants
            ]
            await self._append(source, ends)
        self._missing = missing

    async def _is_alive(self, replica: str) -> bool:
        return bool(await self._log.redis.exists(self._log.names[f"replica:{replica}"]))

    async def _append(self, source: str | None, records: Sequence[Record]) -> None:
        self._number += 1
        batch = Batch(source=source, records=tuple(records))
        entry = self._log.packed(batch, self._name, self._number)
        await self._log.redis.xadd(self._log.names["log"], entry)


async def read_state(redis_log: RedisLog) -> FleetState:
    """Fold all that the log says now. Raises RedisError and OSError where it cannot be read."""
    tail, state = Tail(redis_log, patience=_AT_ONCE), FleetState()
    while True:
        read = await tail.read()
        if read is None:
            read = await tail.whole_log()
            is_all = True
        else:
            is_all = isinstance(read, Entries) and not read.batches
        if isinstance(read, Snapshot):
            state = FleetState()
        for batch in read.batches:
            for record in batch.records:
                state.apply(record, batch.source)
        if is_all:
            return state


def _parts(state: FleetState) -> Iterator[Batch]:
    """Cut a state into batches of one source each, none much longer than PART_BYTES."""
    records: list[Record] = []
    of: str | None = None
    size = 0
    for source, record in state.told():
        if records and (source != of or size >= PART_BYTES):
            yield Batch(source=of, records=tuple(records))
            records, size = [], 0
        of = source
        records.append(record)
        size += weight(record)
    if records:
        yield Batch(source=of, records=tuple(records))
