"""What an engine says of its cache, in its own names, free of how any version spells it."""

from typing import TypeAlias

import msgspec
from leadsman.keys import MultimodalItem
from leadsman.records import GPU
from leadsman.units import Seconds, TokenIds, Tokens

EngineHash: TypeAlias = int | bytes
"""An engine's own name of a block; the same engine names the same block the same in every tier."""


class BlockStored(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of each of some consecutive blocks came to be.

    tokens: shape (blocks x block_size,), empty where the event names hashes only. items: offsets
    from the first token. windowed: the group keeps only part of each prefix (sliding window,
    state), so that a hash's place among the tokens is unknown. window: how many tokens it sees,
    where it says so.
    """

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    tokens: TokenIds
    block_size: Tokens
    tier: str = GPU
    group: int = 0
    windowed: bool = False
    window: Tokens | None = None
    lora: str | None = None
    lora_id: int | None = None
    cache_salt: str | None = None
    items: tuple[MultimodalItem, ...] = ()
    session: str | None = None

    @property
    def is_dense(self) -> bool:
        """Tell whether each hash names the tokens at its own place."""
        return 0 < self.block_size * len(self.hashes) == len(self.tokens)


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of each block is gone."""

    hashes: tuple[EngineHash, ...]
    tier: str = GPU
    group: int = 0


class AllBlocksCleared(msgspec.Struct, frozen=True, kw_only=True):
    """Every block is gone."""


EngineEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EngineBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one engine step; problems: why events of it were skipped."""

    engine_time: Seconds
    dp_rank: int | None
    events: tuple[EngineEvent, ...]
    problems: tuple[str, ...] = ()
