"""Two ends of a log in Redis: a picker's, and that of whoever owns collectors.

Who keeps the log short is `redis_keeper`. All of them retry by themselves and never make their
owner wait. While Redis is away pickers decide on what they have, and tell afterwards what they did;
an owner of collectors keeps what it has to say up to a bound, and beyond it says its whole state
again instead.
"""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from leadsman.declared import Declared
from leadsman.records import Record, WorkerGone
from leadsman.units import Seconds, WorkerId
from redis.exceptions import RedisError

from leadsman_fleet.codec import weight
from leadsman_fleet.follower import Part, Phase
from leadsman_fleet.redis_log import (
    Batch,
    Entries,
    RedisLog,
    Snapshot,
    Tail,
    heed_cancellation,
)
from leadsman_fleet.replica import Replica
from leadsman_fleet.state import FleetState
from leadsman_fleet.waiting import happens

log = logging.getLogger(__name__)
PART_BYTES: Final = 1024 * 1024
_LONGEST_PAUSE: Final[Seconds] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTiming:
    """linger: how long what is to be said waits for company; grace: how long a replica may be
    silent before its grants are ended; lease: how long a keeper may be; entries: how many a
    snapshot stands behind at most; backlog: bytes an owner keeps while Redis is away.
    """

    linger: Seconds = 0.01
    grace: Seconds = 30.0
    lease: Seconds = 5.0
    entries: int = 10_000
    backlog: int = 64 * 1024 * 1024
    patience: Seconds = 1.0


async def again_and_again(attempt: Callable[[], Awaitable[None]], what: str) -> None:
    """Attempt for ever; an attempt that Redis fails is made again after a pause."""
    pause = 0.05
    while True:
        began = time.monotonic()
        heed_cancellation()
        try:
            await attempt()
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("redis failed", extra={"what": what, "error": str(error) or repr(error)})
        pause = 0.05 if time.monotonic() - began > _LONGEST_PAUSE else pause * 2
        await asyncio.sleep(min(pause, _LONGEST_PAUSE) * random.uniform(0.5, 1.0))


