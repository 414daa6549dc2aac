"""The gRPC server against gRPC's own client."""

import asyncio

import grpc
import pytest
import uvloop
from leadsman_extproc.certificates import context_of, self_signed
from leadsman_extproc.http2.server import listening

PATH = "/test.Service/Echo"


class Echo:
    """Gives every message back, but for the one that is a wish."""

    def __init__(self, call):
        self.call, self.goodbyes, self.is_gone = call, 0, asyncio.Event()

    def message(self, raw):
        if raw == b"fail":
            raise RuntimeError("this handler fails")
        self.call.send([raw])

    def whole(self):
        self.call.finish()

    def gone(self):
        self.goodbyes += 1
        self.is_gone.set()


@pytest.fixture
async def client():
    opened = []

    def open_echo(call):
        opened.append(Echo(call))
        return opened[-1]

    async with (
        listening("127.0.0.1:0", {PATH: open_echo}) as port,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", -1)]
        ) as channel,
    ):
        yield channel, opened


async def test_grpcs_own_client_gets_every_message_of_any_size_back_in_order(client):
    channel, opened = client
    sizes = [0, 1, 5, 16_379, 16_384, 100_000, 3, 9_000_000, 0, 70_000]
    sent = [bytes([number]) * size for number, size in enumerate(sizes)]

    async def messages():
        for one in sent:
            yield one

    call = channel.stream_stream(PATH)(messages())
    back = [one async for one in call]

    assert back == sent
    assert await call.code() is grpc.StatusCode.OK
    assert [receiver.goodbyes for receiver in opened] == [1]


async def test_many_calls_at_once_do_not_mix(client):
    channel, opened = client

    async def one(number):
        call = channel.stream_stream(PATH)()
        for round_ in range(5):
            sent = b"%d/%d " % (number, round_) * (1 + 500 * (number % 7))
            await call.write(sent)
            assert await call.read() == sent
        await call.done_writing()
        return await call.code()

    codes = await asyncio.gather(*(one(number) for number in range(50)))

    assert set(codes) == {grpc.StatusCode.OK}
    assert [receiver.goodbyes for receiver in opened] == [1] * 50


async def test_a_call_that_the_client_cancels_is_gone_once(client):
    channel, opened = client
    call = channel.stream_stream(PATH)()
    await call.write(b"hello")
    await call.read()

    call.cancel()
    async with asyncio.timeout(10):
        await opened[0].is_gone.wait()

    assert opened[0].goodbyes == 1


@pytest.mark.parametrize(
    ("path", "message", "code"),
    [
        ("/test.Service/Other", b"hello", grpc.StatusCode.UNIMPLEMENTED),
        (PATH, b"fail", grpc.StatusCode.UNKNOWN),
    ],
)
async def test_what_cannot_be_served_ends_with_its_status(client, path, message, code):
    channel, _ = client

    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(path)(message)

    assert raised.value.code() is code


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_by_tls_every_message_comes_back_too(tmp_path, run):
    assert run(_by_tls(tmp_path)) == [grpc.StatusCode.OK] * 8


async def _by_tls(folder):
    files = self_signed(folder)
    tls = context_of(files)
    trust = grpc.ssl_channel_credentials(files.certificate.read_bytes())
    limit = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.ssl_target_name_override", "leadsman"),
    ]

    async def talk(number):
        call = channel.stream_stream(PATH)()
        for size in (10, 100_000, 3_000_000, 0, 700_000):
            sent = bytes([number]) * size
            await call.write(sent)
            assert await call.read() == sent
        await call.done_writing()
        return await call.code()

    async with (
        listening("127.0.0.1:0", {PATH: Echo}, tls=tls) as port,
        grpc.aio.secure_channel(f"localhost:{port}", trust, options=limit) as channel,
        asyncio.timeout(60),
    ):
        return await asyncio.gather(*(talk(number) for number in range(8)))
