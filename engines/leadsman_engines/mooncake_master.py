"""MooncakeMaster: follows what vLLMs keep in a Mooncake as one store that all of them share.

The master lists the keys of all objects, one a line, and knows nothing else of them. vLLM's are

    MODEL@tp_rank:T@pcpP@dcpD@pp_rank:R@group:G@HASH

with the hash of a block's whole prefix, whose last 64 bits are the block's name in every engine's
events. So a key is recognized by an event that named the block at any time (`block_names`), from
whichever engine; what no event named is counted and credits nothing.

A block counts once it is there for every rank that any key of the model is of. Ignored: cache
groups but the first; what is claimed too much there, outcomes show.

Source: vLLM 0.33 kv_connector/v1/mooncake/store/data.py, PoolKey; Mooncake 0.3.13.post1
master_admin_service.cpp, /get_all_keys, /role.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from itertools import islice
from typing import Final

import aiohttp
import numpy as np
from leadsman.units import BlockKey, Seconds

from leadsman_engines.block_names import BlockNames
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.profile import SharedStore
from leadsman_engines.store_reader import Emit, StoreReader

TIER: Final = "MOONCAKE"
_RANK: Final = re.compile(rb"@tp_rank:\d+@pcp\d+@dcp\d+@pp_rank:\d+@group:(\d+)")
_HASH: Final = re.compile(rb"(?:[0-9a-f]{2}){8,}")
_LAST_64: Final = 16
"""Digits of a name."""
_TOGETHER: Final = 4096
"""Names between two looks at other work: one takes less than a microsecond."""
_TOLD: Final = 131_072
"""New blocks told at once, a message of 1 MB; further ones are new in the next reading."""
_WITHIN: Final = aiohttp.ClientTimeout(total=60.0)
"""A listing of millions of keys takes seconds."""


class MooncakeMaster(StoreReader):
    """One model's blocks as records.

    Unused are, in the latest listing, blocks that no event named (`unnamed`), and those that are
    not there for every rank (`partial`).
    """

    tier = TIER

    def __init__(
        self, store: SharedStore, emit: Emit, now: Callable[[], Seconds], names: BlockNames
    ) -> None:
        super().__init__(store, emit, now)
        self._names = names
        self._held: dict[int, BlockKey] = {}
        self._model = store.name_there.encode()

    async def read(self, http: aiohttp.ClientSession) -> None:
        """Read all keys once, and say what changed.

        Raises EngineProtocolError, aiohttp.ClientError or TimeoutError; then nothing was said.
        """
        await self._check_role(http)
        ranks, listed = await self._list(http)
        gone, new = await self._lose(ranks, listed), list[BlockKey]()
        unused = {"unnamed": 0, "partial": 0}
        async for names in _in_pieces(listed):
            for name in names:
                key = self._names.get(name)
                if listed[name] != ranks:
                    unused["partial"] += 1
                elif name in self._held:
                    continue
                elif key is None:
                    unused["unnamed"] += 1
                elif len(new) < _TOLD:
                    self._held[name] = key
                    new.append(key)
        self._say(*([np.array(keys, dtype=np.uint64)] if keys else [] for keys in (gone, new)))
        self._say_seen(len(self._held), unused)

    async def _lose(self, ranks: int, listed: Mapping[int, int]) -> list[BlockKey]:
        """Forget what is no more there for each of the ranks; gives its keys."""
        gone = [
            name
            async for names in _in_pieces(self._held)
            for name in names
            if listed.get(name) != ranks
        ]
        return [self._held.pop(name) for name in gone]

    async def _list(self, http: aiohttp.ClientSession) -> tuple[int, dict[int, int]]:
        """Give, as bits, the ranks that there are, and those that each block is there for."""
        bits: dict[bytes, int] = {}
        listed: dict[int, int] = {}
        async for lines in self._lines(http):
            for line in lines:
                rank, _, digest = line.rpartition(b"@")
                bit = bits.get(rank)
                if bit is None:
                    if not self._is_ours(rank):
                        continue
                    bit = bits[rank] = 1 << len(bits)
                if _HASH.fullmatch(digest):
                    name = int(digest[-_LAST_64:], 16)
                    listed[name] = listed.get(name, 0) | bit
        return (1 << len(bits)) - 1, listed

    async def _check_role(self, http: aiohttp.ClientSession) -> None:
        """Raise EngineProtocolError where another leads: then this one lists nothing, with 200."""
        async with http.get(f"{self._base}/role", timeout=_WITHIN) as response:
            response.raise_for_status()
            role = await response.text()
        if role != "leader":
            raise EngineProtocolError(self.worker, f"the master there does not lead: {role[:64]!r}")

    def _is_ours(self, rank: bytes) -> bool:
        if not rank.startswith(self._model):
            return False
        told = _RANK.fullmatch(rank, len(self._model))
        return told is not None and int(told[1]) == 0

    async def _lines(self, http: aiohttp.ClientSession) -> AsyncIterator[list[bytes]]:
        async with http.get(f"{self._base}/get_all_keys", timeout=_WITHIN) as response:
            response.raise_for_status()
            rest = b""
            async for piece in response.content.iter_chunked(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                yield lines
            yield [rest]

    @property
    def _base(self) -> str:
        return self._store.url.rstrip("/")


async def _in_pieces(names: Iterable[int]) -> AsyncIterator[list[int]]:
    """Go through names, with other work between."""
    left = iter(names)
    while piece := list(islice(left, _TOGETHER)):
        yield piece
        await asyncio.sleep(0)
