import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from leadsman.budget import Budget
from leadsman.declared import Declared, Scope, ScopedBudget
from leadsman.records import WorkerSeen
from leadsman.request import Request
from leadsman_cli.extproc import plan_of
from leadsman_cli.picker import PickerPlan, follow, picker
from leadsman_extproc.settings import Settings
from leadsman_fleet.log import FleetLog
from leadsman_fleet.pools import Pools
from leadsman_fleet.server import FleetService, listen

from tests.settings import SETTINGS

PATIENCE = 20.0
GOLD = Scope(headers={"x-tier": "gold"})


@pytest.mark.parametrize("by_flag", [True, False])
@pytest.mark.parametrize("by_file", [True, False])
def test_the_conformance_suite_is_heeded_by_the_flag_or_by_the_file(tmp_path, by_flag, by_file):
    path = tmp_path / "picker.yaml"
    path.write_text(f"picker: {{conformance: {str(by_file).lower()}}}\n")

    plan = plan_of(path, conformance=by_flag)

    assert plan.settings.conformance is (by_flag or by_file)


async def test_a_picker_alone_takes_workers_and_budgets_from_its_pools_stream(tmp_path):
    pools = Pools(lambda pool: FleetService(FleetLog(epoch=pool), pool=pool))
    for pool in ("ns/chat", "ns/other"):
        worker = WorkerSeen(worker=pool, endpoint="10.0.0.1:8000", settings=SETTINGS)
        pools.of(pool).publish(worker)
    budget = ScopedBudget(budget=Budget(name="gold"), scope=GOLD)
    pools.of("ns/chat").declare(Declared(budgets=(budget,)))
    address = f"unix:{tmp_path / 's'}"
    server, _ = await listen(pools, address)
    plan = PickerPlan(models=(), secret=b"", budget=Budget(name="otherwise"))

    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop, None)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        parts = picker(plan, http, (address, "ns/chat"))
        follow(stack, parts)
        async with asyncio.timeout(PATIENCE):
            while not parts.service.workers.any_ready():  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.01)

    request = Request(id="r", model="m", prompt_tokens=1, arrived_at=0.0)
    assert list(parts.fleet.workers) == ["ns/chat"]
    assert parts.service.budget_for(request, {"x-tier": "gold"}).name == "gold"
    assert parts.service.budget_for(request, {}).name == "otherwise"


@pytest.mark.parametrize("is_abreast", [True, False])
async def test_a_picker_is_ready_once_it_has_heard_what_was_said_before_it_came(
    tmp_path, is_abreast
):
    plan = PickerPlan(models=(), secret=b"", settings=Settings(listen="127.0.0.1:0"))
    async with aiohttp.ClientSession() as http:
        parts = picker(plan, http, (f"unix:{tmp_path / 's'}", "ns/chat"))
        parts.service.take(WorkerSeen(worker="w", endpoint="10.0.0.1:8000", settings=SETTINGS))
        if is_abreast:
            parts.client.synced.set()

        async with parts.service.run() as server:
            said = server.health.status("readiness")

    expected = HealthCheckResponse.SERVING if is_abreast else HealthCheckResponse.NOT_SERVING
    assert said == expected
