"""Which of several operators leads: the one that holds a Lease.

A holder renews its Lease. Others take it over once they have seen it unchanged for as long as it
promises to hold; only differences of one's own clock are used, so clocks need not agree. A holder
stops leading well before that, counted from the moment before it last asked to renew. So there is
never a moment with two leaders, whatever is delayed or lost; there can be one with none.

Only a leader may write. But what it serves goes on until it reads that another holds the Lease
(docs/adr/0035-serve-until-another-leads.md): an API server that is slow or away takes no stream
from the pickers.

A holder that stops gives the Lease back, and the next one need not wait. One that is killed is
succeeded `duration + look` after it last renewed at the latest, and the time that the API server
takes: whoever waits wakes when the Lease that it saw runs out.

Source: Kubernetes coordination.k8s.io/v1 Lease; client-go tools/leaderelection, for its fields.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from leadsman.units import Seconds
from msgspec import Struct

from leadsman_operator.kube import NO_ANSWER, Api, ApiError
from leadsman_operator.objects import Key

log = logging.getLogger(__name__)

_ABSENT: Final = 404
_CONFLICT: Final = 409
_SOON: Final[Seconds] = 0.001


class LeaseSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a Lease says."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """duration: how long a Lease holds; leading: how long its holder leads without renewing it;
    renew: how often it is renewed, or those of seats are looked at; look: how often whoever only
    waits to lead looks at it.
    """

    duration: int = 3
    leading: Seconds = 2.2
    renew: Seconds = 0.6
    look: Seconds = 0.2


@dataclass(slots=True, kw_only=True)
class Candidate:
    """One that wants to lead; knows no I/O."""

    name: str
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    _seen: LeaseSpec | None = None
    _seen_at: Seconds = 0.0
    _held_at: Seconds | None = None

    @property
    def is_succeeded(self) -> bool:
        """Whether another held the Lease when it was last read."""
        return self._seen is not None and self._seen.holder_identity not in (None, "", self.name)

    def claim(self, lease: LeaseSpec | None, now: Seconds, wall: str) -> LeaseSpec | None:
        """Say what to write, having just read `lease` (None: there is none); None: nothing."""
        if lease is None:
            return self._claimed(LeaseSpec(), wall)
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        holder = lease.holder_identity
        is_free = not holder or self._lasts(lease, now) <= 0
        return self._claimed(lease, wall) if is_free or holder == self.name else None

    def held(self, asked_at: Seconds) -> None:
        """Note that what was claimed was written; asked_at: before the Lease was even read."""
        self._held_at, self._seen = asked_at, None

    def leads(self, now: Seconds) -> bool:
        """Say whether it leads."""
        return self.left(now) > 0

    def left(self, now: Seconds) -> Seconds:
        """Say for how much longer it leads, if nothing more is heard; 0 where it does not."""
        held = self._held_at
        return 0.0 if held is None else max(0.0, held + self.timing.leading - now)

    def pause(self, now: Seconds) -> Seconds:
        """Say how long nothing changes but by what others write; then read again."""
        left = self.left(now)
        if left > 0:
            return min(self.timing.renew, left)
        lasts = self._lasts(self._seen, now) if self._seen else 0.0
        return min(self.timing.look, max(lasts, _SOON)) if lasts > 0 else self.timing.look

    def resign(self, lease: LeaseSpec) -> LeaseSpec | None:
        """Say what to write to give the Lease back; None where it is another's."""
        self._held_at = None
        if lease.holder_identity != self.name:
            return None
        return msgspec.structs.replace(lease, holder_identity="", lease_duration_seconds=1)

    def _lasts(self, seen: LeaseSpec, now: Seconds) -> Seconds:
        """Say for how much longer another's Lease holds, if it is not renewed."""
        return (seen.lease_duration_seconds or 0) - (now - self._seen_at)

    def _claimed(self, lease: LeaseSpec, wall: str) -> LeaseSpec:
        is_new = lease.holder_identity != self.name
        return LeaseSpec(
            holder_identity=self.name,
            lease_duration_seconds=self.timing.duration,
            acquire_time=wall if is_new else lease.acquire_time,
            renew_time=wall,
            lease_transitions=(lease.lease_transitions or 0) + is_new,
        )


class LeaseObject(Struct):
    """A Lease, with all that its metadata says."""

    metadata: dict[str, Any]
    spec: LeaseSpec = LeaseSpec()


@dataclass(slots=True, kw_only=True)
class Election:
    """Runs what only a leader may run, whenever this process leads."""

    api: Api
    lease: Key
    candidate: Candidate
    clock: Callable[[], Seconds] = time.monotonic

    def leads(self) -> bool:
        """Whether this process leads, and so may write."""
        return self.candidate.leads(self.clock())

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Stand for election until cancelled; `lead` is cancelled once another holds the Lease."""
        leading: asyncio.Task[None] | None = None
        try:
            while True:
                await self._attempt()
                if leading is None and self.leads():
                    log.info("leading", extra={"lease": str(self.lease)})
                    leading = asyncio.create_task(_run(lead))
                elif leading is not None and self.candidate.is_succeeded:
                    log.warning("no longer leading", extra={"lease": str(self.lease)})
                    await _end(leading)
                    leading = None
                if leading is not None and leading.done():
                    leading.result()
                await asyncio.sleep(self.candidate.pause(self.clock()))
        finally:
            await _end(leading)
            await self._resign()

    async def _attempt(self) -> None:
        asked_at = self.clock()
        try:
            async with asyncio.timeout(self.candidate.timing.leading / 3):
                found = await self._read()
                spec = None if found is None else found.spec
                claim = self.candidate.claim(spec, self.clock(), wall())
                if claim is not None:
                    await self._write(found, claim)
                    self.candidate.held(asked_at)
        except ApiError as error:
            if error.status != _CONFLICT:
                log.warning("lease not renewed", extra={"error": str(error)})
        except NO_ANSWER as error:
            log.warning("lease not renewed", extra={"error": str(error) or repr(error)})

    async def _read(self) -> LeaseObject | None:
        try:
            said = await self.api.get(lease_path(self.lease.namespace, self.lease.name))
        except ApiError as error:
            if error.status == _ABSENT:
                return None
            raise
        return msgspec.json.decode(said, type=LeaseObject)

    async def _write(self, found: LeaseObject | None, spec: LeaseSpec) -> None:
        """Write what is claimed; ApiError, 409, where another was quicker."""
        metadata = found.metadata if found else {"name": self.lease.name}
        await write_lease(self.api, self.lease, metadata, spec)

    async def _resign(self) -> None:
        try:
            async with asyncio.timeout(self.candidate.timing.leading / 3):
                found = await self._read()
                given_back = found and self.candidate.resign(found.spec)
                if given_back:
                    await self._write(found, given_back)
        except (ApiError, *NO_ANSWER) as error:
            log.warning("lease not given back", extra={"error": str(error) or repr(error)})


async def write_lease(api: Api, lease: Key, metadata: dict[str, Any], spec: LeaseSpec) -> None:
    """Write a Lease over the one that the metadata was read of, or create it.

    Raises ApiError, 409, where another was quicker, and NO_ANSWER's.
    """
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": msgspec.to_builtins(spec),
    }
    if "resourceVersion" in metadata:
        await api.replace(lease_path(lease.namespace, lease.name), body)
    else:
        await api.create(lease_path(lease.namespace), body)


def lease_path(namespace: str, name: str | None = None) -> str:
    """Give the path of a Lease, or of all in a namespace."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return path if name is None else f"{path}/{name}"


def wall() -> str:
    """Say what time it is, as Leases have it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


async def _run(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
