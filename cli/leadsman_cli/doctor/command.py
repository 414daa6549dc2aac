"""`leadsman doctor --config fleet.yaml [--envoy URL]`: what to change for better predictions."""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from leadsman_operator.manifest import ManifestError

from leadsman_cli.config import Config, read_config
from leadsman_cli.doctor import engines, gateway
from leadsman_cli.doctor.finding import Finding, Level

MARKS: Final[dict[Level, str]] = {"fine": "ok     ", "warning": "warning", "fault": "FAULT  "}


def main(argv: Sequence[str]) -> int:
    """Look at a deployment; exit status 1 where something does not work, 2 for a wrong file."""
    parser = argparse.ArgumentParser(prog="leadsman doctor", description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="fleet.yaml")
    parser.add_argument("--envoy", metavar="URL", help="its admin port, or a file of its JSON")
    parser.add_argument("--no-requests", action="store_true", help="send engines no request")
    arguments = parser.parse_args(argv)
    try:
        config = read_config(arguments.config)
        config.targets()
        config.served_models()
    except (ManifestError, OSError) as error:
        print(f"leadsman doctor: {arguments.config}: {error}", file=sys.stderr)
        return 2
    counted: Counter[Level] = Counter()
    asyncio.run(_look(config, arguments.envoy, counted, may_request=not arguments.no_requests))
    print(f"\n{counted['fault']} faults, {counted['warning']} warnings, {counted['fine']} fine")
    return 1 if counted["fault"] else 0


async def _look(
    config: Config, envoy: str | None, counted: Counter[Level], *, may_request: bool
) -> None:
    models = config.served_models()
    async with aiohttp.ClientSession(timeout=engines.WITHIN) as http:
        for endpoint in config.targets():
            async for finding in engines.look(http, endpoint, models, may_request=may_request):
                _tell(finding, counted)
        if envoy is not None:
            for finding in await _gateway(http, envoy, config):
                _tell(finding, counted)


async def _gateway(http: aiohttp.ClientSession, envoy: str, config: Config) -> list[Finding]:
    try:
        if envoy.startswith("http"):
            async with http.get(f"{envoy.rstrip('/')}/config_dump") as response:
                told = msgspec.json.decode(await response.read())
        else:
            told = msgspec.json.decode(await asyncio.to_thread(Path(envoy).read_bytes))
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
        what = f"{envoy} gives no configuration: {error or type(error).__name__}"
        return [Finding("fault", gateway.WHERE, what, "the URL of its admin port?")]
    found = list(dict.fromkeys(gateway.look(told, config.picker, config.budget.hold or 0.0)))
    return found or [Finding("fine", gateway.WHERE, "has no limit that breaks prompts or waits")]


def _tell(finding: Finding, counted: Counter[Level]) -> None:
    counted[finding.level] += 1
    print(f"{MARKS[finding.level]}  {finding.where}  {finding.what}")
    if finding.change is not None and finding.level != "fine":
        print(f"         → {finding.change}")
