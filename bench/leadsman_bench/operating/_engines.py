"""Engines that only speak of their caches: many addresses in one process, each with its events.

Each serves the pages that a collector reads, and publishes batches of one event over a socket of
its own. Every other event removes what an early one stored, so no cache grows for ever. The sends
are spread over time: no two endpoints beat together.

Prints one JSON line when it serves. Arguments: how many endpoints, events a second of each, port.
"""

import asyncio
import json
import sys
import time
from collections import deque
from functools import partial
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
HELD: Final = 100
"""Events whose blocks an endpoint holds before it begins to remove."""
TICK: Final = 0.002
_SPEC: Final = "full_attention"
_encode = msgspec.msgpack.Encoder().encode


def address(number: int) -> str:
    """Give the loopback address of an endpoint."""
    return f"127.90.{number // 250}.{number % 250 + 1}"


class Publisher:
    """One endpoint's events. Replays are answered with nothing: there was nothing before."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", host: str, number: int) -> None:
        self._events = context.socket(zmq.PUB)
        self._events.setsockopt(zmq.SNDHWM, 100_000)
        self._events.bind(f"tcp://{host}:*")
        self.replay = context.socket(zmq.ROUTER)
        self.replay.bind(f"tcp://{host}:*")
        self._next = 0
        self._names = (number + 1 << 40) - BLOCKS
        self._stored: deque[list[int]] = deque()

    @property
    def source(self) -> dict[str, object]:
        """What `/kv_event_sources` says of it."""
        places = (one.getsockopt_string(zmq.LAST_ENDPOINT) for one in (self._events, self.replay))
        events, replay = places
        return {"endpoint": events, "replay_endpoint": replay, "topic": ""}

    def publish(self) -> None:
        """Send the next batch, with the time of sending as the engine's own."""
        payload = _encode([time.time(), [self.event()], 0])
        self._events.send_multipart((b"", self._next.to_bytes(8, "big"), payload), zmq.NOBLOCK)
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

    def event(self) -> msgspec.Struct:
        """Make the next event."""
        if len(self._stored) > HELD:
            return RemovedMap(block_hashes=self._stored.popleft(), medium="GPU", group_idx=0)
        first = self._names = self._names + BLOCKS
        names = list(range(first, first + BLOCKS))
        begins = first % (BLOCKS * CHAIN) == 0
        self._stored.append(names)
        return StoredMap(
            block_hashes=names,
            parent_block_hash=None if begins else first - 1,
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
    """Serve and publish until killed; each endpoint `rate` events a second from the start."""
    loop = asyncio.get_running_loop()
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * count + 16)
    publishers = []
    for number in range(count):
        publisher = Publisher(context, address(number), number)
        pages = dict(PAGES)
        pages[b"/kv_event_sources"] = page(json.dumps({"0": publisher.source}))
        await loop.create_server(partial(Engine, pages), address(number), port)
        publishers.append(publisher)
    print(json.dumps({"ports": [port]}), flush=True)
    await asyncio.gather(_publish(publishers, rate), _answer(publishers))


async def _publish(publishers: list[Publisher], rate: float) -> None:
    """Go round all endpoints, each at its turn; where this process was late, it catches up."""
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
