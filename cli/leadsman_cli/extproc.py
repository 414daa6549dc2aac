"""`leadsman extproc`: one picker of a fleet that is followed elsewhere, mostly by the operator.

It serves as soon as it knows a worker and all that was said before it came, and keeps deciding on
what it knows while the stream, or the Redis that carries it, is away. Its budgets come by the
stream; the file says what the stream cannot: tokenizers and how to serve.
"""

import argparse
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import aiohttp
import uvloop
from leadsman_extproc.garbage import settle
from leadsman_operator.manifest import ManifestError, read_manifest
from leadsman_operator.objects import Key

from leadsman_cli import stand_in
from leadsman_cli.config import PickerConfig, load_models, policies
from leadsman_cli.logs import log_as_json
from leadsman_cli.picker import ENGINE_TIMEOUT, PickerPlan, follow, picker, show
from leadsman_cli.signals import ToldToStop

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Run the command; gives the exit status, 2 where the file is wrong."""
    parser = argparse.ArgumentParser(prog="leadsman extproc", description=main.__doc__)
    add = parser.add_argument
    add(
        "--fleet",
        default=os.environ.get("LEADSMAN_REDIS_URL"),
        help="host:port of the operator's fleet stream, or redis://host; or by LEADSMAN_REDIS_URL",
    )
    add("--pool", help="NAMESPACE/NAME of the InferencePool")
    add("--config", type=Path, help="models, picker, budget; the secret also by LEADSMAN_SECRET")
    add("--conformance", action="store_true", help="heed the upstream conformance suite's headers")
    add("--log-level", default="info", choices=["debug", "info", "warning"])
    stand_in.add_options(parser)
    arguments = parser.parse_args(argv)
    log_as_json(arguments.log_level)
    if arguments.conformance and arguments.pool_name and not arguments.fleet:
        pool = Key(arguments.pool_namespace, arguments.pool_name)
        return _run(stand_in.serve(pool, stand_in.settings_of(arguments)))
    if not (arguments.fleet and arguments.pool):
        parser.error("--pool is needed, and --fleet where LEADSMAN_REDIS_URL is not set")
    try:
        plan = plan_of(arguments.config, conformance=arguments.conformance)
    except (ManifestError, OSError) as error:
        print(f"leadsman extproc: {arguments.config}: {error}", file=sys.stderr)
        return 2
    return _run(_serve(plan, (arguments.fleet, arguments.pool)))


def _run(serving: Coroutine[None, None, None]) -> int:
    try:
        uvloop.run(serving)
    except OSError as error:
        log.critical("cannot serve", extra={"error": str(error)})
        return 1
    return 0


def plan_of(path: Path | None, *, conformance: bool) -> PickerPlan:
    """Read the file. conformance: told so on the command line. Raises ManifestError, OSError."""
    config = read_manifest(path.read_text(), PickerConfig) if path else PickerConfig()
    return PickerPlan(
        models=load_models(config.models),
        policies=policies(config.picker, config.budget),
        secret=(config.secret or os.environ.get("LEADSMAN_SECRET", "")).encode(),
        budget=config.budget,
        settings=replace(config.picker, conformance=config.picker.conformance or conformance),
    )


async def _serve(plan: PickerPlan, target: tuple[str, str]) -> None:
    told = ToldToStop()
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=ENGINE_TIMEOUT))
        parts = picker(plan, http, target)
        follower = follow(stack, parts)
        await show(stack, parts, target[1])
        server = await stack.enter_async_context(parts.service.run())
        settle()
        log.info("serving", extra={"port": server.port, "pool": target[1]})
        await told.wait(follower)
        log.info("draining", extra={"in_flight": len(parts.service.grants)})
    log.info("stopped")
