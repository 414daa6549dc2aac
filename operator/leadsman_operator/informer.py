"""Keeps all objects of one kind, as they are on the API server.

List, then watch from there; whenever the watch is lost, go on from its last version, and where the
server does not know that version any more, list again. A list replaces everything: what was
deleted while nobody listened is gone after it. So what is kept may be old, and is never wrong
for longer than the API server is away.

A watch can fall silent without an end (a connection that a firewall dropped). So the server is
told to end each, at a random time within bounds, and one that says nothing for longer is given up:
the loop turns at least that often, and `turned_at` says when it last did.

A kind that the API server does not have yet has no objects; it is asked for again.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from leadsman.units import Seconds
from msgspec import Raw, Struct

from leadsman_operator.kube import NO_ANSWER, Api, ApiError
from leadsman_operator.objects import Key, Kind, Object

log = logging.getLogger(__name__)

_PAGE: Final = "500"
_GONE: Final = 410
_ABSENT: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """watch: how long one watch lasts at most; it is ended at half of that at the earliest.
    slack: how much later than that it is given up; retry: the longest pause between attempts;
    absent: how often a kind that is not there is asked for.
    """

    watch: Seconds = 60.0
    slack: Seconds = 15.0
    retry: Seconds = 10.0
    absent: Seconds = 10.0

    @property
    def turn(self) -> Seconds:
        """Give the longest time between two turns of an informer that is well."""
        return self.watch + self.slack + self.retry


class _ListMeta(Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(Struct):
    metadata: _ListMeta
    items: list[Raw]


class _Event(Struct):
    type: str
    object: Raw


class _Version(Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(Struct):
    metadata: _Version = msgspec.field(default_factory=_Version)
    code: int | None = None
    message: str = ""


@dataclass(slots=True, kw_only=True)
class Informer:
    """The objects of one kind in one namespace; None: in all. on_change is called after any."""

    api: Api
    kind: Kind
    namespace: str | None
    on_change: Callable[[], None]
    timing: WatchTiming = field(default_factory=WatchTiming)
    clock: Callable[[], Seconds] = time.monotonic
    items: dict[Key, Object] = field(default_factory=dict)
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    turned_at: Seconds = field(init=False)
    heard_at: Seconds | None = None

    def __post_init__(self) -> None:
        self.turned_at = self.clock()

    async def run(self) -> None:
        """Follow until cancelled."""
        pause, version = 0.1, None
        while True:
            self.turned_at = self.clock()
            try:
                version = version or await self._list()
                version = await self._watch(version)
                pause = 0.1
            except ApiError as error:
                version = None
                if error.status == _GONE:
                    continue
                pause = self._complain(error, pause)
            except NO_ANSWER as error:
                pause = self._complain(error, pause)
            else:
                continue
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    def _complain(self, error: Exception, pause: Seconds) -> Seconds:
        """Say what is wrong, and give how long to wait before the next attempt, at most."""
        if isinstance(error, ApiError) and error.status == _ABSENT:
            self._replace({})
            return self.timing.absent
        fields = {"kind": self.kind.plural, "error": str(error) or repr(error)}
        log.warning("API server not heard", extra=fields)
        return min(2 * pause, self.timing.retry)

    async def _list(self) -> str:
        """List all, in pages; gives the version that they are of."""
        found: dict[Key, Object] = {}
        following = ""
        path = self.kind.path(self.namespace)
        while True:
            query = {"limit": _PAGE} | ({"continue": following} if following else {})
            page = msgspec.json.decode(await self.api.get(path, query), type=_List)
            found |= self._read(page.items)
            following = page.metadata.continue_
            if not following:
                self._replace(found)
                return page.metadata.resource_version

    def _replace(self, found: dict[Key, Object]) -> None:
        self._heard()
        self.synced.set()
        if found != self.items:
            self.items = found
            self.on_change()

    async def _watch(self, version: str) -> str:
        """Follow from a version until the server ends it; gives the version to go on from."""
        least = int(self.timing.watch / 2)
        lasts = random.randint(least, max(least, int(self.timing.watch)))
        lines = self.api.watch(
            self.kind.path(self.namespace),
            {
                "resourceVersion": version,
                "timeoutSeconds": str(lasts),
                "allowWatchBookmarks": "true",
            },
            silence=lasts + self.timing.slack,
        )
        async for line in lines:
            version = self._take(msgspec.json.decode(line, type=_Event)) or version
        self._heard()
        return version

    def _take(self, event: _Event) -> str:
        """Take one event in; gives the version that it brings."""
        about = msgspec.json.decode(event.object, type=_Versioned)
        if event.type == "ERROR":
            raise ApiError(about.code or 500, about.message)
        self._heard()
        if event.type != "BOOKMARK":
            self._apply(self._read([event.object]), is_gone=event.type == "DELETED")
        return about.metadata.resource_version

    def _apply(self, changed: dict[Key, Object], *, is_gone: bool) -> None:
        for key, item in changed.items():
            before = self.items.pop(key, None)
            if not is_gone:
                self.items[key] = item
            if before != self.items.get(key):
                self.on_change()

    def _read(self, raw: Sequence[Raw]) -> dict[Key, Object]:
        found: dict[Key, Object] = {}
        for one in raw:
            try:
                item: Object = msgspec.json.decode(one, type=self.kind.shape)
            except msgspec.ValidationError as error:
                log.error("object not understood", extra=_named(one) | {"error": str(error)})  # noqa: TRY400  # the object's mistake, not ours
                continue
            found[Key(item.metadata.namespace, item.metadata.name)] = item
        return found

    def _heard(self) -> None:
        self.turned_at = self.heard_at = self.clock()


class _Name(Struct):
    name: str = ""
    namespace: str = ""


class _Named(Struct):
    kind: str = ""
    metadata: _Name = msgspec.field(default_factory=_Name)


def _named(raw: Raw) -> dict[str, str]:
    about = msgspec.json.decode(raw, type=_Named)
    return {"kind": about.kind, "object": f"{about.metadata.namespace}/{about.metadata.name}"}
