"""Chunks: blocks of a lower tier that span several of the engine's own.

A tier may store by larger blocks than the engine computes by: LMCache's chunks are of 256 tokens
where the engine has 16. A prompt's keys are of the engine's blocks, so a chunk is the run of keys
that it spans, and its name stands for all of them. A chunk goes on from its parent chunk; one whose
parent is not known is left out and counted, which costs credit, never a wrong one.

Source: LMCache 0.5.6 cache_engine.py, CacheStoreEvent; config.py, chunk_size.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
from leadsman.keys import MultimodalItem, extend_keys
from leadsman.records import Removed, Stored
from leadsman.units import BlockKey, Keys, Tokens

from leadsman_engines.kv_events import BlockRemoved, BlockStored, EngineHash


class Chunks:
    """Chunks of one engine's lower tiers, by tier and name. block_size: the engine's own."""

    def __init__(self, block_size: Tokens | None, counts: Counter[str]) -> None:
        self._block_size = block_size
        self._counts = counts
        self._keys: dict[tuple[str, EngineHash], tuple[Keys, int]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def are_in(self, event: BlockStored) -> bool:
        """Say whether an event's blocks are whole runs of the engine's own."""
        size = self._block_size
        return (
            size is not None
            and event.is_dense
            and event.block_size > size
            and event.block_size % size == 0
        )

    def store(
        self, event: BlockStored, root: Callable[[BlockStored, Tokens], BlockKey]
    ) -> Stored | None:
        """Take a copy of each chunk; None where its parent is not known.

        root: names the empty prefix of an event's namespace, for blocks of a size.
        """
        assert self._block_size is not None
        if event.parent is None:
            parent = root(event, self._block_size)
        elif (known := self._keys.get((event.tier, event.parent))) is not None:
            parent = int(known[0][-1])
        else:
            self._counts["orphan_chunk"] += len(event.hashes)
            return None
        items: tuple[MultimodalItem, ...] = event.items
        keys = extend_keys(parent, event.tokens, self._block_size, items)
        for name, span in zip(event.hashes, np.split(keys, len(event.hashes)), strict=True):
            held, copies = self._keys.get((event.tier, name), (span, 0))
            self._keys[event.tier, name] = held, copies + 1
        return Stored(keys=keys, tier=event.tier, session=event.session)

    def remove(self, event: BlockRemoved) -> tuple[Removed | None, BlockRemoved]:
        """Give back the chunks among an event's names; returns what is left of it too."""
        gone: list[Keys] = []
        others: list[EngineHash] = []
        for name in event.hashes:
            span, copies = self._keys.pop((event.tier, name), (None, 0))
            if span is None:
                others.append(name)
                continue
            gone.append(span)
            if copies > 1:
                self._keys[event.tier, name] = span, copies - 1
        removed = Removed(keys=np.concatenate(gone), tier=event.tier) if gone else None
        left = BlockRemoved(hashes=tuple(others), tier=event.tier, group=event.group)
        return removed, left

    def clear(self) -> None:
        """Forget everything."""
        self._keys.clear()
