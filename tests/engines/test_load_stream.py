import asyncio

import zmq
from leadsman_engines.load_stream import LoadStream


async def test_more_ranks_can_be_followed_than_a_context_has_sockets_by_default():
    with zmq.Context() as fresh:
        usual = fresh.get(zmq.MAX_SOCKETS)

    following = [asyncio.create_task(stream().run()) for _ in range(usual + 1)]
    await asyncio.sleep(0)

    assert not any(task.done() for task in following)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)


def stream():
    return LoadStream("w", ("tcp://127.0.0.1:9", "load"), print, lambda: 0.0)
