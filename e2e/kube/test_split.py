"""Operators that share the collecting through a real Redis, and what its loss or theirs costs.

`FAILOVER_RUNS=5 pytest -s e2e/kube/test_split.py -k failover` prints how long nobody collected from
what the killed replica had, and what became of the requests meanwhile. `REDIS_AWAY` is for how many
seconds Redis answers nobody; test_rollouts has it away for half a minute.
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time

import aiohttp
import pytest
from leadsman.records import WorkerGone, WorkerSeen
from leadsman_bench.envoy import running_envoy
from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_bench.processes import free_ports
from leadsman_engines.discovery import discover
from leadsman_engines.profile import EMPTY_PROFILE
from leadsman_fleet.redis_ends import RedisReplica
from leadsman_fleet.redis_log import Names, RedisLog, connected
from leadsman_fleet.state import FleetState
from leadsman_operator.collectors import Collectors
from leadsman_operator.endpoint import Endpoint, Surroundings
from leadsman_operator.seats import SEATS, Shares

from .conftest import OURS, PATIENCE, POOLS, budget, create, pool
from .redis_server import needs_redis
from .stage import Stage, blocks, following, until

pytestmark = needs_redis
AWAY = float(os.environ.get("REDIS_AWAY", "3"))
RUNS = int(os.environ.get("FAILOVER_RUNS", "1"))


@pytest.fixture
def serving(plane, namespace, running, tmp_path):
    stage = Stage(plane, namespace, running, tmp_path)
    create(plane, POOLS.format(namespace), pool("chat", {"app": "chat"}, stage.port))
    return stage


def chat(stage):
    return f"{stage.namespace}/chat"


def operator(stage, name, *options):
    return stage.operator(name, "--lease", f"{stage.namespace}/leadsman", *options)


class Heard:
    """What a picker hears through Redis, and what each operator says that it found."""

    def __init__(self, url, pool):
        self.workers, self.gone, self.state = {}, [], FleetState()
        self.log = RedisLog(redis=connected(url), names=Names(pool=pool))
        self.end = RedisReplica(self.log, "test", self._hear)

    def _hear(self, record):
        self.state.apply(record)
        match record:
            case WorkerSeen():
                self.workers[record.worker] = record
            case WorkerGone():
                self.gone.append(record.worker)
                del self.workers[record.worker]

    def endpoints(self):
        return {worker.endpoint for worker in self.workers.values()}

    async def shares(self):
        """Which endpoints each seat's holder says that it collects from."""
        said = [await self.log.redis.get(self.log.names[f"found:{n}"]) for n in range(SEATS)]
        return {
            seat: {one[0].removeprefix("http://") for one in json.loads(part)}
            for seat, part in enumerate(said)
            if part
        }


@contextlib.asynccontextmanager
async def hearing(url, pool):
    heard = Heard(url, pool)
    task = asyncio.create_task(heard.end.run())
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await heard.log.close()


async def until_shared(heard, wanted):
    """Wait until every endpoint is found by exactly one."""

    async def is_shared():
        shares = (await heard.shares()).values()
        return sorted(one for share in shares for one in share) == sorted(wanted)

    async with asyncio.timeout(PATIENCE):
        while not await is_shared():  # noqa: ASYNC110  # it tells nobody when it is
            await asyncio.sleep(0.1)


async def test_each_worker_is_collected_by_one_of_two_and_statuses_know_all(serving, redis):
    create(
        serving.plane,
        OURS.format(serving.namespace, "latencybudgets"),
        budget("everyone", maxQueueWait="30s"),
    )
    engines = [serving.engine() for _ in range(4)]
    addresses = {f"{ip}:{serving.port}" for ip in engines}
    for number, ip in enumerate(engines):
        serving.pod(f"pod-{number}", ip)
    for name in ("one", "two"):
        operator(serving, name, "--redis", redis.url)

    async with hearing(redis.url, chat(serving)) as heard:
        await until(lambda: heard.endpoints() == addresses, heard.endpoints)
        await until_shared(heard, addresses)
        path = f"{OURS.format(serving.namespace, 'latencybudgets')}/everyone"
        pools = lambda: serving.get(path).get("status", {}).get("pools") or [{}]
        await until(lambda: pools()[0].get("readyWorkers") == 4, pools)
        await until(lambda: heard.end.declared is not None)

        assert [one.budget.name for one in heard.end.declared.budgets] == ["everyone"]
        assert heard.gone == []


@pytest.mark.parametrize("run", range(RUNS))
@pytest.mark.parametrize("backend", ["grpc", "redis"])
async def test_failover_loses_no_pick_and_takes_up_what_the_killed_one_had(
    serving, redis, backend, run, capsys
):
    async with standing(serving, redis if backend == "redis" else None) as stand:
        os.kill(serving.running.pid(stand.first), signal.SIGKILL)
        killed_at = time.monotonic()
        serving.pod("late", stand.late)
        late = f"{stand.late}:{serving.port}"
        await until(lambda: late in stand.heard.endpoints(), stand.heard.endpoints)
        seconds = time.monotonic() - killed_at

        with capsys.disabled():
            print(
                f"\n{backend} {run}: {seconds:.2f} s from kill -9 until a new pod of its share is"
            )
            print(f"a worker; {sum(stand.answers.values())} requests meanwhile: {stand.answers}")
        if backend == "redis":
            await until_shared(stand.heard, [late, *stand.engines])
            await stand.rest()
            async with asked_anew([late, *stand.engines]) as truth:
                await until(lambda: blocks(stand.heard.state) == blocks(truth), lambda: truth)
            assert any(blocks(stand.heard.state).values())
        assert set(stand.answers) == {200}
        assert stand.heard.gone == []


