"""A picker and its end of the fleet stream, put together: what `serve` and `extproc` share."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from leadsman.budget import Budget
from leadsman.declared import Declared
from leadsman.fleet import Fleet
from leadsman.gate import Gates
from leadsman.policies import BUILT_IN
from leadsman.policy import Policy
from leadsman.records import Learned, Record
from leadsman.request import Request
from leadsman.units import Seconds, WorkerId
from leadsman_extproc.comparing import Comparing
from leadsman_extproc.metrics import Counts
from leadsman_extproc.models import ServedModel
from leadsman_extproc.page import Recent
from leadsman_extproc.parity import Parity
from leadsman_extproc.plugins import Faults
from leadsman_extproc.ports import Traces
from leadsman_extproc.reading import Reader
from leadsman_extproc.serve import Service
from leadsman_extproc.settings import Settings
from leadsman_fleet.client import FleetClient, Target
from leadsman_fleet.page import server as page
from leadsman_fleet.replica import Replica

from leadsman_cli.states import REDIS, redis_log
from leadsman_cli.tokenize import EngineTokenizer

ENGINE_TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
_LESSONS_EVERY: Final[Seconds] = 10.0
_PLANS_EVERY: Final[Seconds] = 0.5
_PLANNING: Final[Seconds] = 5.0
_NOTHING: Final = Declared()
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerPlan:
    """A picker that can be put together. budget: of requests that nothing is declared for.

    policies: the admission policies that budgets may name.
    """

    models: tuple[ServedModel, ...]
    secret: bytes
    policies: Mapping[str, type[Policy]] = field(default_factory=lambda: BUILT_IN)
    budget: Budget = field(default_factory=Budget)
    settings: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerParts:
    """The service, what it decides on, and what keeps that true."""

    service: Service
    fleet: Fleet
    client: Replica
    comparing: Comparing


def picker(
    plan: PickerPlan,
    http: aiohttp.ClientSession,
    target: tuple[str, str],
    *,
    take: Callable[[str, Sequence[Record]], None] | None = None,
) -> PickerParts:
    """Put a picker together with its end of the stream; each knows the other.

    target: the stream's address, a Redis where it is the URL of one, and the pool. take: the log's
    own, where it is in this process.
    """
    address, pool = target
    counts = Counts(pool=pool)
    gates = Gates(plan.policies, Faults(counts, time.monotonic).note)
    fleet = Fleet(gates=gates, longest_hold=plan.settings.longest_hold)
    counts.trust, counts.conditions = fleet.trust, fleet.conditions
    counts.shares = lambda: gates.standings(time.monotonic())
    counts.stores = lambda: list(fleet.stores.values())
    engines = EngineTokenizer(http=http, ready=_ready_endpoints(fleet))
    parity = Parity(counts=counts, every=plan.settings.parity_every)

    def importance_of(objective: str) -> int:
        told = (client.declared or _NOTHING).importance.get(objective)
        return plan.settings.importance.get(objective, 0) if told is None else told

    reader = Reader(
        models=plan.models,
        secret=plan.secret,
        block_sizes=fleet.block_sizes,
        only_model=fleet.only_model,
        tokenize=engines,
        parity=parity,
        importance=importance_of,
    )
    comparing = Comparing(
        models=[model.name for model in plan.models if model.text is not None],
        parity=parity,
        engines=engines,
        own=reader.own,
        clock=time.monotonic,
    )

    def hear(record: Record) -> None:
        service.take(record)

    def budget_for(request: Request, headers: Mapping[str, str]) -> Budget:
        return (client.declared or _NOTHING).budget_for(request, headers, plan.budget)

    client = end_of(address, pool, hear, take=take, hands_back=take is None)
    service = Service(
        fleet=fleet,
        reads=reader,
        budget_for=budget_for,
        report=client.report,
        is_abreast=client.synced.is_set,
        settings=plan.settings,
        counts=counts,
        secret=plan.secret,
        traces=_traces() if plan.settings.tracing else None,
    )
    return PickerParts(service=service, fleet=fleet, client=client, comparing=comparing)


def _traces() -> Traces:
    from leadsman_extproc.tracing import exporting

    return exporting(time.monotonic)


def end_of(
    address: str,
    pool: str,
    hear: Callable[[Record], None],
    *,
    take: Callable[[str, Sequence[Record]], None] | None = None,
    hands_back: bool,
) -> Replica:
    """Make an end of a pool's stream, or of its log where the address is that of a Redis.

    hands_back: whether it keeps what it hears, for an operator that lost it; see `Target`.
    """
    name = uuid.uuid4().hex
    if address.startswith(REDIS):
        from leadsman_fleet.redis_ends import RedisReplica

        return RedisReplica(redis_log(address, pool), name, hear)
    target = Target(address=address, replica=name, pool=pool, hands_back=hands_back)
    return FleetClient(target, hear, take=take)


def follow(stack: AsyncExitStack, parts: PickerParts) -> asyncio.Task[None]:
    """Follow the fleet until the stack ends; the task ends before only if something is broken."""
    follower = begin(stack, parts.client.run())
    begin(stack, parts.comparing.run())
    begin(stack, _teach(parts.fleet, parts.client))
    begin(stack, _plan(parts.fleet))
    if parts.service.traces is not None:
        stack.push_async_callback(asyncio.to_thread, parts.service.traces.close)
    return follower


async def show(stack: AsyncExitStack, parts: PickerParts, pool: str) -> int | None:
    """Serve the live page until the stack ends; gives its port, None where none is wanted.

    Raises OSError where its address cannot be had.
    """
    settings, recent = parts.service.settings, parts.service.keeps
    if settings.page is None or not isinstance(recent, Recent):
        return None
    site = page.Site(
        fleet=parts.fleet,
        clock=parts.service.clock,
        history=recent.history,
        explain=recent.explain,
        find=recent.find,
    )
    shown = page.Page(lambda: {pool: site}, settings.token)
    return await stack.enter_async_context(page.serving(shown, settings.page))


def _ready_endpoints(fleet: Fleet) -> Callable[[str], Collection[str]]:
    def find(model: str) -> Collection[str]:
        workers = fleet.workers.values()
        ready = (one for one in workers if one.ready and one.settings.model == model)
        return list(dict.fromkeys(worker.endpoint for worker in ready))

    return find


async def _teach(fleet: Fleet, client: Replica) -> None:
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


async def _plan(fleet: Fleet) -> None:
    """Make the plans of policies that have some, beside the decisions and in bounded time.

    One that takes too long is left to its thread, and is not installed.
    """
    while True:
        await asyncio.sleep(_PLANS_EVERY)
        for plan in fleet.gates.plans(time.monotonic()):
            try:
                async with asyncio.timeout(_PLANNING):
                    install = await asyncio.to_thread(plan)
            except Exception:
                log.exception("planning failed")
            else:
                install()


def begin(stack: AsyncExitStack, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Start a task that ends with the stack."""
    task = asyncio.create_task(work)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)
    return task
