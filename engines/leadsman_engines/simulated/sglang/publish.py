"""What an SGLang server pushes by ZMQ: cache events, and load.

Cache events are maps that leave out what has its default, one event for each run of pages of a
radix node, joined with the one before where it goes on from there. Names are signed. With EAGLE a
page's tokens are pairs. Each rank has its own port, and says its number where there are several.
What only later goes to the host's memory is told with its tokens again, so they are kept as long as
the pages are held anywhere.

Load is a gauge, on a socket of its own: sent where it changed, looked at every fifth step, and once
a second in any case.

Source: SGLang 0.5.23 srt/disaggregation/kv_events.py; mem_cache/events.py, enqueue;
managers/scheduler_components/load_publisher.py.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec
import zmq

from leadsman_engines.simulated.blocks import BlocksRemoved, BlocksStored, CacheEvent
from leadsman_engines.simulated.publish import EventPublisher

Tokens: TypeAlias = Sequence[int] | Sequence[tuple[int, int]]
Span: TypeAlias = Callable[[BlocksStored], Tokens]

LOAD_EVERY_STEPS = 5
LOAD_HEARTBEAT = 1.0


class StoredMap(msgspec.Struct, tag="BlockStored", omit_defaults=True, kw_only=True):
    """Pages stored. Fields without a default are always sent."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int] | list[tuple[int, int]]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    session_id: str | None = None


class RemovedMap(msgspec.Struct, tag="BlockRemoved", omit_defaults=True, kw_only=True):
    """Pages removed from one medium."""

    block_hashes: list[int]
    medium: str | None = None


class ClearedMap(msgspec.Struct, tag="AllBlocksCleared"):
    """Everything forgotten."""


class StoredArray(StoredMap, tag="BlockStored", array_like=True, omit_defaults=True, kw_only=True):
    """Pages stored, by position, as older servers sent it."""


class RemovedArray(
    RemovedMap, tag="BlockRemoved", array_like=True, omit_defaults=True, kw_only=True
):
    """Pages removed, by position."""


class ClearedArray(ClearedMap, tag="AllBlocksCleared", array_like=True):
    """Everything forgotten, by position."""


def signed(name: int) -> int:
    """Write a name of 64 bits as SGLang does, with a sign."""
    return name - 2**64 if name >= 2**63 else name


class SglangPublisher:
    """One rank's cache events. rank: None where there is only one."""

    def __init__(
        self, socket: EventPublisher, rank: int | None, page: int, *, as_arrays: bool = False
    ) -> None:
        self.socket = socket
        self._rank, self._page = rank, page
        self._stored: type[StoredMap] = StoredArray if as_arrays else StoredMap
        self._removed: type[RemovedMap] = RemovedArray if as_arrays else RemovedMap
        self._cleared: type[ClearedMap] = ClearedArray if as_arrays else ClearedMap
        self._tokens: dict[int, Tokens] = {}
        self._media: dict[int, set[str]] = {}

    def publish(self, events: Iterable[CacheEvent], span: Span, *, at: float) -> None:
        """Send what a step did; `at` is wall-clock seconds."""
        written: list[msgspec.Struct] = []
        for event in events:
            if isinstance(event, BlocksStored):
                self._store(event, span, written)
            elif isinstance(event, BlocksRemoved):
                self._remove(event, written)
            else:
                self._tokens.clear()
                self._media.clear()
                written.append(self._cleared())
        self.socket.send(written, at=at, rank=self._rank)

    def _store(self, event: BlocksStored, span: Span, written: list[msgspec.Struct]) -> None:
        if event.hashes[0] not in self._tokens:
            tokens = span(event)
            for place, name in enumerate(event.hashes):
                self._tokens[name] = tokens[place * self._page : (place + 1) * self._page]
        names = [signed(name) for name in event.hashes]
        token_ids = [token for name in event.hashes for token in self._tokens[name]]
        for name in event.hashes:
            self._media.setdefault(name, set()).add(event.medium)
        parent = None if event.parent is None else signed(event.parent)
        last = written[-1] if written else None
        if (
            isinstance(last, StoredMap)
            and (last.medium, last.session_id) == (event.medium, event.session_id)
            and parent == last.block_hashes[-1]
        ):
            last.block_hashes += names
            last.token_ids = [*last.token_ids, *token_ids]
            return
        written.append(
            self._stored(
                block_hashes=names,
                parent_block_hash=parent,
                token_ids=token_ids,  # type: ignore[arg-type]  # all alike
                block_size=self._page,
                lora_id=None,
                medium=event.medium,
                session_id=event.session_id,
            )
        )

    def _remove(self, event: BlocksRemoved, written: list[msgspec.Struct]) -> None:
        for name in event.hashes:
            media = self._media[name]
            media.discard(event.medium)
            if not media:
                del self._media[name], self._tokens[name]
        names = [signed(name) for name in event.hashes]
        last = written[-1] if written else None
        if isinstance(last, RemovedMap) and last.medium == event.medium:
            last.block_hashes += names
        else:
            written.append(self._removed(block_hashes=names, medium=event.medium))

    def start_over(self) -> None:
        """Forget what was sent, as a new process does."""
        self._tokens.clear()
        self._media.clear()
        self.socket.start_over()


class LoadStat(msgspec.Struct, array_like=True, tag=True):
    """One rank's load, by position."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_tokens: int
    max_total_num_tokens: int
    attn_dp_rank: int | None = None
    num_waiting_uncached_tokens: int = 0
    num_total_tokens: int = 0
    max_running_requests: int = 0
    total_prefill_uncached_tokens: int = 0
    total_prefill_busy_us: int = 0


class LoadPublisher:
    """One rank's load socket."""

    def __init__(self, host: str, port: int) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.set_hwm(8)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"tcp://{host}:{port or '*'}")
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._sequence = self._calls = 0
        self._last: LoadStat | None = None
        self._sent_at = 0.0

    def offer(self, stat: LoadStat, *, now: float, force: bool = False) -> None:
        """Send a load that is news, or was not sent for long; most calls are not looked at."""
        self._calls += 1
        if not force and self._calls % LOAD_EVERY_STEPS:
            return
        if stat == self._last and now - self._sent_at < LOAD_HEARTBEAT:
            return
        self._last, self._sent_at = stat, now
        frames = (b"load", self._sequence.to_bytes(8, "big"), msgspec.msgpack.encode(stat))
        self._sequence += 1
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(0)
        self._context.term()
