"""Engines' KV events on the wire: one batch's bytes to typed events, whatever the version.

The question: what one engine step stored and removed, in the engine's own names. The outer batch
is an array [time, events, rank]; inner events are maps {"type": ...} since June 2026, positional
arrays [type, ...] before; both are read, maps all at once, and fields that are not known are
ignored. Hashes are
64-bit integers (negative ones are read as unsigned) or digests. One malformed event is skipped
with its reason and the others are kept, since a gap in one block is better than in a step.

`extra_keys` come untagged: the adapter's name first, then (item, offset) pairs, then a cache salt
in a prompt's first block, then digests of embedded prompts. What cannot be told apart becomes an
item of its own, which no prompt has: never a wrong match. Pairs of tokens, as speculative
decoders hash them, stand for their first tokens.

SGLang leaves out what has its default, and says a salt in a field of its own.

Source: SGLang 0.5.23 srt/disaggregation/kv_events.py; vLLM 0.32 distributed/kv_events.py;
v1/core/kv_cache_utils.py, to_event_extra_keys.
"""

from array import array
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
import numpy as np
from leadsman.keys import MultimodalItem
from leadsman.records import GPU
from leadsman.units import TokenIds, Tokens, WorkerId
from leadsman.windows import STATE

from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineBatch,
    EngineEvent,
    EngineHash,
)
from leadsman_engines.kv_shapes import (
    AnyCleared,
    AnyRemoved,
    AnyStored,
    Batch,
    Cleared,
    ClearedArray,
    MapBatch,
    Removed,
    RemovedArray,
    Stored,
    StoredArray,
)

_WORD: Final = 2**64 - 1
_UNREADABLE: Final = (msgspec.DecodeError, ValueError, OverflowError, TypeError)
_WHOLE_PREFIX: Final = {None, "full_attention", "mla_attention", "sink_full_attention"}

_whole = msgspec.msgpack.Decoder(MapBatch)
_batch = msgspec.msgpack.Decoder(Batch)
_map = msgspec.msgpack.Decoder(Stored | Removed | Cleared)
_array = msgspec.msgpack.Decoder(StoredArray | RemovedArray | ClearedArray)


def decode_batch(payload: bytes, worker: WorkerId) -> EngineBatch:
    """Read one batch; raises EngineProtocolError where not even its outline can be read."""
    try:
        whole = _whole.decode(payload)
        events = [_understood(event) for event in whole.events]
    except _UNREADABLE:
        return _piecemeal(payload, worker)
    return EngineBatch(engine_time=whole.ts, dp_rank=whole.data_parallel_rank, events=tuple(events))


def _piecemeal(payload: bytes, worker: WorkerId) -> EngineBatch:
    """Read a batch event by event: arrays, or maps of which some cannot be read."""
    try:
        batch = _batch.decode(payload)
    except msgspec.DecodeError as error:
        raise EngineProtocolError(worker, f"KV event batch: {error}") from error
    events, problems = [], []
    for place, raw in enumerate(batch.events):
        try:
            events.append(_event(raw))
        except _UNREADABLE as error:
            problems.append(f"event {place}: {error}")
    return EngineBatch(
        engine_time=batch.ts,
        dp_rank=batch.data_parallel_rank,
        events=tuple(events),
        problems=tuple(problems),
    )


def _event(raw: msgspec.Raw) -> EngineEvent:
    first = bytes(memoryview(raw)[:1])
    is_map = first in (b"\xde", b"\xdf") or b"\x80" <= first <= b"\x8f"
    return _understood((_map if is_map else _array).decode(raw))


def _understood(event: AnyStored | AnyRemoved | AnyCleared) -> EngineEvent:
    if isinstance(event, AnyCleared):
        return AllBlocksCleared()
    hashes = tuple([_unsigned(name) for name in event.block_hashes])
    tier, group = (event.medium or GPU).upper(), event.group_idx or 0
    if isinstance(event, AnyRemoved):
        return BlockRemoved(hashes=hashes, tier=tier, group=group)
    return _stored(event, hashes, tier, group)


def _stored(event: AnyStored, hashes: tuple[EngineHash, ...], tier: str, group: int) -> BlockStored:
    if event.block_size < 0:
        raise ValueError(f"block_size is {event.block_size}")
    parent = event.parent_block_hash
    lora = event.lora_name
    if lora is None and event.lora_id is not None:
        lora = f"#{event.lora_id}"
    salt, items = _extras(event, is_root=parent is None)
    if isinstance(event, Stored) and event.cache_salt is not None:
        salt = event.cache_salt
    return BlockStored(
        hashes=hashes,
        parent=None if parent is None else _unsigned(parent),
        tokens=_tokens(event.token_ids),
        block_size=event.block_size,
        tier=tier,
        group=group,
        windowed=event.kv_cache_spec_kind not in _WHOLE_PREFIX,
        window=_window(event),
        lora=lora,
        lora_id=event.lora_id,
        cache_salt=salt,
        items=items,
        session=event.session_id if isinstance(event, Stored) else None,
    )


def _window(event: AnyStored) -> Tokens | None:
    """Say how many tokens a group sees of a prefix: a state sees the last block's."""
    if event.kv_cache_spec_kind == "mamba":
        return STATE
    if event.kv_cache_spec_kind in {"sliding_window", "sliding_window_mla"}:
        return event.kv_cache_spec_sliding_window
    return None


def _unsigned(name: EngineHash) -> EngineHash:
    return name & _WORD if isinstance(name, int) else name


def _tokens(token_ids: list[int | list[int]]) -> TokenIds:
    """Take tokens as they are, and the first of each pair.

    Numbers go by an array into numpy in a third of the time that a list takes.
    """
    numbers: list[int] = cast("list[int]", token_ids)
    if token_ids and isinstance(token_ids[0], list):
        pairs = [pair for pair in token_ids if isinstance(pair, list) and pair]
        if len(pairs) < len(token_ids):
            raise ValueError("token_ids has pairs and other things")
        numbers = [pair[0] for pair in pairs]
    return np.frombuffer(array("I", numbers), dtype=np.uint32)


def _extras(event: AnyStored, *, is_root: bool) -> tuple[str | None, tuple[MultimodalItem, ...]]:
    """Find the cache salt and the items in `extra_keys`."""
    salt: str | None = None
    items: list[MultimodalItem] = []
    for block, extras in enumerate(event.extra_keys or ()):
        start = block * event.block_size
        for extra in _without_adapter(extras or (), event.lora_name):
            if isinstance(extra, list) and len(extra) == 2 and isinstance(extra[1], int):
                if extra[1] >= 0:
                    items.append(MultimodalItem(content=str(extra[0]), offset=start + extra[1]))
            elif is_root and block == 0 and isinstance(extra, str) and salt is None:
                salt = extra
            else:
                items.append(MultimodalItem(content=f"?{extra!r}", offset=start))
    return salt, tuple(items)


def _without_adapter(extras: Sequence[Any], lora: str | None) -> Sequence[Any]:
    return extras[1:] if lora is not None and extras and extras[0] == lora else extras
