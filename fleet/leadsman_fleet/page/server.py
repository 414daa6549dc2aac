"""Serves the page: its files, a stream of what is new, and questions about one request.

Nothing is computed while nobody looks. A tick is made once for all who look at a pool. Whoever
reads too slowly is cut off instead of being waited for: his browser connects again, and gets the
state as it then is. So what waits is bounded, by a few ticks for each of a bounded number of
readers.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web
from leadsman.units import Seconds

from leadsman_fleet.page.access import is_allowed
from leadsman_fleet.page.history import MOST_POINTS, WIDTH, History
from leadsman_fleet.page.looking import Fleet, look
from leadsman_fleet.page.shown import Found, Speed, State, Tick

log = logging.getLogger(__name__)

EVERY: Final[Seconds] = 1.0
MOST_READERS: Final = 32
MOST_WAITING: Final = 8
"""Ticks that a reader may be behind."""
PATIENCE: Final[Seconds] = 10.0
"""For which a reader may take nothing at all."""
STATIC: Final = resources.files("leadsman_fleet.page") / "static"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
_CONNECT: Final = b"retry: 2000\n\n"


@dataclass(slots=True, kw_only=True)
class Site:
    """One pool as it is shown. clock: of the fleet.

    explain: the screen on a decision, as JSON; find: decisions whose id has this in it, the latest
    first. None where nobody decides.
    """

    fleet: Fleet
    clock: Callable[[], Seconds]
    history: History = field(default_factory=History)
    explain: Callable[[str], bytes | None] | None = None
    find: Callable[[str], tuple[Found, ...]] | None = None


@dataclass(slots=True)
class _Pool:
    """Who looks at one pool, and what they were told last."""

    site: Site
    readers: set[asyncio.Queue[bytes | None]] = field(default_factory=set)
    speeds: dict[str, Speed] = field(default_factory=dict)
    ticking: asyncio.Task[None] | None = None


class Page:
    """The page of some pools. sites: by the name of the pool; asked for each question."""

    def __init__(self, sites: Callable[[], Mapping[str, Site]], token: Path | None = None) -> None:
        self._sites = sites
        self._token = token
        self._pools: dict[str, _Pool] = {}
        self._open = 0

    def app(self) -> web.Application:
        """Make what is served."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", _file),
                web.get("/static/{name}", _file),
                web.get("/events", self._events),
                web.get("/explain", self._explain),
                web.get("/requests", self._requests),
            ]
        )
        app.on_shutdown.append(self._stop)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], object]
    ) -> web.StreamResponse:
        if not is_allowed(request.headers.get("Authorization"), self._token):
            challenge = {"WWW-Authenticate": 'Basic realm="Leadsman", charset="UTF-8"'}
            return web.Response(status=401, text="a token is needed\n", headers=challenge)
        answer = await handler(request)  # type: ignore[misc]  # aiohttp's own type of handlers
        if not answer.prepared:
            answer.headers.update(_HEADERS)
        return answer  # type: ignore[no-any-return]

    async def _explain(self, request: web.Request) -> web.Response:
        site = self._site(request)
        told = site.explain(request.query.get("request", "")) if site.explain else None
        if told is None:
            raise web.HTTPNotFound(text="no such decision is remembered\n")
        return web.Response(body=told, content_type="application/json")

    async def _requests(self, request: web.Request) -> web.Response:
        site = self._site(request)
        found = site.find(request.query.get("like", "")) if site.find else ()
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    def _asked(self, request: web.Request) -> tuple[str, Mapping[str, Site]]:
        """Give the pool that is asked about, the first where none is named, and all of them."""
        sites = self._sites()
        name = request.query.get("pool") or min(sites, default="")
        if name not in sites:
            raise web.HTTPNotFound(text="no such pool\n")
        return name, sites

    def _site(self, request: web.Request) -> Site:
        name, sites = self._asked(request)
        return sites[name]

    async def _events(self, request: web.Request) -> web.StreamResponse:
        name, sites = self._asked(request)
        if self._open >= MOST_READERS:
            raise web.HTTPServiceUnavailable(text="too many look already\n")
        self._open += 1
        try:
            return await self._tell(request, name, sites)
        finally:
            self._open -= 1

    async def _tell(
        self, request: web.Request, name: str, sites: Mapping[str, Site]
    ) -> web.StreamResponse:
        answer = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        await answer.prepare(request)
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue(MOST_WAITING)
        pool = self._joined(name, sites[name], waiting)
        told: bytes | None = _CONNECT + _event("state", self._state(name, sites, pool))
        try:
            while told is not None:
                async with asyncio.timeout(PATIENCE):
                    await answer.write(told)
                told = await waiting.get()
        except TimeoutError:  # what is buffered for him goes too
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass
        finally:
            self._left(name, pool, waiting)
        return answer

    def _state(self, name: str, sites: Mapping[str, Site], pool: _Pool) -> State:
        return State(
            pool=name,
            pools=tuple(sorted(sites)),
            decides=pool.site.explain is not None,
            most_points=MOST_POINTS,
            width=WIDTH,
            buckets=pool.site.history.buckets(),
            points=pool.site.history.told(),
            speeds=dict(pool.speeds),
        )

    def _joined(self, name: str, site: Site, waiting: asyncio.Queue[bytes | None]) -> _Pool:
        pool = self._pools.get(name)
        if pool is None or pool.site is not site:
            pool = self._pools[name] = _Pool(site)
        pool.readers.add(waiting)
        if pool.ticking is None:
            site.history.news()  # the state has them
            pool.ticking = asyncio.create_task(_tick(pool), name=f"page of {name}")
        return pool

    def _left(self, name: str, pool: _Pool, waiting: asyncio.Queue[bytes | None]) -> None:
        pool.readers.discard(waiting)
        if not pool.readers and pool.ticking is not None:
            pool.ticking.cancel()
            pool.ticking = None
            if self._pools.get(name) is pool:
                del self._pools[name]

    async def _stop(self, _: web.Application) -> None:
        for pool in list(self._pools.values()):
            for waiting in pool.readers:
                _hang_up(waiting)


