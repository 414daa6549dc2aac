"""The seats of several operators, as Leases on the API server: `seats.py` says what they mean."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from leadsman.units import Seconds
from msgspec import Struct

from leadsman_operator.kube import NO_ANSWER, Api, ApiError
from leadsman_operator.lease import LeaseObject, lease_path, wall, write_lease
from leadsman_operator.objects import Key
from leadsman_operator.seats import SEATS, Seat, Shares, Sitter

log = logging.getLogger(__name__)

_CONFLICT: Final = 409
_LEAST_PAUSE: Final[Seconds] = 0.02
_LABEL: Final = "leadsman.dev/seats-of"
_SEES: Final = "leadsman.dev/sees"


class _List(Struct):
    items: list[LeaseObject]


@dataclass(slots=True, kw_only=True)
class Table:
    """One replica at the table. lease: what the seats' Leases are called, before their numbers."""

    api: Api
    lease: Key
    sitter: Sitter
    clock: Callable[[], Seconds] = time.monotonic
    shares: Shares = field(default_factory=Shares)
    _found: dict[int, LeaseObject] = field(default_factory=dict)

    async def run(self, make_way: Callable[[Shares], Awaitable[None]]) -> None:
        """Sit until cancelled.

        make_way: told whenever `shares` changed; what is no longer ours has ended when it returns.
        """
        try:
            while True:
                try:
                    await self._attempt(make_way)
                except ApiError as error:
                    if error.status != _CONFLICT:
                        log.warning("seat not held", extra={"error": str(error)})
                except NO_ANSWER as error:
                    log.warning("seat not held", extra={"error": str(error) or repr(error)})
                await self._share(make_way)
                await asyncio.sleep(max(_LEAST_PAUSE, self.sitter.pause(self.clock())))
        finally:
            self.shares = Shares()
            await make_way(self.shares)
            await self._resign()

    async def _attempt(self, make_way: Callable[[Shares], Awaitable[None]]) -> None:
        asked_at = self.clock()
        patience = self.sitter.timing.leading / 3
        async with asyncio.timeout(patience):
            self.sitter.read(await self._read(), self.clock())
        await self._share(make_way)
        claim = self.sitter.claim(self.clock(), wall())
        if claim is None:
            log.warning("no seat is free", extra={"seats": SEATS})
            return
        async with asyncio.timeout(patience):
            await self._write(*claim)
        self.sitter.written(claim[0], asked_at=asked_at, now=self.clock())

    async def _share(self, make_way: Callable[[Shares], Awaitable[None]]) -> None:
        shares = self.sitter.shares(self.clock())
        if shares != self.shares:
            self.shares = shares
            log.info("shares", extra={"seat": shares.mine, "others": sorted(shares.taken)})
            await make_way(shares)

    async def _read(self) -> Mapping[int, Seat]:
        where = {"labelSelector": f"{_LABEL}={self.lease.name}"}
        said = await self.api.get(lease_path(self.lease.namespace), where)
        leases = msgspec.json.decode(said, type=_List).items
        self._found = {int(one.metadata["name"].rpartition("-")[2]): one for one in leases}
        return {seat: _seat(lease) for seat, lease in self._found.items()}

    async def _write(self, seat: int, said: Seat) -> None:
        name = Key(self.lease.namespace, f"{self.lease.name}-{seat}")
        found = self._found.get(seat)
        metadata: dict[str, Any] = dict(found.metadata) if found else {"name": name.name}
        for what, key, value in (
            ("labels", _LABEL, self.lease.name),
            ("annotations", _SEES, ",".join(sorted(said.sees))),
        ):
            metadata[what] = (metadata.get(what) or {}) | {key: value}
        await write_lease(self.api, name, metadata, said.spec)

    async def _resign(self) -> None:
        given_back = self.sitter.resign()
        if given_back is None:
            return
        try:
            async with asyncio.timeout(self.sitter.timing.leading / 3):
                await self._read()
                await self._write(*given_back)
        except (ApiError, *NO_ANSWER) as error:
            log.warning("seat not given back", extra={"error": str(error) or repr(error)})


def _seat(lease: LeaseObject) -> Seat:
    sees = (lease.metadata.get("annotations") or {}).get(_SEES, "")
    return Seat(spec=lease.spec, sees=frozenset(filter(None, sees.split(","))))
