"""Operators at one table, by the Leases of an API server that is only pretended."""

import asyncio
import contextlib

import msgspec
import pytest
from leadsman_operator.kube import ApiError
from leadsman_operator.lease import LeaseTiming
from leadsman_operator.objects import Key
from leadsman_operator.seats import Shares, Sitter
from leadsman_operator.table import Table

TIMING = LeaseTiming(duration=3, leading=2.2, renew=0.6)
NAMES = [f"endpoint-{number}" for number in range(12)]
LEASE = Key("system", "operator")


class Server:
    """Keeps Leases; refuses to write over what was written since it was read."""

    def __init__(self):
        self.leases, self.is_away = {}, False

    async def get(self, path, query):
        self._answer()
        assert path.endswith("/namespaces/system/leases")
        label, _, value = query["labelSelector"].partition("=")
        found = [one for one in self.leases.values() if one["metadata"]["labels"][label] == value]
        return msgspec.json.encode({"items": found})

    async def create(self, path, body):
        self._answer()
        self._keep(body, before=None)

    async def replace(self, path, body):
        self._answer()
        assert path.endswith(body["metadata"]["name"])
        self._keep(body, before=body["metadata"]["resourceVersion"])

    def _answer(self):
        if self.is_away:
            raise OSError("nobody answers")

    def _keep(self, body, *, before):
        held = self.leases.get(body["metadata"]["name"])
        if (held and held["metadata"]["resourceVersion"]) != before:
            raise ApiError(409, "it has changed")
        version = str(int(before or 0) + 1)
        metadata = body["metadata"] | {"resourceVersion": version}
        self.leases[body["metadata"]["name"]] = body | {"metadata": metadata}


class Replica:
    """One operator; what it does is what it was told is its own."""

    def __init__(self, server, name):
        loop = asyncio.get_running_loop()
        sitter = Sitter(name=name, timing=TIMING)
        self.table = Table(api=server, lease=LEASE, sitter=sitter, clock=loop.time)
        self.shares = Shares()
        self.task = loop.create_task(self.table.run(self._make_way))

    async def _make_way(self, shares):
        self.shares = shares

    def does(self):
        return {name for name in NAMES if self.shares.owns(name)}

    async def stop(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
async def server():
    return Server()


async def sat(*replicas):
    """Let them sit until all is done by somebody, and each does something."""
    while not all(one.does() for one in replicas) or done(*replicas) != sorted(NAMES):
        await asyncio.sleep(0.05)
        assert len(done(*replicas)) == len(set(done(*replicas)))


def done(*replicas):
    return sorted(name for one in replicas for name in one.does())


@pytest.mark.looptime
async def test_two_share_and_one_that_stops_hands_over(server):
    one, two = Replica(server, "one"), Replica(server, "two")
    await sat(one, two)

    await one.stop()
    await sat(two)

    assert one.does() == set()
    holders = {lease["spec"].get("holderIdentity") for lease in server.leases.values()}
    assert "" in holders
    await two.stop()


@pytest.mark.looptime
async def test_who_cannot_reach_the_server_lets_go_before_another_may_begin(server):
    one = Replica(server, "one")
    await sat(one)

    server.is_away = True
    await asyncio.sleep(TIMING.leading + 0.1)
    assert one.does() == set()
    server.is_away = False
    two = Replica(server, "two")

    await sat(one, two)
    for replica in (one, two):
        await replica.stop()
