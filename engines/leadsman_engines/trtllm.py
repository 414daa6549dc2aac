"""TensorRT-LLM's KV events: what a drain of them says, as events of `kv_events`.

One answer of `/kv_cache_events` is a list of {event_id, data, window_size, attention_dp_rank}.
Blocks of a prefix shorter than one block are told too and skipped, as are the shorter of several
attention windows: the longest is the one that every prefix is in. A block that moves between GPU
and host is "updated": a removal from one tier and a store, by its name alone, in the other. No
adapter is told: a prompt of an adapter cannot be told from one of its base model.

Source: TensorRT-LLM 1.2 docs/source/features/kvcache.md; tensorrt_llm/_utils.py,
KVCacheEventSerializer.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from leadsman.keys import MultimodalItem
from leadsman.records import GPU
from leadsman.units import Tokens, WorkerId

from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.kv_events import BlockRemoved, BlockStored, EngineEvent, EngineHash

TIERS: Final = (GPU, "CPU")
"""By cache level; a deeper one counts as the last."""


class _Token(msgspec.Struct):
    token_id: int
    token_extra_id: int = 0


class _Block(msgspec.Struct):
    block_hash: int | str
    tokens: list[_Token]
    cache_level: int = 0


class _Level(msgspec.Struct):
    old_value: int
    new_value: int


class _Created(msgspec.Struct, tag_field="type", tag="created"):
    pass


class _Stored(msgspec.Struct, tag_field="type", tag="stored"):
    blocks: list[_Block]
    parent_hash: int | str | None = None


class _Removed(msgspec.Struct, tag_field="type", tag="removed"):
    block_hashes: list[int | str]


class _Updated(msgspec.Struct, tag_field="type", tag="updated"):
    block_hash: int | str
    cache_level: _Level | None = None


class DrainedEvent(msgspec.Struct, frozen=True):
    """One event of a drain, its number, and which window and rank it is about."""

    event_id: int
    data: _Created | _Stored | _Removed | _Updated
    window_size: Tokens | None = None
    attention_dp_rank: int | None = None


_numbered = msgspec.json.Decoder(list[msgspec.Raw])
_event = msgspec.json.Decoder(DrainedEvent)


class _Number(msgspec.Struct):
    event_id: int


def numbered(body: bytes, worker: WorkerId) -> list[tuple[int, bytes]]:
    """Part one answer into its events, each with its number; EngineProtocolError if it is none."""
    try:
        events = _numbered.decode(body)
        return [(msgspec.json.decode(raw, type=_Number).event_id, bytes(raw)) for raw in events]
    except msgspec.DecodeError as error:
        raise EngineProtocolError(worker, f"/kv_cache_events: {error}") from error


def decode_event(event: bytes) -> DrainedEvent:
    """Read one event; msgspec.DecodeError where it is none."""
    return _event.decode(event)


def engine_events(event: DrainedEvent, block_size: Tokens) -> list[EngineEvent]:
    """Say one event in the words of all engines."""
    match event.data:
        case _Stored():
            return _stored(event.data, block_size)
        case _Removed():
            names = tuple(map(_name, event.data.block_hashes))
            return [BlockRemoved(hashes=names, tier=tier) for tier in TIERS]
        case _Updated(cache_level=_Level(old_value=old, new_value=new)) if old != new:
            name = (_name(event.data.block_hash),)
            arrived = BlockStored(
                hashes=name, parent=None, tokens=_tokens([]), block_size=0, tier=_tier(new)
            )
            return [arrived, BlockRemoved(hashes=name, tier=_tier(old))]
        case _:
            return []


def _stored(data: _Stored, block_size: Tokens) -> list[EngineEvent]:
    """Follow the chain as far as its blocks are full; each block may be in a tier of its own."""
    events: list[EngineEvent] = []
    parent = None if data.parent_hash is None else _name(data.parent_hash)
    for block in data.blocks:
        if len(block.tokens) != block_size:
            break
        stored = BlockStored(
            hashes=(_name(block.block_hash),),
            parent=parent,
            tokens=_tokens(block.tokens),
            block_size=block_size,
            tier=_tier(block.cache_level),
            items=tuple(
                MultimodalItem(content=f"trtllm:{token.token_extra_id}", offset=place)
                for place, token in enumerate(block.tokens)
                if token.token_extra_id
            ),
        )
        events.append(stored)
        parent = stored.hashes[0]
    return events


def _tokens(tokens: Sequence[_Token]) -> Any:
    return np.array([token.token_id for token in tokens], dtype=np.uint32)


def _tier(level: int) -> str:
    return TIERS[min(level, len(TIERS) - 1)]


def _name(said: int | str) -> EngineHash:
    return said & (2**64 - 1) if isinstance(said, int) else said.encode()
