"""A picker that follows the operator by the name of its Service, whose addresses change."""

import asyncio
import contextlib

from leadsman.declared import Declared
from leadsman_bench.processes import free_ports
from leadsman_fleet.client import ClientTiming, FleetClient, Target
from leadsman_fleet.log import FleetLog
from leadsman_fleet.server import FleetService, listen

from .names import names
from .stage import next_address

SERVICE = "operator.leadsman.svc"
SOON = 15.0
"""Less than the half minute for which gRPC would not look a name up again by itself."""


async def test_a_leader_is_found_that_moves_again_right_after_it_moved():
    [port] = free_ports(1)
    with names() as known:
        target = Target(address=f"dns://{known.address}/{SERVICE}:{port}", replica="test")
        client = FleetClient(target, lambda _: None, timing=ClientTiming(retry=0.2))
        async with leading(known, port, "first"):
            task = asyncio.create_task(client.run())
            await follows(client, "first")
        async with leading(known, port, "second"):
            await follows(client, "second")

        async with leading(known, port, "third"):
            await follows(client, "third")

        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def leading(known, port, epoch):
    """Serve a log at an address of its own, which the Service's name stands for from now on."""
    ip = next_address()
    service = FleetService(FleetLog(epoch=epoch))
    service.declare(Declared())
    server, _ = await listen(service, f"{ip}:{port}")
    known.known[SERVICE] = [ip]
    try:
        yield
    finally:
        await server.stop(None)


async def follows(client, epoch):
    async with asyncio.timeout(SOON):
        while client.epoch != epoch:  # noqa: ASYNC110  # it tells nobody when it is
            await asyncio.sleep(0.02)
