"""Engines that only speak of their caches: many addresses in one process, each with its events.

Each serves the pages that a collector reads, and publishes batches of one event over a socket of
its own. Once an endpoint holds enough, it removes what it stored longest ago before it stores
anew, over and over. All batches are made before the first is sent, but for the time in them, so
that sending takes little of the machine that is shared. The sends are spread over time: no two
endpoints beat together.

Prints one JSON line when it serves, and publishes from when it gets SIGUSR1. Arguments: how many
endpoints, events a second of each, port.
"""

import asyncio
import json
import signal
import sys
import time
from functools import partial
from struct import Struct
from typing import Final

import msgspec
import uvloop
import zmq
from leadsman_engines.simulated.publish import END_OF_REPLAY, RemovedMap, StoredMap

from leadsman_bench.micro._upstream import PAGES, Engine, page

BLOCKS: Final = 2
BLOCK_SIZE: Final = 64
CHAIN: Final = 8
"""Events that a prefix is stored by, one going on from the other."""
HELD: Final = 12 * CHAIN
"""Events whose blocks an endpoint holds once it begins to remove."""
TICK: Final = 0.002
_SPEC: Final = "full_attention"
_encode = msgspec.msgpack.Encoder().encode
_SENT_AT: Final = Struct(">cd")
"""How a batch says its time, behind its first byte."""


def sent_now(batch: bytes) -> bytes:
    """Say in a batch that it is sent now."""
    return batch[:1] + _SENT_AT.pack(b"\xcb", time.time()) + batch[1 + _SENT_AT.size :]


def address(number: int) -> str:
    """Give the loopback address of an endpoint."""
    return f"127.90.{number // 250}.{number % 250 + 1}"


class Publisher:
    """One endpoint's events. Replays are answered with nothing: there was nothing before.

    first, again: what it sends once, and what it sends for ever after.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", host: str, number: int) -> None:
        self._events = context.socket(zmq.PUB)
        self._events.setsockopt(zmq.SNDHWM, 100_000)
        self._events.bind(f"tcp://{host}:*")
        self.replay = context.socket(zmq.ROUTER)
        self.replay.bind(f"tcp://{host}:*")
        self._next = 0
        self.first, self.again = batches(number)

    @property
    def source(self) -> dict[str, object]:
        """What `/kv_event_sources` says of it."""
        places = (one.getsockopt_string(zmq.LAST_ENDPOINT) for one in (self._events, self.replay))
        events, replay = places
        return {"endpoint": events, "replay_endpoint": replay, "topic": ""}

    def publish(self) -> None:
        """Send the next batch, with the time of sending as the engine's own."""
        place = self._next - len(self.first)
        batch = self.first[place] if place < 0 else self.again[place % len(self.again)]
        numbered = (b"", self._next.to_bytes(8, "big"), sent_now(batch))
        self._events.send_multipart(numbered, zmq.NOBLOCK)
        self._next += 1

    def answer(self) -> None:
        """Say to all who asked that this is all."""
        while self.replay.poll(0):
            peer, *_ = self.replay.recv_multipart()
            self.replay.send_multipart((peer, b"", b"", END_OF_REPLAY, b""))

    def close(self) -> None:
        """Close both sockets."""
        self._events.close(0)
        self.replay.close(0)


def batches(number: int) -> tuple[list[bytes], list[bytes]]:
    """Make what an endpoint sends at first, and then over and over."""
    stored = [_encode([0.0, [_stored(number, turn)], 0]) for turn in range(2 * HELD)]
    removed = [_encode([0.0, [_removed(number, turn)], 0]) for turn in range(2 * HELD)]
    again = []
    for turn in range(2 * HELD):
        again += [removed[turn], stored[turn - HELD]]
    return stored[:HELD], again


def _names(number: int, turn: int) -> list[int]:
    first = (number + 1 << 40) + turn * BLOCKS
    return list(range(first, first + BLOCKS))


def _removed(number: int, turn: int) -> msgspec.Struct:
    return RemovedMap(block_hashes=_names(number, turn), medium="GPU", group_idx=0)


def _stored(number: int, turn: int) -> msgspec.Struct:
    names = _names(number, turn)
    first = (number << 20) + turn * BLOCKS * BLOCK_SIZE
    return StoredMap(
        block_hashes=names,
        parent_block_hash=names[0] - 1 if turn % CHAIN else None,
        token_ids=[one % 50_000 for one in range(first, first + BLOCKS * BLOCK_SIZE)],
        block_size=BLOCK_SIZE,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=[None] * BLOCKS,
        group_idx=0,
        kv_cache_spec_kind=_SPEC,
    )


async def serve(count: int, rate: float, port: int) -> None:
    """Serve until killed; once told to, publish `rate` events a second of each endpoint."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, told.set)
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * count + 16)
    publishers = []
    for number in range(count):
        pages = dict(PAGES)
        # Before the publisher takes what ports are free: it might take this one.
        await loop.create_server(partial(Engine, pages), address(number), port)
        publisher = Publisher(context, address(number), number)
        pages[b"/kv_event_sources"] = page(json.dumps({"0": publisher.source}))
        publishers.append(publisher)
    print(json.dumps({"ports": [port]}), flush=True)
    await asyncio.gather(_publish(publishers, rate, told), _answer(publishers))


async def _publish(publishers: list[Publisher], rate: float, told: asyncio.Event) -> None:
    """Go round all endpoints, each at its turn; where this process was late, it catches up."""
    await told.wait()
    clock = asyncio.get_running_loop().time
    began, sent = clock(), 0
    while True:
        due = int((clock() - began) * rate * len(publishers))
        for turn in range(sent, due):
            publishers[turn % len(publishers)].publish()
        sent = due
        await asyncio.sleep(TICK)


async def _answer(publishers: list[Publisher]) -> None:
    while True:
        for publisher in publishers:
            publisher.answer()
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
