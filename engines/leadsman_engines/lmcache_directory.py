"""LmcacheDirectory: follows the directory of an LMCache coordinator as one store that all share.

The coordinator knows what every LMCache server of the fleet holds. It is asked for all of it, again
and again: what is new is looked up for its tokens and placed (`lmcache_chains`), what is no more
there has left. Told is what lies where the whole fleet can read it (`shared`); what one server
keeps for its own engines they tell themselves. A chunk counts once every rank's part is there.

Pages of a directory that changes may skip a key, so only a listing that adds up to its own total
says what has left.

Ignored: adapters (their chunks have the names of the base model's) and further object groups of
hybrid models; what is claimed too much there, outcomes show.

Source: LMCache 0.5.6 v1/mp_coordinator/http_apis/directory_api.py, schemas.py;
v1/distributed/api.py, ObjectKey.ComputeKVRank.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Final, TypeVar

import aiohttp
import msgspec
import numpy as np
from leadsman.keys import namespace_seed, root_key
from leadsman.units import Keys, Seconds
from msgspec import Meta

from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.lmcache_chains import Chains, ChunkName
from leadsman_engines.profile import SharedStore
from leadsman_engines.store_reader import Emit, StoreReader

TIER: Final = "LMCACHE"
_PAGE: Final = 10_000
"""The most keys that the coordinator lists at once."""
_LOOKED_UP: Final = 256
"""Chunks that are looked up at once: 0.4 MB of token ids, with chunks of 256."""
_TRIES: Final = 200
"""Hashes between two looks at other work: one takes some microseconds."""
_MOST_TRIES: Final = 50_000
"""Hashes a reading; the search goes on in the next."""

Answer = TypeVar("Answer")


class _Key(msgspec.Struct, frozen=True):
    chunk_hash_hex: Annotated[str, Meta(pattern="^([0-9a-f]{2})+$")]
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""

    @property
    def name(self) -> ChunkName:
        return self.cache_salt, bytes.fromhex(self.chunk_hash_hex)

    @property
    def ranks(self) -> int:
        """How many parts a chunk has: one a rank."""
        return max(1, self.kv_rank >> 24 & 0xFF)


class _Placement(msgspec.Struct, frozen=True):
    shared: bool = False


class _Listed(msgspec.Struct, frozen=True):
    key: _Key
    placements: list[_Placement]
    num_tokens: int = 0


class _Page(msgspec.Struct, frozen=True):
    total: int
    keys: list[_Listed]


class _Found(msgspec.Struct, frozen=True):
    key: _Key
    token_ids: list[Annotated[int, Meta(ge=0, lt=2**32)]]


class _Lookup(msgspec.Struct, frozen=True):
    results: list[_Found]


class LmcacheDirectory(StoreReader):
    """One model's chunks as records.

    Unused are, in the latest listing, chunks `without_tokens`, those that are no whole number of
    blocks (`uneven`), and those whose parent is not known (`unplaced`).
    """

    tier = TIER

    def __init__(
        self,
        store: SharedStore,
        emit: Emit,
        now: Callable[[], Seconds],
        *,
        secret: bytes,
    ) -> None:
        super().__init__(store, emit, now)
        self._known: set[ChunkName] = set()
        self._uneven: set[ChunkName] = set()
        self._tokenless: set[ChunkName] = set()
        self._chains = Chains(
            lambda salt: root_key(
                namespace_seed(secret=secret, model=store.model, cache_salt=salt or None),
                store.block_size,
            ),
            store.block_size,
        )

    async def read(self, http: aiohttp.ClientSession) -> None:
        """Read the whole directory once, and say what changed.

        Raises EngineProtocolError, aiohttp.ClientError or TimeoutError; then nothing was said.
        """
        listed, is_whole = await self._list(http)
        keys = [key for name, key in listed.items() if name not in self._known]
        for start in range(0, len(keys), _LOOKED_UP):
            await self._look_up(http, keys[start : start + _LOOKED_UP])
        gone = self._known - listed.keys() if is_whole else set()
        removed = [span for name in gone if (span := self._chains.forget(name)) is not None]
        self._known -= gone
        self._uneven -= gone
        stored = await self._place()
        self._say(removed, stored)
        self._say_read()

    async def _list(self, http: aiohttp.ClientSession) -> tuple[dict[ChunkName, _Key], bool]:
        """List the chunks of which every part is there, and whether that is all of them."""
        parts: dict[ChunkName, dict[int, _Key]] = {}
        self._tokenless.clear()
        rows, totals = 0, set[int]()
        while True:
            params = {"offset": str(rows), "limit": str(_PAGE)}
            page = await self._ask(http.get(f"{self._base}/keys", params=params), _Page)
            totals.add(page.total)
            rows += len(page.keys)
            for key in self._usable(page.keys):
                parts.setdefault(key.name, {})[key.kv_rank] = key
            if not page.keys or rows >= page.total:
                break
        whole = {
            name: next(iter(keys.values()))
            for name, keys in parts.items()
            if len(keys) >= next(iter(keys.values())).ranks
        }
        return whole, totals == {rows}

    def _usable(self, rows: Iterable[_Listed]) -> Iterator[_Key]:
        for row in rows:
            if row.key.model_name != self._store.name_there or row.key.object_group_id:
                continue
            if not any(placement.shared for placement in row.placements):
                continue
            if not row.num_tokens:
                self._tokenless.add(row.key.name)
                continue
            yield row.key

    async def _look_up(self, http: aiohttp.ClientSession, keys: list[_Key]) -> None:
        """Take the tokens of chunks that are new."""
        body = {"keys": msgspec.to_builtins(keys)}
        answer = await self._ask(http.post(f"{self._base}/lookup", json=body), _Lookup)
        for found in answer.results:
            if not found.token_ids or found.key.name in self._known:
                continue
            self._known.add(found.key.name)
            if len(found.token_ids) % self._store.block_size:
                self._uneven.add(found.key.name)
                continue
            self._chains.add(found.key.name, np.array(found.token_ids, dtype=np.uint32))

    async def _place(self) -> list[Keys]:
        """Place chunks for as long as one reading may take, among other work."""
        found: list[Keys] = []
        for _ in range(_MOST_TRIES // _TRIES):
            placed, is_cut = self._chains.place(_TRIES)
            found += placed
            if not is_cut:
                break
            await asyncio.sleep(0)
        return found

    async def _ask(self, asked: Any, shape: type[Answer]) -> Answer:
        async with asked as response:
            response.raise_for_status()
            body = await response.read()
        try:
            return msgspec.json.decode(body, type=shape)
        except msgspec.DecodeError as error:
            raise EngineProtocolError(self.worker, str(error)) from error

    def _say_read(self) -> None:
        unused = {
            "without_tokens": len(self._tokenless),
            "uneven": len(self._uneven),
            "unplaced": self._chains.unplaced,
        }
        self._say_seen(len(self._chains.placed), unused)

    @property
    def _base(self) -> str:
        return f"{self._store.url.rstrip('/')}/directory"
