"""EngineBlocks: from one engine's own block names to our block keys, once, at the collector.

The question: which of our keys did an event add or take away. The model: a map from engine hash
to key, kept while the engine has a copy of the block in any tier. A stored event goes on from
its parent's key, which carries the namespace; a root starts one. An event whose parent is unknown
waits as an orphan and is adopted when the parent appears; it never becomes a root, since its
tokens alone do not say what they follow. Events that bring hashes without tokens (offload tiers)
wait for the hash itself. Orphans are bounded, oldest dropped first: that costs credit, never a
wrong one.

Copies are counted: as many removals as stores. An engine set to report blocks anew that it
already reported (`kv_cache_report_mode=full`) cannot be told from one that made copies. The first
cache group says which tokens a hash names; what a further one keeps of them is told as a tier of
its own (`leadsman.windows`). Where that cannot be told, such as by groups of other block sizes,
the view is not to be credited (`is_windowed`). An adapter loaded anew
under its old name is another adapter: its old blocks are given up.

Source: vLLM 0.32 v1/core/block_pool.py, distributed/kv_events.py.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from leadsman.keys import MultimodalItem, extend_keys, namespace_seed, root_key
from leadsman.records import Cleared, KvEvent, Removed, Stored
from leadsman.units import BlockKey, Blocks, Keys, Tokens

from leadsman_engines.block_names import BlockNames
from leadsman_engines.chunks import Chunks
from leadsman_engines.groups import Groups
from leadsman_engines.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineEvent,
    EngineHash,
)
from leadsman_engines.orphans import Orphan, Orphans

ORPHAN_LIMIT: Final[Blocks] = 65_536
_NO_TOKENS: Final = np.empty(0, dtype=np.uint32)


@dataclass(slots=True)
class _Adapter:
    """Which load of an adapter its name stands for now, and the blocks made with it."""

    loaded_as: int
    blocks: set[EngineHash] = field(default_factory=set)


class EngineBlocks:
    """Names of one engine's blocks. `counts`: what was left out, by reason.

    names: where they are remembered beyond the blocks; None: nowhere.
    """

    def __init__(
        self,
        *,
        secret: bytes,
        model: str,
        block_size: Tokens | None = None,
        orphan_limit: Blocks = ORPHAN_LIMIT,
        names: BlockNames | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.is_windowed = False
        self._secret = secret
        self._model = model
        self._keys: dict[EngineHash, BlockKey] = {}
        self._copies: dict[str, dict[EngineHash, int]] = {}
        self._orphans = Orphans(orphan_limit)
        self._adapters: dict[str, _Adapter] = {}
        self._chunks = Chunks(block_size, self.counts)
        self._groups = Groups(self.counts)
        self._names = names

    @property
    def known(self) -> Blocks:
        """Blocks with a key: those with a copy in some tier."""
        return len(self._keys)

    @property
    def waiting(self) -> Blocks:
        """Blocks that wait for a parent."""
        return self._orphans.blocks

    def resolve(self, events: Iterable[EngineEvent]) -> tuple[KvEvent, ...]:
        """Take one batch of engine events; returns what it means in our keys, in order."""
        resolved: list[KvEvent] = []
        for event in events:
            match event:
                case BlockStored():
                    self._store(event, resolved)
                case BlockRemoved():
                    self._remove(event, resolved)
                case AllBlocksCleared():
                    resolved.append(self.clear())
        return tuple(resolved)

    def clear(self) -> Cleared:
        """Forget everything, as after a restart of the engine."""
        self._keys.clear()
        self._copies.clear()
        self._orphans.clear()
        self._adapters.clear()
        self._chunks.clear()
        self._groups.clear()
        return Cleared()

    def check(self) -> None:
        """Assert every invariant. O(everything known)."""
        held = {name for copies in self._copies.values() for name in copies}
        assert held == self._keys.keys()
        assert all(n > 0 for copies in self._copies.values() for n in copies.values())
        self._orphans.check()
        for orphan in self._orphans:
            assert not any(name in self._keys for name in orphan.awaits)
        for adapter in self._adapters.values():
            assert adapter.blocks <= self._keys.keys()

    def _store(self, event: BlockStored, resolved: list[KvEvent]) -> None:
        if event.group > 0:
            self.is_windowed |= not self._groups.store(event, self._keys, resolved)
            return
        self.is_windowed |= event.windowed
        self._groups.block_size = event.block_size or self._groups.block_size
        self._note_adapter(event, resolved)
        if self._chunks.are_in(event):
            stored = self._chunks.store(event, self._root)
            resolved.extend([] if stored is None else [stored])
            return
        if event.is_dense:
            keys = self._keys_of(event)
            if keys is None:
                self._let_wait(Orphan(event))
            else:
                self._hold(event, event.hashes, keys, resolved)
                self._adopt(self._waited_for(event.hashes), resolved)
            return
        names = event.hashes
        if event.tokens.size:
            names = tuple(name for name in names if name in self._keys)
            self.counts["sparse"] += len(event.hashes) - len(names)
        lone = [msgspec.structs.replace(event, hashes=(name,), tokens=_NO_TOKENS) for name in names]
        self._adopt([Orphan(one) for one in lone], resolved)

    def _adopt(self, todo: list[Orphan], resolved: list[KvEvent]) -> None:
        """Understand events that waited; let wait what still cannot be."""
        for orphan in todo:
            keys = self._keys_of(orphan.event)
            if keys is None:
                self._let_wait(orphan)
                continue
            left = orphan.left
            names = tuple([orphan.event.hashes[place] for place in left])
            self._hold(orphan.event, names, keys[left], resolved)
            todo.extend(self._waited_for(names))

    def _let_wait(self, orphan: Orphan) -> None:
        self.counts["dropped_orphan"] += self._orphans.add(orphan)

    def _waited_for(self, names: tuple[EngineHash, ...]) -> list[Orphan]:
        """Take out what waited for any of these names."""
        if not self._orphans.blocks:
            return []
        return [orphan for name in names for orphan in self._orphans.take(name)]

    def _hold(
        self,
        event: BlockStored,
        names: tuple[EngineHash, ...],
        keys: Keys,
        resolved: list[KvEvent],
    ) -> None:
        """Count a copy of some blocks of an event.

        A name that is known keeps its key, so that what was stored is what will be removed.
        """
        copies = self._copies.setdefault(event.tier, {})
        given = keys.tolist()
        held = given.copy()
        for place, name in enumerate(names):
            held[place] = self._keys.setdefault(name, given[place])
            copies[name] = copies.get(name, 0) + 1
        if held != given:
            keys = np.array(held, dtype=np.uint64)
        if self._names is not None:
            self._names.note(names, keys)
        if event.lora in self._adapters and event.is_dense:
            self._adapters[event.lora].blocks.update(names)
        resolved.append(Stored(keys=keys, tier=event.tier, session=event.session))

    def _keys_of(self, event: BlockStored) -> Keys | None:
        """Name an event's blocks from its parent or its first; None where neither is known."""
        if event.is_dense:
            if event.parent is None:
                return _extend(self._root(event, event.block_size), event)
            if event.parent in self._keys:
                return _extend(self._keys[event.parent], event)
        if event.hashes[0] not in self._keys:
            return None
        first = self._keys[event.hashes[0]]
        rest = _extend(first, event, skipped=1)
        return np.concatenate([np.array([first], dtype=np.uint64), rest])

    def _root(self, event: BlockStored, block_size: Tokens) -> BlockKey:
        return root_key(_seed(self._secret, self._model, event.lora, event.cache_salt), block_size)

    def _remove(self, event: BlockRemoved, resolved: list[KvEvent]) -> None:
        if event.group > 0:
            self._groups.remove(event, resolved)
            return
        if len(self._chunks):
            removed, event = self._chunks.remove(event)
            resolved.extend([] if removed is None else [removed])
        copies = self._copies.get(event.tier, {})
        keys = []
        for name in event.hashes:
            if name in copies:
                keys.append(self._keys[name])
                self._release(name, copies)
            elif not self._orphans.remove(name, event.tier):
                self.counts["unknown_removal"] += 1
        if keys:
            resolved.append(Removed(keys=np.array(keys, dtype=np.uint64), tier=event.tier))

    def _release(self, name: EngineHash, copies: dict[EngineHash, int]) -> None:
        """Count a copy less; forget a name when its last copy in any tier went."""
        copies[name] -= 1
        if copies[name]:
            return
        del copies[name]
        for others in self._copies.values():
            if name in others:
                return
        del self._keys[name]
        for adapter in self._adapters.values():
            adapter.blocks.discard(name)

    def _note_adapter(self, event: BlockStored, resolved: list[KvEvent]) -> None:
        """Give up an adapter's blocks once its name stands for another load of it."""
        if event.lora is None or event.lora_id is None:
            return
        adapter = self._adapters.setdefault(event.lora, _Adapter(event.lora_id))
        if adapter.loaded_as == event.lora_id:
            return
        self._adapters[event.lora] = _Adapter(event.lora_id)
        for orphan in self._orphans:
            if orphan.event.lora == event.lora:
                self._orphans.discard(orphan)
        for tier, copies in self._copies.items():
            names = [name for name in adapter.blocks for _ in range(copies.get(name, 0))]
            if names:
                gone = BlockRemoved(hashes=tuple(names), tier=tier)
                self._remove(gone, resolved)


@lru_cache(maxsize=1024)
def _seed(secret: bytes, model: str, lora: str | None, cache_salt: str | None) -> int:
    return namespace_seed(secret=secret, model=model, lora=lora, cache_salt=cache_salt)


def _extend(parent: BlockKey, event: BlockStored, skipped: Blocks = 0) -> Keys:
    """Go on from `parent` with an event's blocks behind the first `skipped`."""
    if not skipped:
        return extend_keys(parent, event.tokens, event.block_size or 1, event.items)
    start: Tokens = skipped * event.block_size
    items = [
        MultimodalItem(content=item.content, offset=item.offset - start) for item in event.items
    ]
    return extend_keys(parent, event.tokens[start:], event.block_size or 1, items)
