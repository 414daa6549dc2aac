"""What a collector is given: an address, how often to ask it, and what surrounds it."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit

import aiohttp
from leadsman.records import KvEvents, Record, WorkerSeen
from leadsman.units import Seconds, WorkerId
from leadsman_engines.block_names import BlockNames
from leadsman_engines.profile import EMPTY_PROFILE, EngineProfile

Publish: TypeAlias = Callable[[Record], None]
Names: TypeAlias = Mapping[str, BlockNames]
Before: TypeAlias = Callable[[str], "Mapping[WorkerId, Past]"]
"""Gives, once, what the log knows of the workers at an address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address that serves an engine's API.

    pod: names whose it is, where that is known: another pod at the same address is another
        endpoint.
    keeps_names: whether its blocks' names are remembered, since a store has its blocks under them.
    """

    url: str
    profile: EngineProfile = EMPTY_PROFILE
    pod: str | None = None
    keeps_names: bool = False

    @property
    def address(self) -> str:
        """`host:port` of the URL."""
        host, port = self._place
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def resolve(self) -> str:
        """Give `ip:port`, which is what a gateway sends to. OSError where there is none."""
        host, port = self._place
        found = await asyncio.get_running_loop().getaddrinfo(host, port)
        ip = str(min(found, key=lambda one: one[0])[4][0])
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    @property
    def _place(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What the log knows of a worker that another collector followed before. held: its cache."""

    seen: WorkerSeen
    held: KvEvents


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorTiming:
    """How often an engine is asked. poll: load, while busy; idle_poll: while nothing happens;
    health: readiness; recheck: all settings; retry: the longest pause before asking again.
    """

    poll: Seconds = 0.5
    idle_poll: Seconds = 2.0
    health: Seconds = 5.0
    recheck: Seconds = 30.0
    retry: Seconds = 5.0


def new_names() -> Names:
    """Remember nothing yet."""
    return defaultdict(BlockNames)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all collectors share. secret: names this deployment's block keys.

    before: where the log is older than the collectors; None: it begins with them.
    names: of blocks, by model.
    """

    http: aiohttp.ClientSession
    publish: Publish
    clock: Callable[[], Seconds]
    secret: bytes = b""
    timing: CollectorTiming = CollectorTiming()
    before: Before | None = None
    names: Names = field(default_factory=new_names)
