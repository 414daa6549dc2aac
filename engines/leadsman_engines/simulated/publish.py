"""Cache events on the wire, as vLLM publishes them.

Model. One batch per processed step that has events: three frames, topic, sequence (u64, from 0 in
each process) and MessagePack. The batch is an array [seconds, events, rank]; each event a map with
its class name under "type", or, as engines before mid-2026 sent it, an array that starts with it.
A removal is one event for each copy. Publishing never waits: a subscriber that is too slow misses
batches, and asks the replay socket (a ROUTER) for all from a sequence number on; the answer ends
with sequence -1. Only the latest batches are kept.

Source: vLLM 0.32 distributed/kv_events.py, ZmqEventPublisher; config/kv_events.py.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import zmq
import zmq.asyncio

from leadsman_engines.simulated.blocks import BlocksRemoved, BlocksStored, CacheEvent

KEPT_BATCHES = 10_000
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)

Span: TypeAlias = Callable[[BlocksStored], Sequence[int]]
"""Finds the token ids that the stored blocks hold."""


class StoredMap(msgspec.Struct, tag="BlockStored", omit_defaults=True, kw_only=True):
    """Blocks stored, in the form of a map. Fields without a default are always sent."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class RemovedMap(msgspec.Struct, tag="BlockRemoved", omit_defaults=True, kw_only=True):
    """Copies removed, in the form of a map."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class ClearedMap(msgspec.Struct, tag="AllBlocksCleared"):
    """Everything forgotten, in the form of a map."""


class StoredArray(StoredMap, tag="BlockStored", array_like=True, omit_defaults=True, kw_only=True):
    """Blocks stored, by position."""


class RemovedArray(
    RemovedMap, tag="BlockRemoved", array_like=True, omit_defaults=True, kw_only=True
):
    """Copies removed, by position."""


class ClearedArray(ClearedMap, tag="AllBlocksCleared", array_like=True):
    """Everything forgotten, by position."""


def wire_events(
    events: Iterable[CacheEvent], span: Span, *, block_size: int, as_arrays: bool
) -> list[msgspec.Struct]:
    """Write a step's events as the engine sends them."""
    stored = StoredArray if as_arrays else StoredMap
    removed = RemovedArray if as_arrays else RemovedMap
    cleared = ClearedArray if as_arrays else ClearedMap
    written: list[msgspec.Struct] = []
    for event in events:
        if isinstance(event, BlocksStored):
            written.append(
                stored(
                    block_hashes=list(event.hashes),
                    parent_block_hash=event.parent,
                    token_ids=span(event),
                    block_size=block_size,
                    lora_id=None,
                    medium="GPU",
                    lora_name=None,
                    extra_keys=[None] * len(event.hashes),
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                    session_id=event.session_id,
                )
            )
        elif isinstance(event, BlocksRemoved):
            written += [
                removed(block_hashes=[name], medium="GPU", group_idx=0) for name in event.hashes
            ]
        else:
            written.append(cleared())
    return written


class EventPublisher:
    """Publishes one engine's batches, and replays them. Lives on the running event loop."""

    def __init__(
        self, host: str, *, port: int = 0, replay_port: int = 0, as_arrays: bool = False
    ) -> None:
        self._context = zmq.Context()
        self._replay_context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._replay = self._replay_context.socket(zmq.ROUTER)
        for socket, number in ((self._pub, port), (self._replay, replay_port)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.SNDHWM, 100_000)
            socket.bind(f"tcp://{host}:{number or '*'}")
        self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay_endpoint = self._replay.getsockopt_string(zmq.LAST_ENDPOINT)
        self._topic = b""
        self._as_arrays = as_arrays
        self._next = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT_BATCHES)
        self._encode = msgspec.msgpack.Encoder().encode
        self._serving = asyncio.get_running_loop().create_task(self._serve_replay())

    def publish(
        self, events: Iterable[CacheEvent], span: Span, *, block_size: int, at: float
    ) -> None:
        """Send one batch; `at` is wall-clock seconds."""
        written = wire_events(events, span, block_size=block_size, as_arrays=self._as_arrays)
        self.send(written, at=at)

    def send(self, written: Sequence[msgspec.Struct], *, at: float, rank: int | None = 0) -> None:
        """Send one batch of events as they are to be written."""
        sequence = self._next.to_bytes(8, "big")
        self._next += 1
        payload = self._encode([at, written, rank])
        self._kept.append((sequence, payload))
        with contextlib.suppress(zmq.Again):
            self._pub.send_multipart((self._topic, sequence, payload), zmq.NOBLOCK)

    def start_over(self) -> None:
        """Forget what was sent, and count from 0 again, as a new process does."""
        self._kept.clear()
        self._next = 0

    async def _serve_replay(self) -> None:
        while True:
            frames = await self._replay.recv_multipart()
            if len(frames) != 3:
                continue
            peer, _, start = frames
            for sequence, payload in list(self._kept):
                if sequence >= start:
                    await self._replay.send_multipart((peer, b"", self._topic, sequence, payload))
            await self._replay.send_multipart((peer, b"", b"", END_OF_REPLAY, b""))

    async def close(self) -> None:
        """Stop answering, and close the sockets."""
        self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        self._pub.close(0)
        self._replay.close(0)
        self._context.term()
        self._replay_context.term()
