"""Groups: what the further cache groups of one engine keep of its prefixes.

A block has the same name in every group, and the first group's events say which tokens it names.
Those of a further group say only which names it keeps, and of a removed one that it went. A name
that the first group has not told is left out and counted: that costs credit, never a wrong one.

Source: vLLM 0.33 v1/core/block_pool.py, cache_full_blocks; v1/kv_cache_interface.py.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from leadsman.records import GPU, KvEvent, Removed, Stored
from leadsman.units import BlockKey, Blocks, Tokens
from leadsman.windows import group_tier

from leadsman_engines.kv_events import BlockRemoved, BlockStored, EngineHash


class Groups:
    """Copies in the groups behind the first. block_size: the first group's, once it is known."""

    def __init__(self, counts: Counter[str]) -> None:
        self.block_size: Tokens | None = None
        self._counts = counts
        self._needs: dict[int, Blocks] = {}
        self._held: dict[tuple[int, EngineHash], tuple[BlockKey, int]] = {}

    def store(
        self, event: BlockStored, keys: Mapping[EngineHash, BlockKey], resolved: list[KvEvent]
    ) -> bool:
        """Add what a group keeps now; False where it cannot be told what that is good for.

        A further group that keeps whole prefixes is taken to keep what the first does.

        keys: of the names that the first group told.
        """
        need = self._need(event)
        if need is None or event.tier != GPU:
            self._counts["other_group"] += len(event.hashes)
            return not event.windowed or need is not None
        self._needs[event.group] = need
        found: list[BlockKey] = []
        for name in event.hashes:
            key, copies = self._held.get((event.group, name), (keys.get(name), 0))
            if key is None:
                self._counts["sparse"] += 1
                continue
            self._held[event.group, name] = key, copies + 1
            found.append(key)
        resolved.append(Stored(keys=_array(found), tier=group_tier(event.group, need)))
        return True

    def remove(self, event: BlockRemoved, resolved: list[KvEvent]) -> None:
        """Take away a copy of each name."""
        gone: list[BlockKey] = []
        for name in event.hashes:
            key, copies = self._held.pop((event.group, name), (None, 0))
            if key is None:
                self._counts["other_group"] += 1
                continue
            gone.append(key)
            if copies > 1:
                self._held[event.group, name] = key, copies - 1
        if gone:
            tier = group_tier(event.group, self._needs[event.group])
            resolved.append(Removed(keys=_array(gone), tier=tier))

    def clear(self) -> None:
        """Forget what is held."""
        self._held.clear()

    def _need(self, event: BlockStored) -> Blocks | None:
        """Count the blocks in a row that a group needs; None where that is not told."""
        is_alike = self.block_size is not None and event.block_size == self.block_size
        if event.window is None or not event.window or not is_alike:
            return None
        return -(-(event.window - 1) // event.block_size)


def _array(keys: Sequence[BlockKey]) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.array(keys, dtype=np.uint64)
