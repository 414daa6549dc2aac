"""`leadsman simulate-engine`: one simulated engine as a process, until it is told to stop.

When it serves, it prints one JSON line on standard output: the port of its HTTP server and the
endpoints of its cache events (null where they are off).
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.generation import FrontEnd
from leadsman_engines.simulated.live import LiveEngine
from leadsman_engines.simulated.presets import presets
from leadsman_engines.simulated.publish import EventPublisher
from leadsman_engines.simulated.server import EngineServer
from leadsman_engines.simulated.settings import SimulatedSettings
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
    add("--preset", default="qwen2.5-0.5b-a10g", choices=sorted(presets()), help="model and GPU")
    add("--list-presets", action="store_true", help="say which there are, and stop")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0: any free one")
    add("--events", type=_switch, default=True, metavar="on|off", help="publish cache events")
    add("--events-port", type=int, default=0)
    add("--replay-port", type=int, default=0)
    add("--array-events", action="store_true", help="events as arrays, as older engines send them")
    add("--speed", type=float, default=1.0, help="how many times faster than real time")
    add("--seed", type=int, default=0)
    add("--tokenizer", type=Path, help="folder of tokenizer.json and tokenizer_config.json")
    add("--chat-template", type=Path, help="template in place of the tokenizer's own")
    add("--mean-output", type=float, default=250.0, help="tokens of a reply of unstated length")
    add("--dev-mode", type=_switch, default=True, metavar="on|off", help="serve /server_info")
    add("--force-include-usage", action="store_true")
    add("--max-num-queued-reqs", type=int, help="refuse with 503 above that")
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
    return {field.name: of_type.get(field.type, str) for field in fields(SimulatedSettings)}


def _settings(arguments: argparse.Namespace) -> SimulatedSettings:
    given = {
        name: value
        for name in _overrides()
        if (value := getattr(arguments, "set_" + name)) is not None
    }
    return replace(presets()[arguments.preset].settings, **given)


async def _serve_until_told(arguments: argparse.Namespace, settings: SimulatedSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        publisher = None
        if arguments.events:
            publisher = EventPublisher(
                arguments.host,
                port=arguments.events_port,
                replay_port=arguments.replay_port,
                as_arrays=arguments.array_events,
            )
            stack.push_async_callback(publisher.close)
        live = _live(arguments, settings, publisher)
        stack.callback(live.close)
        front = FrontEnd(
            dev_mode=arguments.dev_mode,
            force_include_usage=arguments.force_include_usage,
            mean_output=arguments.mean_output,
        )
        server = EngineServer(live, publisher, front, Random(arguments.seed))
        runner = web.AppRunner(
            server.app(), handler_cancellation=True, shutdown_timeout=0.5, access_log=None
        )
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        await web.TCPSite(runner, arguments.host, arguments.port).start()
        ready = {
            "port": runner.addresses[0][1],
            "kv_events": publisher and publisher.endpoint,
            "kv_replay": publisher and publisher.replay_endpoint,
        }
        print(json.dumps(ready), flush=True)
        await stop.wait()


def _live(
    arguments: argparse.Namespace, settings: SimulatedSettings, publisher: EventPublisher | None
) -> LiveEngine:
    hardware = presets()[arguments.preset].hardware
    tokenizer: Tokenizer = ByteTokenizer()
    if arguments.tokenizer:
        tokenizer = FileTokenizer(arguments.tokenizer, arguments.chat_template)
    return LiveEngine(
        SimulatedEngine(settings, hardware, Random(arguments.seed)),
        tokenizer,
        publisher,
        speed=arguments.speed,
        max_queued=arguments.max_num_queued_reqs,
    )
