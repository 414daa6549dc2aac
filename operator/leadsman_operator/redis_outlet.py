"""One pool's log in Redis, for operators that share its endpoints.

Each replica publishes what its own collectors say. The leader keeps the log, says what is declared,
and writes statuses; for these it needs to know what the others found, which no record says (why an
engine is not followed): each replica leaves that in a key of its own, which outlives it only for
a moment.

A worker whose endpoint left while nobody collected from it would stay for ever. So the leader says
that those are gone which it found twice, a while apart, nowhere in the cluster and in nobody's
share.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping
from typing import Final, TypeVar

import msgspec
from leadsman.declared import Declared
from leadsman.records import Learned, Record, WorkerSeen
from leadsman.units import WorkerId
from leadsman_fleet.redis_ends import RedisPublisher, RedisTiming
from leadsman_fleet.redis_keeper import RedisKeeper, read_state
from leadsman_fleet.redis_log import RedisLog, heed_cancellation
from leadsman_fleet.state import FleetState
from msgspec import Struct
from redis.exceptions import RedisError

from leadsman_operator.collectors import Found
from leadsman_operator.endpoint import Endpoint
from leadsman_operator.pasts import address_of
from leadsman_operator.seats import SEATS
from leadsman_operator.shared_names import NamesStream, SharedNames

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_FOUND_MILLIS: Final = 15_000
_FAILED: Final = (RedisError, OSError, TimeoutError)


class _Said(Struct, frozen=True, array_like=True):
    """What was found of one endpoint, on the wire."""

    url: str
    pod: str | None
    workers: tuple[WorkerSeen, ...]
    problem: str | None


class RedisOutlet:
    """See `SharedOutlet`. Redis that is away costs nothing but time; what is said is said later."""

    def __init__(self, redis_log: RedisLog, *, timing: RedisTiming | None = None) -> None:
        self._log = redis_log
        self._timing = timing
        self._publisher = RedisPublisher(redis_log, timing=timing)
        self._keeper = RedisKeeper(redis_log, timing=timing)
        self._names = NamesStream(redis_log.redis, redis_log.names["names"])
        self._publishing = asyncio.create_task(self._publisher.run(), name="publish")
        self._keeping: asyncio.Task[None] | None = None
        self._declared: Declared | None = None
        self._lost: set[WorkerId] = set()

    def publish(self, record: Record) -> None:
        """See `Outlet`."""
        self._publisher.publish(record)

    def declare(self, declared: Declared) -> None:
        """See `Outlet`; said while this replica leads."""
        self._declared = declared
        if self._keeping is not None:
            self._publisher.declare(declared)

    def lessons(self) -> list[Learned]:
        """See `Outlet`; none where this replica does not lead."""
        return self._keeper.lessons() if self._keeping is not None else []

    def stores(self) -> list[WorkerId]:
        """See `Outlet`; none where this replica does not lead."""
        return self._keeper.stores() if self._keeping is not None else []

    async def before(self) -> FleetState | None:
        """See `SharedOutlet`."""
        return await self._asked(read_state(self._log), "read the log")

    async def let_go(self, workers: Collection[WorkerId]) -> None:
        """See `SharedOutlet`."""
        await self._publisher.let_go(workers)

    async def lead(self, *, leads: bool) -> None:
        """See `SharedOutlet`."""
        if leads and self._keeping is None:
            self._keeper = RedisKeeper(self._log, timing=self._timing)
            self._keeping = asyncio.create_task(self._keeper.run(), name="keep")
            self._publisher.declare(self._declared)
        elif not leads and self._keeping is not None:
            keeping, self._keeping = self._keeping, None
            self._publisher.declare(None)
            await _end(keeping)

    async def tell(self, seat: int, found: Mapping[Endpoint, Found]) -> None:
        """See `SharedOutlet`."""
        said = [_Said(one.url, one.pod, its.workers, its.problem) for one, its in found.items()]
        written = msgspec.json.encode(said)
        telling = self._log.redis.set(self._found(seat), written, px=_FOUND_MILLIS)
        await self._asked(telling, "tell findings")

    async def told(self) -> Mapping[tuple[str, str | None], Found]:
        """See `SharedOutlet`. What another version said in words of its own is left out."""
        asking = self._log.redis.mget([self._found(seat) for seat in range(SEATS)])
        parts = await self._asked(asking, "read findings") or ()
        found: dict[tuple[str, str | None], Found] = {}
        for part in filter(None, parts):
            try:
                said = msgspec.json.decode(part, type=list[_Said])
            except msgspec.MsgspecError as error:
                log.warning("findings not understood", extra={"error": str(error)})
                continue
            found |= {
                (one.url, one.pod): Found(workers=one.workers, problem=one.problem) for one in said
            }
        return found

    async def tell_names(self, names: SharedNames) -> None:
        """See `SharedOutlet`."""
        await self._asked(self._names.tell(names), "tell names")

    async def hear_names(self, names: SharedNames) -> None:
        """See `SharedOutlet`."""
        await self._asked(self._names.hear(names), "read names")

    async def retain(self, addresses: Collection[str]) -> None:
        """See `SharedOutlet`."""
        if self._keeping is None:
            return
        collected = {
            worker.worker for one in (await self.told()).values() for worker in one.workers
        }
        lost = {
            worker
            for worker in self._keeper.workers()
            if address_of(worker) not in addresses and worker not in collected
        }
        twice, self._lost = lost & self._lost, lost
        if twice:
            log.warning("workers are nobody's", extra={"workers": sorted(twice)})
            retaining = self._keeper.retain(set(self._keeper.workers()) - twice)
            await self._asked(retaining, "remove workers")

    async def close(self) -> None:
        """See `SharedOutlet`."""
        await self.lead(leads=False)
        await _end(self._publishing)
        await self._log.close()

    async def _asked(self, asking: Awaitable[Answer], what: str) -> Answer | None:
        """Give what Redis answers; None where it does not."""
        try:
            answer = await asking
        except _FAILED as error:
            log.warning("redis failed", extra={"what": what, "error": str(error) or repr(error)})
            return None
        heed_cancellation()
        return answer

    def _found(self, seat: int) -> str:
        return self._log.names[f"found:{seat}"]


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