async def _tick(pool: _Pool) -> None:
    """Tell all readers of a pool what is new, once a second, until cancelled."""
    while True:
        try:
            tick = _event("tick", await _news(pool))
        except Exception:
            log.exception("looking at the fleet failed")
            await asyncio.sleep(EVERY)
            continue
        for waiting in list(pool.readers):
            try:
                waiting.put_nowait(tick)
            except asyncio.QueueFull:
                pool.readers.discard(waiting)
                _hang_up(waiting)
        await asyncio.sleep(EVERY)


async def _news(pool: _Pool) -> Tick:
    site, workers, speeds = pool.site, [], {}
    async for worker, speed in look(site.fleet, site.clock):
        workers.append(worker)
        if pool.speeds.get(worker.worker) != speed:
            speeds[worker.worker] = speed
    there = {worker.worker for worker in workers}
    pool.speeds = {name: one for name, one in pool.speeds.items() if name in there} | speeds
    return Tick(
        at=time.time(),
        workers=tuple(workers),
        speeds=speeds,
        points=site.history.news(),
        buckets=site.history.growing(),
    )


def _hang_up(waiting: asyncio.Queue[bytes | None]) -> None:
    while not waiting.empty():
        waiting.get_nowait()
    waiting.put_nowait(None)


def _event(kind: str, told: State | Tick) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(told))


async def _file(request: web.Request) -> web.Response:
    name = request.match_info.get("name", "index.html")
    file = STATIC / Path(name).name
    kind = _TYPES.get(Path(name).suffix)
    if kind is None or not file.is_file():
        raise web.HTTPNotFound(text="no such file\n")
    return web.Response(body=file.read_bytes(), content_type=kind, charset="utf-8")


@asynccontextmanager
async def serving(page: Page, address: str) -> AsyncIterator[int]:
    """Serve at `host:port` until left; gives the port. Raises OSError where it cannot be had."""
    runner = web.AppRunner(page.app(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    host, _, port = address.rpartition(":")
    try:
        await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        yield int(runner.addresses[0][1])
    finally:
        with contextlib.suppress(Exception):
            await runner.cleanup()