class Stand:
    """What stands: two operators, a picker behind Envoy, traffic; and an engine without a pod.

    first: the operator whose share that engine's endpoint is, once it has a pod.
    """

    def __init__(self, heard, engines, late, first):
        self.heard, self.engines, self.late, self.first = heard, engines, late, first
        self.answers = {}

    async def load(self, http, url, body):
        """Send requests without end, and count what is answered."""
        for number in itertools.count():
            body["prompt"] = f"{number} " * 40
            async with http.post(url, json=body) as answer:
                await answer.read()
                self.answers[answer.status] = self.answers.get(answer.status, 0) + 1
            await asyncio.sleep(0.05)

    async def rest(self):
        """Send no more."""
        self.loading.cancel()
        await asyncio.gather(self.loading, return_exceptions=True)


@contextlib.asynccontextmanager
async def asked_anew(endpoints):
    """Collect from engines from their first batch on; gives what they hold."""
    state = FleetState()
    async with aiohttp.ClientSession() as http:
        around = Surroundings(http=http, publish=state.apply, clock=time.monotonic)
        collectors = Collectors(around)
        await collectors.set([Endpoint(url=f"http://{one}") for one in endpoints])
        yield state
        await collectors.stop()


@contextlib.asynccontextmanager
async def standing(stage, redis):
    """Let all stand and be loaded; redis: None where the leader serves the stream."""
    engines = [stage.engine("--speed", "50") for _ in range(2)]
    for number, ip in enumerate(engines):
        stage.pod(f"pod-{number}", ip)
    names, ports = ["one", "two"], [f"127.0.0.1:{port}" for port in free_ports(2)]
    fleet = redis.url if redis else f"ipv4:{','.join(ports)}"
    for name, port in zip(names, ports, strict=True):
        grpc = ["--listen", port, "--peers", fleet]
        operator(stage, name, *(["--redis", fleet] if redis else grpc))
    late = await falling_to(stage, names[0]) if redis else stage.address()
    stage.engine("--speed", "50", ip=late)
    places = [f"{ip}:{stage.port}" for ip in [*engines, late]]
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        [rank] = (await discover(http, f"http://{places[0]}", EMPTY_PROFILE)).ranks
        listen = hearing if redis else following
        heard = await stack.enter_async_context(listen(fleet, chat(stage)))
        await until(lambda: heard.endpoints() == set(places[:2]), heard.endpoints)
        picker = stage.picker(fleet, "chat", rank.settings.model)
        envoy = stack.enter_context(running_envoy(EnvoyConfig(engines=places, picker=picker)))
        stand = Stand(heard, places[:2], late, names[0])
        body = {"model": rank.settings.model, "max_tokens": 4}
        load = stand.load(http, f"{envoy.url}/v1/completions", body)
        stand.loading = asyncio.create_task(load)
        stack.push_async_callback(stand.rest)
        await until(lambda: stand.answers.get(200, 0) > 5, lambda: stand.answers)
        stand.answers.clear()
        yield stand
        assert stand.loading.cancelled() or not stand.loading.done(), stand.loading.exception()


async def falling_to(stage, name):
    """Give an address whose endpoint falls to an operator's seat, once both sit."""
    seats = {}
    while len(seats) < 2:
        await asyncio.sleep(0.1)
        seats = {one: seat for one in ("one", "two") if (seat := seat_of(stage, one)) is not None}
    mine, others = seats.pop(name), frozenset(seats.values())
    while True:
        address = stage.address()
        if Shares(mine=mine, taken=others).owns(f"{chat(stage)} {address}:{stage.port}"):
            return address


def seat_of(stage, name):
    """Read from an operator's log which seat is its own."""
    said = [json.loads(line) for line in stage.running.last_words(name).splitlines()]
    return next((one["seat"] for one in reversed(said) if "seat" in one), None)


async def test_redis_that_is_away_costs_no_request_and_what_happened_meanwhile_is_heard(
    serving, redis
):
    async with standing(serving, redis) as stand:
        with redis.away():
            serving.pod("late", stand.late)
            await asyncio.sleep(AWAY)
            assert stand.answers.get(200, 0) > 0
        there = {f"{stand.late}:{serving.port}", *stand.engines}
        await until(lambda: stand.heard.endpoints() == there, stand.heard.endpoints)

        assert set(stand.answers) == {200}
        assert stand.heard.gone == []


async def test_redis_that_comes_back_empty_is_told_all_again(serving, redis):
    async with standing(serving, redis) as stand:
        redis.stop()
        await asyncio.sleep(0.5)
        redis.start()
        async with hearing(redis.url, chat(serving)) as newcomer:
            there = set(stand.engines)
            await until(lambda: newcomer.endpoints() == there, newcomer.endpoints)

        assert set(stand.answers) == {200}
        assert stand.heard.gone == []
