"""One pool's records in a Redis or Valkey stream: an order for all, and no owner that has to live.

Whoever has something to say appends a batch to the stream; whoever follows reads behind its last
entry. A snapshot stands for all entries up to one; the stream is cut behind the snapshot before
that, so a reader that was away for long finds that its place is below the floor, and starts again
from the snapshot. The snapshot also names the epoch, one life of the stream: where it is missing,
Redis has lost everything, and readers keep what they have until somebody founds the next.

A batch whose answer was lost is sent again. Each writer numbers its batches, so the second is
known for what it is: without that a stored block would count as two copies.

Times are on the clock of the Redis server: each end measures how much that differs from its own.

Not covered: a Redis that comes back without its last second (appendonly everysec). Followers have
what newcomers then lack, until those blocks leave or the worker is told anew.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leadsman.declared import Declared
from leadsman.records import Record
from leadsman.units import Seconds
from redis.asyncio import Redis

from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.codec import WIRE_VERSION, decode, encode, shifted
from leadsman_fleet.declared_codec import decode_declared, encode_declared

START: Final = b"0-0"
_AT_ONCE: Final = 500
"""Entries that one read gives."""
_MEASURE_EVERY: Final[Seconds] = 30.0
_TRIES: Final = 5
_SILENCE: Final[Seconds] = 5.0
"""Well above the second that a read waits for what is new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the keys of one pool are called; the braces keep them on one node of a cluster."""

    pool: str
    prefix: str = "leadsman"

    def __getitem__(self, what: str) -> str:
        return f"{self.prefix}:{{{self.pool}}}:{what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records that one replica reported (source), or that were collected (None)."""

    source: str | None
    records: tuple[Record, ...] = ()
    declared: Declared | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """What was appended since the last read; empty where nothing was, for a while.

    is_all: whether that is all that there was to read.
    """

    batches: list[Batch]
    is_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything up to now, to start from."""

    epoch: str
    batches: list[Batch]


@dataclass(slots=True, kw_only=True)
class ServerClock:
    """How much more the server's clock reads than ours, measured again every so often.

    The answer of the quickest of a few questions is off by half its round trip at most.
    """

    clock: Callable[[], Seconds] = time.monotonic
    offset: Seconds = 0.0
    _measured_at: Seconds | None = None

    async def measure(self, redis: Any) -> None:
        """Measure, unless that was done lately."""
        now = self.clock()
        if self._measured_at is not None and now - self._measured_at < _MEASURE_EVERY:
            return
        found = []
        for _ in range(_TRIES):
            asked = self.clock()
            seconds, micros = await redis.time()
            heed_cancellation()
            answered = self.clock()
            found.append((answered - asked, seconds + micros / 1e6 - (asked + answered) / 2))
        self.offset = min(found)[1]
        self._measured_at = now


@dataclass(slots=True, kw_only=True)
class RedisLog:
    """One pool's stream, as every end has it. redis: a client by `connected`."""

    redis: Any
    names: Names
    time: ServerClock = field(default_factory=ServerClock)

    async def close(self) -> None:
        """Give all connections back, those too whose use was cut off."""
        await self.redis.aclose()
        await self.redis.connection_pool.disconnect()

    def packed(self, batch: Batch, writer: str, number: int) -> dict[bytes, bytes]:
        """Make an entry of a batch; sent again it has to have the same number."""
        fields = {b"w": writer.encode(), b"n": b"%d" % number, b"r": self.written(batch)}
        if batch.declared is not None:
            fields[b"d"] = encode_declared(batch.declared).SerializeToString()
        return fields

    def written(self, batch: Batch) -> bytes:
        """Put a batch's records into a message, their times on the server's clock."""
        records = [encode(shifted(one, self.time.offset)) for one in batch.records]
        message = pb.ReportRequest(
            version=WIRE_VERSION, replica=batch.source or "", pool=self.names.pool, records=records
        )
        return bytes(message.SerializeToString())

    def read(self, raw: bytes, declared: bytes | None = None) -> Batch:
        """Take a batch out of a message, its times on our clock."""
        message = pb.ReportRequest.FromString(raw)
        decoded = decode(message.records)
        said, unknown = None, 0
        if declared is not None:
            said, unknown = decode_declared(pb.Declared.FromString(declared))
        return Batch(
            source=message.replica or None,
            records=tuple(shifted(one, -self.time.offset) for one in decoded.records),
            declared=said,
            skipped=decoded.skipped + unknown,
        )


