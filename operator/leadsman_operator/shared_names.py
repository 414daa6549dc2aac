"""Names of blocks that operators tell each other, so that whoever reads a Mooncake knows them all.

A block in a Mooncake is known by a name that some engine's event told (`block_names`), and each of
several operators hears its own share of the engines. So each writes what is new to it into a stream
of Redis beside the pool's log, and the one that reads stores takes in what all of them wrote. The
stream outlives each of them: who comes to read knows names that no engine's replay has any more.

Bounded: the oldest entries go. What is cut costs credit, never a wrong one; what Redis did not take
is told again.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
from leadsman.units import BlockKey, Keys
from leadsman_engines.block_names import LIMIT, BlockNames, last_64
from leadsman_engines.kv_events import EngineHash
from leadsman_fleet.redis_log import START

_TOGETHER: Final = 256
"""Names of one entry, 4 KB."""
_ENTRIES: Final = LIMIT // _TOGETHER
_AT_ONCE: Final = 500


class SharedBlockNames(BlockNames):
    """Names of one model's blocks, and which of them others have not been told."""

    def __init__(self) -> None:
        super().__init__()
        self._untold: dict[int, BlockKey] = {}

    def note(self, names: Sequence[EngineHash], keys: Keys) -> None:
        """See `BlockNames`."""
        for name, key in zip(map(last_64, names), keys.tolist(), strict=True):
            if self.get(name) != key and len(self._untold) < LIMIT:
                self._untold[name] = key
            self._keep(name, key)

    def untold(self) -> Iterator[bytes]:
        """Give what others lack, in pieces; each counts as told once the next is asked for."""
        while self._untold:
            pairs = list(islice(self._untold.items(), _TOGETHER))
            yield np.array(pairs, dtype="<u8").tobytes()
            for name, _ in pairs:
                del self._untold[name]

    def hear(self, piece: bytes) -> None:
        """Take in what another one told."""
        pairs = np.frombuffer(piece, dtype="<u8").reshape(-1, 2)
        super().note(pairs[:, 0].tolist(), pairs[:, 1])


SharedNames: TypeAlias = defaultdict[str, SharedBlockNames]
"""By model."""


def new_shared_names() -> SharedNames:
    """Remember nothing yet."""
    return defaultdict(SharedBlockNames)


class NamesStream:
    """One pool's names in Redis. Every method raises RedisError, OSError and TimeoutError."""

    def __init__(self, redis: Any, key: str) -> None:
        self._redis = redis
        self._key = key
        self._heard = START

    async def tell(self, names: SharedNames) -> None:
        """Write what has not been told."""
        for model, ours in list(names.items()):
            for piece in ours.untold():
                entry = {"model": model, "names": piece}
                await self._redis.xadd(self._key, entry, maxlen=_ENTRIES, approximate=True)

    async def hear(self, names: SharedNames) -> None:
        """Read what was written since this was asked before."""
        while found := await self._redis.xread({self._key: self._heard}, count=_AT_ONCE):
            [(_, entries)] = found
            for place, entry in entries:
                names[entry[b"model"].decode()].hear(entry[b"names"])
                self._heard = place
