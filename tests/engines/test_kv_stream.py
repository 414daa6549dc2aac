import asyncio
import contextlib

import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio
from leadsman.index import CacheIndex
from leadsman.keys import block_keys, namespace_seed
from leadsman.records import Cleared, KvEvents, Trust, TrustChanged
from leadsman.units import WorkerId
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_follower import KvSource
from leadsman_engines.kv_stream import KvStream

W = WorkerId("w:1")
KEYS = block_keys(np.arange(40, dtype=np.uint32), 2, namespace_seed(secret=b"s", model="m"))


def stored(n, **more):
    return {
        "type": "BlockStored",
        "block_hashes": [100 + n],
        "parent_block_hash": 99 + n if n else None,
        "token_ids": [2 * n, 2 * n + 1],
        "block_size": 2,
        **more,
    }


class Engine:
    """What a vLLM engine does on its two event sockets."""

    def __init__(self, events="tcp://127.0.0.1:*", replay="tcp://127.0.0.1:*", *, topics=True):
        context = zmq.asyncio.Context.instance()
        self.pub, self.router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        self.wanted = ((self.pub, events), (self.router, replay))
        self.topics = topics
        self.buffer = []
        self.asked = []

    async def start(self):
        for socket, endpoint in self.wanted:
            await bind(socket, endpoint)
        self.events = self.pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.task = asyncio.create_task(self.serve())
        return self

    async def publish(self, *events, lost=False, payload=None):
        number = len(self.buffer).to_bytes(8)
        self.buffer.append(payload or msgspec.msgpack.encode([1.0, list(events), None]))
        if not lost:
            await self.pub.send_multipart([b"kv", number, self.buffer[-1]])

    async def subscribed(self):
        """Wait for the subscription: what is published before it comes is heard by nobody."""
        async with asyncio.timeout(20):
            assert (await self.pub.recv())[:1] == b"\x01"

    async def serve(self):
        while True:
            peer, _, start = await self.router.recv_multipart()
            self.asked.append(int.from_bytes(start))
            topic = [b"kv"] if self.topics else []
            for number in range(self.asked[-1], len(self.buffer)):
                frames = [*topic, number.to_bytes(8), self.buffer[number]]
                await self.router.send_multipart([peer, b"", *frames])
            await self.router.send_multipart([peer, b"", b"", b"\xff" * 8, b""])

    async def close(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        self.pub.close(linger=0)
        self.router.close(linger=0)


async def bind(socket, endpoint):
    async with asyncio.timeout(20):
        while True:
            try:
                socket.bind(endpoint)
            except zmq.ZMQError:
                await asyncio.sleep(0.005)
            else:
                return


class Watcher:
    def __init__(self, engine, **source):
        source = {"events": engine.events, "replay": engine.replay} | source
        self.records = asyncio.Queue()
        self.index = CacheIndex()
        self.trusts = []
        self.events = []
        blocks = EngineBlocks(secret=b"s", model="m")
        self.stream = KvStream(
            KvSource(worker=W, **source), blocks, self.records.put_nowait, lambda: 7.0
        )
        self.task = asyncio.create_task(self.stream.run())

    async def until(self, condition):
        async with asyncio.timeout(20):
            while not condition(self):
                record = await self.records.get()
                if isinstance(record, TrustChanged):
                    self.trusts.append(record.trust)
                    self.index.set_trust(W, record.trust)
                else:
                    self.events.append(record)
                    self.index.apply(W, record.events)

    async def close(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def held(self):
        return self.index.match(KEYS, [W]).gpu.tolist()[0]


@pytest.fixture
async def engine():
    engine = await Engine().start()
    yield engine
    await engine.close()


@contextlib.asynccontextmanager
async def watching(engine, **source):
    watcher = Watcher(engine, **source)
    try:
        yield watcher
    finally:
        await watcher.close()


def is_live(watcher):
    return watcher.trusts[-1:] == [Trust.LIVE]


async def test_history_comes_by_the_replay_and_news_by_the_live_socket(engine):
    for n in range(3):
        await engine.publish(stored(n))

    async with watching(engine) as watcher:
        await watcher.until(lambda w: w.held() == 3 and is_live(w))
        await engine.subscribed()
        await engine.publish(stored(3))
        await watcher.until(lambda w: w.held() == 4)

    assert watcher.trusts == [Trust.REPLAYING, Trust.LIVE]
    assert watcher.events[0] == KvEvents(
        worker=W, sequence=0, engine_time=1.0, received_at=7.0, events=watcher.events[0].events
    )
    assert watcher.events[0].events[0].keys.tolist() == KEYS[:1].tolist()


@pytest.mark.parametrize("topics", [True, False])
async def test_lost_batches_are_fetched_with_or_without_topics(topics):
    engine = await Engine(topics=topics).start()
    await engine.publish(stored(0))

    async with watching(engine) as watcher:
        await watcher.until(lambda w: w.held() == 1 and is_live(w))
        await engine.subscribed()
        await engine.publish(stored(1), lost=True)
        await engine.publish(stored(2))
        await watcher.until(lambda w: w.held() == 3)

    await engine.close()
    assert engine.asked[-1] == 0
    assert [record.sequence for record in watcher.events] == [0, 1, 2]


async def test_lost_batches_without_a_replay_socket_make_the_view_suspect(engine):
    async with watching(engine, replay=None) as watcher:
        await watcher.until(is_live)
        await engine.subscribed()
        await engine.publish(stored(0))
        await engine.publish(stored(1), lost=True)
        await engine.publish(stored(2))
        await watcher.until(lambda w: w.trusts[-1] is Trust.SUSPECT)

    assert watcher.held() == 0


async def test_an_engine_that_restarts_in_place_and_stays_idle_is_forgotten(engine):
    await engine.publish(stored(0))

    async with watching(engine) as watcher:
        await watcher.until(lambda w: w.held() == 1 and is_live(w))
        await engine.close()
        second = await Engine(engine.events, engine.replay).start()
        await watcher.until(lambda w: w.held() == 0 and is_live(w))

    await second.close()
    assert watcher.events[-1].events == (Cleared(),)


async def test_an_unreadable_batch_makes_the_view_suspect_and_a_bad_event_is_counted(engine):
    await engine.publish(stored(0), {"type": "Nonsense"})
    await engine.publish(payload=b"\xc1")
    await engine.publish(stored(1))

    async with watching(engine) as watcher:
        await watcher.until(lambda w: len(w.events) == 2 and w.trusts[-1] is Trust.SUSPECT)

    assert watcher.stream.counts == {"bad_event": 1, "bad_batch": 1}
    assert watcher.index.holds(W, KEYS[:2]).tolist() == [True, True]
    assert watcher.held() == 0


async def test_a_clear_lifts_the_suspicion(engine):
    await engine.publish(payload=b"\xc1")
    await engine.publish({"type": "AllBlocksCleared"}, stored(0))

    async with watching(engine) as watcher:
        await watcher.until(lambda w: w.held() == 1 and is_live(w))

    assert watcher.trusts == [Trust.REPLAYING, Trust.SUSPECT, Trust.LIVE]


async def test_a_replay_that_nobody_answers_ends_and_the_stream_goes_on(engine):
    engine.task.cancel()

    async with watching(engine, replay_timeout=0.05) as watcher:
        await watcher.until(is_live)

    assert watcher.trusts == [Trust.REPLAYING, Trust.LIVE]


async def test_an_engine_with_windowed_caches_is_followed_blind(engine):
    await engine.publish(stored(0), stored(0, group_idx=1, kv_cache_spec_kind="sliding_window"))

    async with watching(engine) as watcher:
        await watcher.until(lambda w: len(w.events) == 1)

    assert watcher.trusts == [Trust.REPLAYING, Trust.BLIND]
    assert watcher.index.holds(W, KEYS[:1]).all()
    assert watcher.held() == 0


async def test_frames_that_make_no_sense_are_counted(engine):
    await engine.publish(stored(0))

    async with watching(engine) as watcher:
        await watcher.until(is_live)
        await engine.subscribed()
        await engine.pub.send_multipart([b"alone"])
        await engine.pub.send_multipart([b"kv", b"short", b"x"])
        await engine.publish(stored(1))
        await watcher.until(lambda w: w.held() == 2)

    assert watcher.stream.counts["bad_frames"] == 2
