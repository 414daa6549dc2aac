"""BlockNames: which of our keys an engine's name of a block stood for, beyond its eviction.

vLLM names a block by a hash of its whole prefix, and its events tell the last 64 bits of it. A
store keeps blocks under the same hash long after every GPU gave them up, and says nothing else of
them: so a name that was heard once is worth remembering. All engines of a model that share a store
name a prefix the same, or could not find it there.

Bounded: names are kept in two generations. What is asked for or told again moves to the younger;
when that is half of the bound, the older one is forgotten: the newest half is always known. What is
forgotten costs credit, never a wrong one.

Source: vLLM 0.33 v1/core/kv_cache_utils.py, maybe_convert_block_hash.
"""

from collections.abc import Sequence
from typing import Final

from leadsman.units import BlockKey, Blocks, Keys

from leadsman_engines.kv_events import EngineHash

LIMIT: Final[Blocks] = 1_000_000
"""Some 200 MB of memory at most."""
_LAST_64: Final = (1 << 64) - 1


class BlockNames:
    """Names of one model's blocks."""

    def __init__(self, limit: Blocks = LIMIT) -> None:
        self._limit = limit
        self._young: dict[int, BlockKey] = {}
        self._old: dict[int, BlockKey] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def note(self, names: Sequence[EngineHash], keys: Keys) -> None:
        """Remember what each name stands for. keys: shape (names,)."""
        for name, key in zip(names, keys.tolist(), strict=True):
            self._keep(last_64(name), key)

    def get(self, name: int) -> BlockKey | None:
        """Say what a name stands for. name: the last 64 bits of an engine's hash."""
        key = self._young.get(name)
        if key is None and (key := self._old.get(name)) is not None:
            self._keep(name, key)
        return key

    def _keep(self, name: int, key: BlockKey) -> None:
        self._young[name] = key
        if len(self._young) >= max(1, self._limit // 2):
            self._young, self._old = {}, self._young


def last_64(name: EngineHash) -> int:
    """Say how events and stores name alike what an engine named."""
    return int.from_bytes(name[-8:], "big") if isinstance(name, bytes) else name & _LAST_64