def connected(url: str) -> Any:
    """Make the client of a server: `redis://`, `rediss://` or `unix://`, as redis-py has it.

    Nothing is asked yet. Errors are the caller's, who tries again; a server that says nothing for
    `_SILENCE` is one. Raises ValueError where the URL is none.
    """
    return Redis.from_url(
        url,
        protocol=2,
        health_check_interval=10,
        socket_connect_timeout=2,
        socket_timeout=_SILENCE,
    )


def heed_cancellation() -> None:
    """Raise the cancellation of this task that was swallowed on the way.

    redis-py waits by asyncio.wait_for, which in Python 3.11 prefers an answer to a cancellation.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Tail:
    """A reader's place in the log. After an error just read on."""

    def __init__(self, log: RedisLog, *, patience: Seconds = 1.0) -> None:
        self.position = START
        self.epoch: str | None = None
        self.numbers: dict[bytes, int] = {}
        self._is_behind = False
        self._log = log
        self._patience = patience

    async def read(self) -> Entries | Snapshot | None:
        """Wait for what is new, `patience` long; None where nobody has founded an epoch.

        Behind a snapshot or a full read nothing is waited for: there may be more.
        """
        log = self._log
        await log.time.measure(log.redis)
        if self.epoch is None:
            return await self._start()
        wait = None if self._is_behind else int(self._patience * 1000)
        place = {log.names["log"]: self.position}
        found = await log.redis.xread(place, count=_AT_ONCE, block=wait)
        heed_cancellation()
        epoch, floor = await log.redis.hmget(log.names["snapshot"], ["epoch", "floor"])
        heed_cancellation()
        if epoch is None or epoch.decode() != self.epoch or _place(self.position) < _place(floor):
            return await self._start()
        entries = found[0][1] if found else []
        self._is_behind = len(entries) >= _AT_ONCE
        return Entries(batches=self._new(entries), is_all=not self._is_behind)

    async def whole_log(self) -> Entries:
        """Read all entries that there are, as a log without an epoch is read."""
        self.position = START
        entries = await self._log.redis.xrange(self._log.names["log"])
        return Entries(batches=self._new(entries), is_all=True)

    async def _start(self) -> Snapshot | None:
        held: dict[bytes, bytes] = await self._log.redis.hgetall(self._log.names["snapshot"])
        if b"epoch" not in held:
            await asyncio.sleep(self._patience / 10)
            return None
        self.epoch, self.position = held[b"epoch"].decode(), held[b"upto"]
        self._is_behind = True
        self.numbers = {
            name[2:]: int(number) for name, number in held.items() if name.startswith(b"w:")
        }
        parts = [held[b"p:%d" % place] for place in range(int(held[b"parts"]))]
        batches = [self._log.read(part) for part in parts]
        if b"d" in held:
            batches.append(self._log.read(b"", held[b"d"]))
        return Snapshot(epoch=self.epoch, batches=batches)

    def _new(self, entries: Iterable[tuple[bytes, Mapping[bytes, bytes]]]) -> list[Batch]:
        """Read entries, but for those that were sent twice."""
        batches = []
        for place, fields in entries:
            self.position = place
            writer, number = fields[b"w"], int(fields[b"n"])
            if number > self.numbers.get(writer, 0):
                self.numbers[writer] = number
                batches.append(self._log.read(fields[b"r"], fields.get(b"d")))
        return batches


def snapshot_fields(
    log: RedisLog, told: Sequence[Batch], *, declared: Declared | None
) -> dict[str, Any]:
    """Write the parts of a snapshot."""
    fields: dict[str, Any] = {f"p:{place}": log.written(one) for place, one in enumerate(told)}
    fields["parts"] = len(told)
    if declared is not None:
        fields["d"] = encode_declared(declared).SerializeToString()
    return fields


def _place(entry: bytes) -> tuple[int, int]:
    """Order entries' names: milliseconds and number."""
    millis, _, number = entry.partition(b"-")
    return int(millis), int(number)
