"""`leadsman serve`: collectors, the fleet stream and the picker in one process, from one file.

The parts meet as they do when they are apart: collectors publish records to the fleet's log, and
the picker follows the log by its gRPC stream, over a socket of this process. Only what the picker
itself reports, several records a request, is handed over as it is. Further replicas may follow the
same log.

SIGTERM and SIGINT drain: the picker stops to be ready, requests in flight may end, then all stops.
"""

import argparse
import asyncio
import logging
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
import uvloop
from leadsman.budget import Budget
from leadsman.fleet import Fleet
from leadsman.gate import lacking
from leadsman.policies import BUILT_IN
from leadsman.policy import Policy, PolicyError
from leadsman.units import Seconds
from leadsman_extproc.garbage import settle
from leadsman_extproc.models import ServedModel
from leadsman_extproc.serve import Service
from leadsman_extproc.server import Server
from leadsman_fleet.log import FleetLog
from leadsman_fleet.server import FleetService, listen
from leadsman_operator.collectors import Collectors
from leadsman_operator.endpoint import CollectorTiming, Endpoint, Surroundings
from leadsman_operator.manifest import ManifestError
from leadsman_operator.stores import reader_of

from leadsman_cli.config import Config, check_stores, policies, read_config
from leadsman_cli.logs import log_as_json
from leadsman_cli.picker import ENGINE_TIMEOUT, PickerPlan, begin, follow, picker, show
from leadsman_cli.signals import ToldToStop

log = logging.getLogger(__name__)

SIGNALS_EVERY: Final[Seconds] = 0.25
SIGNALS_WITHIN: Final[Seconds] = 10.0
"""How long a ready engine may take until it has told of its load: twenty reports."""


def main(argv: Sequence[str]) -> int:
    """Run the command; gives the exit status, 2 where the file is wrong."""
    parser = argparse.ArgumentParser(prog="leadsman serve", description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="fleet.yaml")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning"])
    arguments = parser.parse_args(argv)
    log_as_json(arguments.log_level)
    try:
        config = read_config(arguments.config)
        plan = Plan(
            config=config,
            endpoints=config.targets(),
            models=config.served_models(),
            policies=policies(config.picker, config.budget),
        )
        check_stores(config.stores)
    except (ManifestError, OSError) as error:
        print(f"leadsman serve: {arguments.config}: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_until_told(plan))
    except (OSError, PolicyError) as error:
        log.critical("cannot serve", extra={"error": str(error)})
        return 1
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A configuration whose endpoints and models are sound."""

    config: Config
    endpoints: tuple[Endpoint, ...]
    models: tuple[ServedModel, ...]
    policies: Mapping[str, type[Policy]] = field(default_factory=lambda: BUILT_IN)
    timing: CollectorTiming = field(default_factory=CollectorTiming)

    @property
    def picker(self) -> PickerPlan:
        """What of it is the picker's."""
        return PickerPlan(
            models=self.models,
            secret=self.config.secret.encode(),
            policies=self.policies,
            budget=self.config.budget,
            settings=self.config.picker,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What serves. follower: the task that ends only if something is broken."""

    service: Service
    server: Server
    fleet: Fleet
    fleet_ports: list[int]
    page_port: int | None
    follower: asyncio.Task[None]


@asynccontextmanager
async def serving(plan: Plan) -> AsyncIterator[Running]:
    """Serve a plan until left, then drain. OSError: an address cannot be had."""
    clock = time.monotonic
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=ENGINE_TIMEOUT))
        published = FleetService(FleetLog(epoch=uuid.uuid4().hex), clock=clock)
        socket = Path(stack.enter_context(TemporaryDirectory(prefix="leadsman-"))) / "fleet"
        more = [plan.config.fleet.listen] if plan.config.fleet.listen else []
        stream, ports = await listen(published, f"unix:{socket}", *more)
        stack.push_async_callback(stream.stop, None)
        target = (f"unix:{socket}", published.pool)
        parts = picker(plan.picker, http, target, take=published.take)
        follower = follow(stack, parts)
        around = Surroundings(
            http=http,
            publish=published.publish,
            clock=clock,
            secret=plan.config.secret.encode(),
            timing=plan.timing,
        )
        collectors = Collectors(around)
        stack.push_async_callback(collectors.stop)
        await collectors.set(plan.endpoints)
        _follow_stores(stack, plan, around)
        page_port = await show(stack, parts, published.pool)
        server = await stack.enter_async_context(parts.service.run())
        yield Running(
            service=parts.service,
            server=server,
            fleet=parts.fleet,
            fleet_ports=ports[1:],
            page_port=page_port,
            follower=follower,
        )


def _follow_stores(stack: AsyncExitStack, plan: Plan, around: Surroundings) -> None:
    """Follow what engines share, until the stack ends."""
    for store in plan.config.stores:
        begin(stack, reader_of(store, around).run(around.http))


async def find_signals(fleet: Fleet, budget: Budget) -> None:
    """Wait until all that the file's policy reads is told, then for ever.

    Raises PolicyError where workers are ready and do not tell it: such a policy would decide on
    nothing.
    """
    policy, seen_at = fleet.gates.policy(budget), None
    while missing := lacking(policy, fleet.workers.values(), time.monotonic()):
        await asyncio.sleep(SIGNALS_EVERY)
        if seen_at is None and any(worker.ready for worker in fleet.workers.values()):
            seen_at = time.monotonic()
        if seen_at is not None and time.monotonic() - seen_at > SIGNALS_WITHIN:
            names = ", ".join(sorted(missing))
            raise PolicyError(f"policy {policy.name} needs {names}, which no engine tells")
    await asyncio.Event().wait()


async def _until_told(plan: Plan) -> None:
    told = ToldToStop()
    async with serving(plan) as running:
        settle()
        log.info("serving", extra={"port": running.server.port, "fleet": running.fleet_ports})
        needs = asyncio.create_task(find_signals(running.fleet, plan.config.budget))
        try:
            await told.wait(running.follower, needs)
        finally:
            needs.cancel()
        log.info("draining", extra={"in_flight": len(running.service.grants)})
    log.info("stopped")
