"""A simulated SGLang behind a real port, for tests."""

import contextlib
from random import Random

from aiohttp import ClientSession, web
from leadsman_engines.simulated.generation import FrontEnd
from leadsman_engines.simulated.hardware import Hardware
from leadsman_engines.simulated.ports import Ports
from leadsman_engines.simulated.presets import presets
from leadsman_engines.simulated.publish import EventPublisher
from leadsman_engines.simulated.sglang.engine import SimulatedSglang
from leadsman_engines.simulated.sglang.live import LiveSglang
from leadsman_engines.simulated.sglang.publish import LoadPublisher, SglangPublisher
from leadsman_engines.simulated.sglang.reports import kv_events
from leadsman_engines.simulated.sglang.server import SglangServer
from leadsman_engines.simulated.sglang.settings import SglangSettings
from leadsman_engines.simulated.text import ByteTokenizer

HARDWARE: Hardware = presets()["qwen2.5-0.5b-a10g"].hardware
HOST = "127.0.0.1"


def settings(**overrides):
    usual = {
        "model": "m",
        "page_size": 16,
        "max_total_num_tokens": 8_000,
        "max_running_requests": 8,
        "context_length": 4_000,
        "chunked_prefill_size": 512,
    }
    return SglangSettings(**usual | overrides)


class Served:
    def __init__(self, live, url, http):
        self.live, self.url, self.http = live, url, http

    async def post(self, path, body, **headers):
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            return response.status, await response.text()

    async def get(self, path):
        async with self.http.get(self.url + path) as response:
            return response.status, await response.json()


@contextlib.asynccontextmanager
async def serving(*, arrays=False, pushes_load=True, max_queued=None, speed=40.0, **overrides):
    front = overrides.pop("front", FrontEnd())
    said = settings(**overrides)
    async with contextlib.AsyncExitStack() as stack:
        ports, ranks = Ports(HOST), range(said.dp_size)
        first, replay, load = (ports.free(len(ranks)) for _ in range(3))
        events, loads = [], []
        for rank in ranks:
            socket = EventPublisher(HOST, port=first + rank, replay_port=replay + rank)
            stack.push_async_callback(socket.close)
            number = rank if len(ranks) > 1 else None
            events.append(SglangPublisher(socket, number, said.page_size, as_arrays=arrays))
            if pushes_load:
                loads.append(LoadPublisher(HOST, load + rank))
                stack.callback(loads[-1].close)
        engine = SimulatedSglang(said, HARDWARE, Random(1))
        publishers = (events, loads)
        live = LiveSglang(engine, ByteTokenizer(), publishers, speed=speed, max_queued=max_queued)
        stack.callback(live.close)
        told = kv_events(live, events, loads)
        app = SglangServer(live, told, front, Random(2)).app()
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, HOST, 0).start()
        http = await stack.enter_async_context(ClientSession())
        yield Served(live, f"http://{HOST}:{runner.addresses[0][1]}", http)
