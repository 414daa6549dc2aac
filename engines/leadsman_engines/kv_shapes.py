"""The shapes in which engines write their KV events; `kv_wire` says what they mean.

They stand apart because what is compiled cannot define them: see docs/adr.
"""

from typing import Any

import msgspec


class Batch(msgspec.Struct, array_like=True):
    """A batch whose events are read one by one."""

    ts: float
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None


class AnyStored(msgspec.Struct):
    """Blocks came to be."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int | list[int]]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class Stored(AnyStored, tag="BlockStored"):
    """As a map."""

    session_id: str | None = None
    cache_salt: str | None = None


class StoredArray(AnyStored, array_like=True, tag="BlockStored"):
    """Engines that sent arrays had no sessions; what they had behind the kind is ignored."""


class AnyRemoved(msgspec.Struct):
    """Blocks went."""

    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class Removed(AnyRemoved, tag="BlockRemoved"):
    """As a map."""


class RemovedArray(AnyRemoved, array_like=True, tag="BlockRemoved"):
    """As an array."""


class AnyCleared(msgspec.Struct):
    """All went."""


class Cleared(AnyCleared, tag="AllBlocksCleared"):
    """As a map."""


class ClearedArray(AnyCleared, array_like=True, tag="AllBlocksCleared"):
    """As an array."""


class MapBatch(msgspec.Struct, array_like=True):
    """A batch all of whose events are maps that can be read."""

    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None
