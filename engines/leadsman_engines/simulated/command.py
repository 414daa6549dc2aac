"""`leadsman simulate-engine`: one simulated engine as a process, until it is told to stop.

When it serves, it prints one JSON line on standard output: the port of its HTTP server and the
endpoints of its cache events (null where they are off); of several ranks, those of the first.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.generation import FrontEnd
from leadsman_engines.simulated.hardware import Hardware
from leadsman_engines.simulated.live import LiveEngine
from leadsman_engines.simulated.ports import Ports
from leadsman_engines.simulated.presets import presets
from leadsman_engines.simulated.publish import EventPublisher
from leadsman_engines.simulated.server import EngineServer
from leadsman_engines.simulated.settings import SimulatedSettings
from leadsman_engines.simulated.sglang.engine import SimulatedSglang
from leadsman_engines.simulated.sglang.live import LiveSglang
from leadsman_engines.simulated.sglang.publish import LoadPublisher, SglangPublisher
from leadsman_engines.simulated.sglang.reports import kv_events
from leadsman_engines.simulated.sglang.server import SglangServer
from leadsman_engines.simulated.sglang.settings import SglangSettings
from leadsman_engines.simulated.text import ByteTokenizer, FileTokenizer, Tokenizer


def main(argv: list[str]) -> int:
    """Run the command; returns the exit status."""
    arguments = _parser().parse_args(argv)
    if arguments.list_presets:
        for preset in presets().values():
            print(f"{preset.name}: {preset.about.strip().splitlines()[0]}")
        return 0
    try:
        settings = _settings(arguments)
    except ValueError as error:
        print(f"simulate-engine: {error}")
        return 2
    asyncio.run(_serve_until_told(arguments, settings))
    return 0


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"on or off, not {text!r}")
    return text == "on"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="leadsman simulate-engine", description=__doc__)
    add = parser.add_argument
    add("--engine", default="vllm", choices=("vllm", "sglang"), help="whose scheduler and API")
    add("--preset", default="qwen2.5-0.5b-a10g", choices=sorted(presets()), help="model and GPU")
    add("--list-presets", action="store_true", help="say which there are, and stop")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: any free one")
    add("--events", type=_switch, default=True, metavar="on|off", help="publish cache events")
    add("--events-port", type=int, default=0, help="of the first rank; the others' follow it")
    add("--replay-port", type=int, default=0)
    add("--load-port", type=int, help="push load by ZMQ from there on (0: any; sglang)")
    add("--array-events", action="store_true", help="events as arrays, as older engines send them")
    add("--speed", type=float, default=1.0, help="how many times faster than real time")
    add("--seed", type=int, default=0)
    add("--tokenizer", type=Path, help="folder of tokenizer.json and tokenizer_config.json")
    add("--chat-template", type=Path, help="template in place of the tokenizer's own")
    add("--mean-output", type=float, default=250.0, help="tokens of a reply of unstated length")
    add("--dev-mode", type=_switch, default=True, metavar="on|off", help="serve /server_info")
    add("--force-include-usage", action="store_true")
    add("--max-num-queued-reqs", type=int, help="refuse with 503 above that")
    add("--cache-report", type=_switch, default=True, metavar="on|off", help="tell it in usage")
    group = parser.add_argument_group("settings of the engine, in place of the preset's")
    for name, kind in _overrides().items():
        group.add_argument("--" + name.replace("_", "-"), type=kind, dest="set_" + name)
    return parser


def _overrides() -> dict[str, Callable[[str], Any]]:
    """Say which settings can be given, and how each is read from text."""
    of_type: dict[object, Callable[[str], Any]] = {
        str: str,
        int: int,
        float: float,
        bool: _switch,
        int | None: int,
    }
    both = (*fields(SimulatedSettings), *fields(SglangSettings))
    return {field.name: of_type.get(field.type, str) for field in both}


def _settings(arguments: argparse.Namespace) -> SimulatedSettings | SglangSettings:
    preset = presets()[arguments.preset]
    base = preset.sglang if arguments.engine == "sglang" else preset.settings
    given = {
        name: value
        for name in _overrides()
        if (value := getattr(arguments, "set_" + name)) is not None
    }
    strange = given.keys() - {field.name for field in fields(base)}
    if strange:
        raise ValueError(f"{arguments.engine} has no setting {', '.join(sorted(strange))}")
    return replace(base, **given)


@dataclass(slots=True)
class _Ready:
    """What serves, and where its cache events are."""

    app: web.Application
    events: str | None = None
    replay: str | None = None


async def _serve_until_told(
    arguments: argparse.Namespace, settings: SimulatedSettings | SglangSettings
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        if isinstance(settings, SglangSettings):
            ready = _sglang(arguments, settings, stack)
        else:
            ready = _vllm(arguments, settings, stack)
        runner = web.AppRunner(
            ready.app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None
        )
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, arguments.host, arguments.port).start()
        port = runner.addresses[0][1]
        said = {"port": port, "kv_events": ready.events, "kv_replay": ready.replay}
        print(json.dumps(said), flush=True)
        await stop.wait()


def _vllm(
    arguments: argparse.Namespace, settings: SimulatedSettings, stack: AsyncExitStack
) -> _Ready:
    publisher = None
    if arguments.events:
        publisher = EventPublisher(
            arguments.host,
            port=arguments.events_port,
            replay_port=arguments.replay_port,
            as_arrays=arguments.array_events,
        )
        stack.push_async_callback(publisher.close)
    live = LiveEngine(
        SimulatedEngine(settings, _hardware(arguments), Random(arguments.seed)),
        _tokenizer(arguments),
        publisher,
        speed=arguments.speed,
        max_queued=arguments.max_num_queued_reqs,
    )
    stack.callback(live.close)
    server = EngineServer(live, publisher, _front(arguments), Random(arguments.seed))
    if publisher is None:
        return _Ready(server.app())
    return _Ready(server.app(), publisher.endpoint, publisher.replay_endpoint)


def _sglang(
    arguments: argparse.Namespace, settings: SglangSettings, stack: AsyncExitStack
) -> _Ready:
    events, loads, ranks = list[SglangPublisher](), list[LoadPublisher](), range(settings.dp_size)
    place = Ports(arguments.host)
    if arguments.events:
        first = arguments.events_port or place.free(len(ranks))
        replay = arguments.replay_port or place.free(len(ranks))
        for rank in ranks:
            socket = EventPublisher(arguments.host, port=first + rank, replay_port=replay + rank)
            stack.push_async_callback(socket.close)
            number = None if len(ranks) == 1 else rank
            page, arrays = settings.page_size, arguments.array_events
            events.append(SglangPublisher(socket, number, page, as_arrays=arrays))
    if arguments.load_port is not None:
        first = arguments.load_port or place.free(len(ranks))
        for rank in ranks:
            loads.append(LoadPublisher(arguments.host, first + rank))
            stack.callback(loads[-1].close)
    live = LiveSglang(
        SimulatedSglang(settings, _hardware(arguments), Random(arguments.seed)),
        _tokenizer(arguments),
        (events, loads),
        speed=arguments.speed,
        max_queued=arguments.max_num_queued_reqs,
    )
    stack.callback(live.close)
    told = kv_events(live, events, loads)
    app = SglangServer(live, told, _front(arguments), Random(arguments.seed)).app()
    if not events:
        return _Ready(app)
    return _Ready(app, events[0].socket.endpoint, events[0].socket.replay_endpoint)


def _front(arguments: argparse.Namespace) -> FrontEnd:
    return FrontEnd(
        dev_mode=arguments.dev_mode,
        force_include_usage=arguments.force_include_usage,
        mean_output=arguments.mean_output,
        reports_cache=arguments.cache_report,
    )


def _hardware(arguments: argparse.Namespace) -> Hardware:
    return presets()[arguments.preset].hardware


def _tokenizer(arguments: argparse.Namespace) -> Tokenizer:
    if arguments.tokenizer:
        return FileTokenizer(arguments.tokenizer, arguments.chat_template)
    return ByteTokenizer()
