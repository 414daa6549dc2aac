import asyncio

import msgspec
import zmq
import zmq.asyncio
from leadsman_engines.load_stream import LoadStream


async def test_what_a_publisher_pushes_is_heard_and_what_is_no_load_is_counted():
    heard = asyncio.Queue()
    with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as publisher:
        publisher.bind("tcp://127.0.0.1:*")
        place = publisher.getsockopt_string(zmq.LAST_ENDPOINT)
        stream = LoadStream("w", (place, "load"), heard.put_nowait, lambda: 3.0)
        following = asyncio.create_task(stream.run())
        assert await publisher.recv() == b"\x01load"

        await publisher.send_multipart([b"load", b"0", b"\xc1"])
        load = msgspec.msgpack.encode(["LoadStat", 2, 1, 50, 100, "newer"])
        await publisher.send_multipart([b"load", b"1", load])
        sample = await heard.get()

        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    assert (sample.at, sample.running, sample.waiting, sample.kv_usage) == (3.0, 2, 1, 0.5)
    assert stream.counts == {"bad_load": 1}