class RedisReplica(Replica):
    """A picker's end. `name` is drawn anew by every process."""

    def __init__(
        self,
        redis_log: RedisLog,
        name: str,
        on_record: Callable[[Record], None],
        *,
        timing: RedisTiming | None = None,
    ) -> None:
        super().__init__(on_record, clock=redis_log.time.clock)
        self._log = redis_log
        self._name = name
        self._timing = timing or RedisTiming()
        self._tail = Tail(redis_log, patience=self._timing.patience)
        self._number = 0
        self._alive_until: Seconds | None = None

    async def run(self) -> None:
        """Follow and report until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(again_and_again(self._follow, "follow"), name="fleet log")
                tasks.create_task(again_and_again(self._tell, "report"), name="fleet reports")
        finally:
            await self._log.close()

    async def _follow(self) -> None:
        self._alive_until = None
        is_first = True
        while True:
            await self._stay_alive()
            read = await self._tail.read()
            now = self._clock()
            if read is None:
                continue
            self._heard_at = now
            if is_first:
                self._tell_again(None)
            is_first = False
            self._take(read, now)

    def _take(self, read: Entries | Snapshot, now: Seconds) -> None:
        records: list[Record] = []
        for batch in read.batches:
            self.skipped += batch.skipped
            if batch.declared is not None:
                self.declared = batch.declared
            if batch.source != self._name:
                records += batch.records
        phase = Phase.LIVE
        if isinstance(read, Snapshot):
            phase, self._alive_until = Phase.SNAPSHOT_END, None
        epoch = self._tail.epoch or ""
        self._take_part(Part(epoch=epoch, sequence=0, phase=phase, records=tuple(records)), now)
        if isinstance(read, Entries) and read.is_all:
            self.synced.set()

    async def _stay_alive(self) -> None:
        now, grace = self._clock(), self._timing.grace
        if self._alive_until is None or now > self._alive_until - grace / 2:
            key = self._log.names[f"replica:{self._name}"]
            await self._log.redis.set(key, b"1", px=int(grace * 1000))
            self._alive_until = now + grace

    async def _tell(self) -> None:
        await self._log.time.measure(self._log.redis)
        await self._tell_each(self._append, self._timing.linger)

    async def _append(self, reports: Sequence[Record]) -> None:
        batch = Batch(source=self._name, records=tuple(reports))
        entry = self._log.packed(batch, self._name, self._number + 1)
        await self._log.redis.xadd(self._log.names["log"], entry)
        self._number += 1
        heed_cancellation()


class RedisPublisher:
    """The end of whoever owns collectors: says what they find, and what is declared."""

    def __init__(self, redis_log: RedisLog, *, timing: RedisTiming | None = None) -> None:
        self.restated = 0
        self._log = redis_log
        self._timing = timing or RedisTiming()
        self._writer = uuid.uuid4().hex
        self._state = FleetState()
        self._declared: Declared | None = None
        self._pending: list[Record] = []
        self._waiting_bytes = 0
        self._sending: Batch | None = None
        self._number = 0
        self._epoch: bytes | None = None
        self._told: set[WorkerId] = set()
        self._has_looked = False
        self._is_behind = False
        self._is_declared = True
        self._has_news = asyncio.Event()
        self._is_idle = asyncio.Event()

    def publish(self, record: Record) -> None:
        """Say a record, soon. Never blocks."""
        if not self._state.apply(record):
            return
        self._waiting_bytes += weight(record)
        if self._waiting_bytes > self._timing.backlog:
            self._is_behind = True
            self._pending.clear()
            self._waiting_bytes = 0
        if not self._is_behind:
            self._pending.append(record)
        self._has_news.set()

    def declare(self, declared: Declared | None) -> None:
        """Say what is declared of the pool from now on; None: another does, from now on."""
        if declared != self._declared:
            self._declared, self._is_declared = declared, declared is None
            self._has_news.set()

    async def let_go(self, workers: Collection[WorkerId]) -> None:
        """Say nothing more of these workers: another will. They are not gone.

        What was not said yet is dropped, and what is on its way is waited for, a while.
        """
        for worker in workers:
            self._state.apply(WorkerGone(worker=worker))
        self._told.difference_update(workers)
        self._pending = [one for one in self._pending if one.worker not in workers]
        if self._sending is not None:
            kept = tuple(one for one in self._sending.records if one.worker not in workers)
            self._sending = replace(self._sending, records=kept)
            await happens(self._is_idle, within=self._timing.patience)

    async def run(self) -> None:
        """Say what there is until cancelled."""
        await again_and_again(self._say, "publish")

    async def _say(self) -> None:
        await self._log.time.measure(self._log.redis)
        while True:
            await self._look_at_epoch()
            if self._sending is None and await happens(
                self._has_news, within=self._timing.patience
            ):
                await asyncio.sleep(self._timing.linger)
                self._sending = self._next()
            if self._sending is not None:
                self._is_idle.clear()
                entry = self._log.packed(self._sending, self._writer, self._number)
                await self._log.redis.xadd(self._log.names["log"], entry)
                heed_cancellation()
                self._sending, self._told = None, set(self._state.workers())
            self._is_idle.set()

    async def _look_at_epoch(self) -> None:
        """Say all of the state again where a life of the log began that may not know it."""
        epoch = await self._log.redis.hget(self._log.names["snapshot"], "epoch")
        heed_cancellation()
        if self._has_looked and epoch != self._epoch:
            self._is_behind, self._is_declared = True, self._declared is None
            self._has_news.set()
        self._epoch, self._has_looked = epoch, True

    def _next(self) -> Batch:
        """Take what is to be said next; all of the state where too much was missed."""
        self._has_news.clear()
        if self._is_behind:
            self._restate()
        taken, size = 0, 0
        for record in self._pending:
            taken, size = taken + 1, size + weight(record)
            if size >= PART_BYTES:
                break
        records, self._pending = tuple(self._pending[:taken]), self._pending[taken:]
        self._waiting_bytes = max(0, self._waiting_bytes - size)
        if self._pending:
            self._has_news.set()
        declared = None if self._is_declared else self._declared
        self._is_declared = True
        self._number += 1
        return Batch(source=None, records=records, declared=declared)

    def _restate(self) -> None:
        workers = self._state.workers()
        gone = [WorkerGone(worker=worker) for worker in sorted(self._told - set(workers))]
        self._pending = [*gone, *self._state.snapshot()]
        self._waiting_bytes = sum(map(weight, self._pending))
        self._is_behind = False
        self.restated += 1
