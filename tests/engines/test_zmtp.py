import asyncio
import contextlib

import pytest
import zmq
import zmq.asyncio
from hypothesis import given
from hypothesis import strategies as st
from leadsman_engines.zmtp import Zmtp, ZmtpError, frame, message, subscription
from leadsman_engines.zmtp_link import Link

READY = frame(b"\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB", command=True)
messages = st.lists(st.lists(st.binary(max_size=400), min_size=1, max_size=4), max_size=6)


def greeting(mechanism=b"NULL", version=3):
    return b"\xff" + bytes(8) + bytes((0x7F, version, 1)) + mechanism.ljust(20, b"\0") + bytes(32)


@given(messages, st.data())
def test_messages_are_the_same_in_whatever_pieces_they_come(told, data):
    sent = greeting() + READY + b"".join(message(*frames) for frames in told)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=12)))
    wire = Zmtp("SUB")

    pieces = zip([0, *cuts], [*cuts, len(sent)], strict=True)
    heard = [frames for begin, end in pieces for frames in wire.take(sent[begin:end])]

    assert heard == told
    assert wire.is_ready


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (greeting(version=1), "version 4"),
        (b"HTTP/1.1 400 Bad Request".ljust(64), "version 4"),
        (greeting(b"CURVE"), "CURVE"),
        (greeting() + frame(b"\x05ERROR\x04full", command=True), "full"),
        (greeting() + b"\x02" + b"\xff" * 8, "bytes"),
    ],
)
def test_a_peer_that_cannot_be_spoken_to_is_told_apart(said, why):
    with pytest.raises(ZmtpError, match=why):
        Zmtp("SUB").take(said)


def test_a_ping_is_answered_with_what_it_brought():
    wire = Zmtp("SUB")
    wire.take(greeting() + READY)
    wire.outgoing = b""

    wire.take(frame(b"\x04PING\x00\x0acontext", command=True))

    assert wire.outgoing == frame(b"\x04PONGcontext", command=True)


class Peer:
    """A socket of libzmq's own."""

    def __init__(self, kind, endpoint="tcp://127.0.0.1:*", **options):
        self.socket = zmq.asyncio.Context.instance().socket(kind)
        for name, value in options.items():
            self.socket.setsockopt(getattr(zmq, name), value)
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close(linger=0)


@contextlib.asynccontextmanager
async def linked(endpoint, kind, first, **told):
    heard = asyncio.Queue()
    task = asyncio.create_task(Link(endpoint, kind, first, heard.put_nowait, **told).run())
    try:
        async with asyncio.timeout(20):
            yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


SIZES = (0, 1, 255, 256, 100_000, 3_000_000)


@pytest.mark.parametrize("place", ["tcp", "ipc"])
async def test_a_publisher_of_libzmq_is_heard_whole_and_by_topic(place, tmp_path):
    where = "tcp://127.0.0.1:*" if place == "tcp" else f"ipc://{tmp_path}/events"
    with Peer(zmq.XPUB, where) as peer:
        async with linked(peer.endpoint, "SUB", subscription("kv")) as heard:
            assert await peer.socket.recv() == b"\x01kv"
            for size in SIZES:
                await peer.socket.send_multipart([b"other", b"x"])
                await peer.socket.send_multipart([b"kv", b"x" * size, b"y"])
            got = [await heard.get() for _ in SIZES]

    assert [(frames[0], len(frames[1]), frames[2]) for frames in got] == [
        (b"kv", size, b"y") for size in SIZES
    ]


async def test_a_router_of_libzmq_is_asked_and_answers():
    with Peer(zmq.ROUTER) as peer:
        async with linked(peer.endpoint, "DEALER", message(b"", b"12345678")) as heard:
            who, *question = await peer.socket.recv_multipart()
            await peer.socket.send_multipart([who, b"", b"answer"])
            answer = await heard.get()

    assert question == [b"", b"12345678"]
    assert answer == [b"", b"answer"]


async def test_a_publisher_that_asks_whether_we_live_keeps_us():
    ready = asyncio.Queue()
    beats = {"HEARTBEAT_IVL": 20, "HEARTBEAT_TIMEOUT": 60}
    with Peer(zmq.XPUB, **beats) as peer:
        told = {"on_ready": lambda: ready.put_nowait(None)}
        async with linked(peer.endpoint, "SUB", subscription(""), **told) as heard:
            await peer.socket.recv()
            await asyncio.sleep(0.3)
            await peer.socket.send(b"still here")
            assert await heard.get() == [b"still here"]

    assert ready.qsize() == 1


async def test_a_peer_that_comes_late_or_comes_again_is_connected_to():
    with Peer(zmq.XPUB) as peer:
        endpoint = peer.endpoint
    async with linked(endpoint, "SUB", subscription("")) as heard:
        for word in (b"first", b"second"):
            await asyncio.sleep(0.1)
            with Peer(zmq.XPUB, endpoint) as peer:
                await peer.socket.recv()
                await peer.socket.send(word)
                assert await heard.get() == [word]


async def test_what_the_hearer_raises_ends_the_link():
    def hear(_):
        raise OSError("no room")

    with Peer(zmq.XPUB) as peer:
        link = Link(peer.endpoint, "SUB", subscription(""), hear)
        task = asyncio.create_task(link.run())
        await peer.socket.recv()
        await peer.socket.send(b"word")
        with pytest.raises(OSError, match="no room"):
            await task


async def test_nothing_is_heard_of_a_link_that_was_hung_up_upon():
    heard = []

    def hear(frames):
        heard.append(frames)
        link.hang_up()

    with Peer(zmq.ROUTER) as peer:
        link = Link(peer.endpoint, "DEALER", message(b"?"), hear)
        task = asyncio.create_task(link.run())
        who, _ = await peer.socket.recv_multipart()
        for number in range(5):
            await peer.socket.send_multipart([who, bytes((number,))])
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert heard[0] == [b"\x00"]
    assert all(frames == [b"\x00"] for frames in heard)


async def test_an_endpoint_that_is_none_is_said():
    with pytest.raises(ValueError, match="neither tcp"):
        await Link("inproc://x", "SUB", b"", print).run()
