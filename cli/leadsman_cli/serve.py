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
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
import uvloop
from leadsman.fleet import Fleet
from leadsman.records import Learned, Record
from leadsman.units import Seconds, WorkerId
from leadsman_extproc.comparing import Comparing
from leadsman_extproc.metrics import Counts
from leadsman_extproc.models import ServedModel
from leadsman_extproc.parity import Parity
from leadsman_extproc.reading import Reader
from leadsman_extproc.serve import Service
from leadsman_extproc.server import Server
from leadsman_fleet.client import FleetClient, Target
from leadsman_fleet.log import FleetLog
from leadsman_fleet.server import FleetService, listen
from leadsman_operator.collectors import Collectors
from leadsman_operator.endpoint import CollectorTiming, Endpoint, Surroundings
from leadsman_operator.manifest import ManifestError

from leadsman_cli.config import Config, read_config
from leadsman_cli.logs import log_as_json
from leadsman_cli.tokenize import EngineTokenizer

log = logging.getLogger(__name__)

_ENGINE_TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
_LESSONS_EVERY: Final[Seconds] = 10.0


def main(argv: Sequence[str]) -> int:
    """Run the command; gives the exit status, 2 where the file is wrong."""
    parser = argparse.ArgumentParser(prog="leadsman serve", description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="fleet.yaml")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning"])
    arguments = parser.parse_args(argv)
    log_as_json(arguments.log_level)
    try:
        config = read_config(arguments.config)
        plan = Plan(config=config, endpoints=config.targets(), models=config.served_models())
    except (ManifestError, OSError) as error:
        print(f"leadsman serve: {arguments.config}: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_until_told(plan))
    except OSError as error:
        log.critical("cannot serve", extra={"error": str(error)})
        return 1
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A configuration whose endpoints and models are sound."""

    config: Config
    endpoints: tuple[Endpoint, ...]
    models: tuple[ServedModel, ...]
    timing: CollectorTiming = field(default_factory=CollectorTiming)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What serves. follower: the task that ends only if something is broken."""

    service: Service
    server: Server
    fleet: Fleet
    fleet_ports: list[int]
    follower: asyncio.Task[None]


@asynccontextmanager
async def serving(plan: Plan) -> AsyncIterator[Running]:
    """Serve a plan until left, then drain. OSError: an address cannot be had."""
    clock = time.monotonic
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=_ENGINE_TIMEOUT))
        published = FleetService(FleetLog(epoch=uuid.uuid4().hex), clock=clock)
        socket = Path(stack.enter_context(TemporaryDirectory(prefix="leadsman-"))) / "fleet"
        more = [plan.config.fleet.listen] if plan.config.fleet.listen else []
        stream, ports = await listen(published, f"unix:{socket}", *more)
        stack.push_async_callback(stream.stop, None)
        fleet = Fleet()
        engines = EngineTokenizer(http=http, ready=_ready_endpoints(fleet))
        service, client, comparing = _picker(plan, fleet, engines, published, f"unix:{socket}")
        follower = _begin(stack, client.run())
        _begin(stack, comparing.run())
        _begin(stack, _teach(fleet, client))
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
        server = await stack.enter_async_context(service.run())
        yield Running(
            service=service,
            server=server,
            fleet=fleet,
            fleet_ports=ports[1:],
            follower=follower,
        )


def _picker(
    plan: Plan,
    fleet: Fleet,
    engines: EngineTokenizer,
    published: FleetService,
    address: str,
) -> tuple[Service, FleetClient, Comparing]:
    """Put the picker together with its end of the stream; each knows the other."""
    config = plan.config
    counts = Counts()
    parity = Parity(counts=counts, every=config.picker.parity_every)
    reader = Reader(
        models=plan.models,
        secret=config.secret.encode(),
        block_sizes=fleet.block_sizes,
        tokenize=engines,
        parity=parity,
    )
    comparing = Comparing(
        models=[model.name for model in plan.models if model.text is not None],
        parity=parity,
        engines=engines,
        own=reader.own,
        clock=time.monotonic,
    )

    def take(record: Record) -> None:
        service.take(record)

    target = Target(address=address, replica=uuid.uuid4().hex)
    client = FleetClient(target, take, take=published.take)
    service = Service(
        fleet=fleet,
        reads=reader,
        budget_for=lambda _request, _headers: config.budget,
        report=client.report,
        settings=config.picker,
        counts=counts,
    )
    return service, client, comparing


def _ready_endpoints(fleet: Fleet) -> Callable[[str], Collection[str]]:
    def find(model: str) -> Collection[str]:
        workers = fleet.workers.values()
        ready = (one for one in workers if one.ready and one.settings.model == model)
        return list(dict.fromkeys(worker.endpoint for worker in ready))

    return find


async def _teach(fleet: Fleet, client: FleetClient) -> None:
    """Tell what was learned of each worker's speed, so that a replica that joins has it."""
    told: dict[WorkerId, Learned] = {}
    while True:
        await asyncio.sleep(_LESSONS_EVERY)
        for worker, state in fleet.workers.items():
            lesson = state.curves.export(worker)
            if lesson.samples and told.get(worker) != lesson:
                told[worker] = lesson
                client.report(lesson)
        for worker in told.keys() - fleet.workers.keys():
            del told[worker]


def _begin(stack: AsyncExitStack, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Start a task that ends with the stack."""
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    return task


async def _until_told(plan: Plan) -> None:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with serving(plan) as running:
        log.info("serving", extra={"port": running.server.port, "fleet": running.fleet_ports})
        waiting = asyncio.create_task(told.wait())
        await asyncio.wait([waiting, running.follower], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.follower.done():
            running.follower.result()
        log.info("draining", extra={"in_flight": len(running.service.grants)})
    log.info("stopped")
