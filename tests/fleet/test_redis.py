"""The same records through a real Redis: its loss, its return, and readers that were away."""

import asyncio
import contextlib
import time
import uuid

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kube.redis_server import RedisServer, needs_redis
from leadsman.budget import Budget
from leadsman.declared import Declared, ScopedBudget
from leadsman.records import (
    Cleared,
    Ended,
    Granted,
    KvEvents,
    Outcome,
    Removed,
    Stored,
    TokensSeen,
    WorkerGone,
    WorkerSeen,
)
from leadsman_fleet.redis_ends import RedisPublisher, RedisReplica, RedisTiming
from leadsman_fleet.redis_keeper import RedisKeeper, read_state
from leadsman_fleet.redis_log import Batch, Names, RedisLog, ServerClock, connected
from leadsman_fleet.state import FleetState

from .records import ended, granted, seen

pytestmark = needs_redis
PATIENCE = 30.0


def kv(*events, worker="a", sequence=1):
    return KvEvents(
        worker=worker, sequence=sequence, engine_time=1.0, received_at=2.0, events=events
    )


def stored(*keys):
    return Stored(keys=np.array(keys, dtype=np.uint64))


def words(state):
    """Say a state so that two can be compared: without times, blocks with their copies."""
    said = {}
    for source, record in state.told():
        match record:
            case KvEvents():
                keys = [int(k) for e in record.events if isinstance(e, Stored) for k in e.keys]
                said[record.worker, "kv"] = sorted(keys)
            case Granted():
                said[record.worker, record.request] = source
            case TokensSeen():
                said[record.worker, record.request, "tokens"] = record.tokens
            case WorkerSeen():
                said[record.worker] = record.ready
    return said


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    redis.start()
    yield redis
    redis.stop()


@pytest.fixture
def own_server(tmp_path):
    redis = RedisServer(tmp_path)
    redis.start()
    yield redis
    redis.stop()


TIMING = {"linger": 0.0, "patience": 0.05, "grace": 2.0, "lease": 0.5}


class Stage:
    """Ends of one pool's log, each a task of its own; every one has a clock of its own."""

    def __init__(self, redis, **timing):
        self.redis, self.pool, self.tasks = redis, uuid.uuid4().hex, []
        self.timing = RedisTiming(**TIMING | timing)
        self.clients = []

    def log(self, shift=0.0):
        clock = ServerClock(clock=lambda: time.monotonic() + shift)
        self.clients.append(connected(self.redis.url))
        return RedisLog(redis=self.clients[-1], names=Names(pool=self.pool), time=clock)

    def begin(self, end):
        self.tasks.append(asyncio.create_task(end.run()))
        return end

    def publisher(self):
        return self.begin(RedisPublisher(self.log(), timing=self.timing))

    def keeper(self):
        return self.begin(RedisKeeper(self.log(), timing=self.timing))

    def replica(self, name="me", *, shift=0.0):
        state, records = FleetState(), []

        def take(record):
            records.append(record)
            state.apply(record)

        log = self.log(shift)
        end = self.begin(RedisReplica(log, name, take, timing=self.timing))
        end.state, end.records, end.task = state, records, self.tasks[-1]
        return end

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for client in self.clients:
            await client.aclose()
            await client.connection_pool.disconnect()
        await asyncio.sleep(0.01)


async def until(is_so):
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
            await asyncio.sleep(0.01)


async def test_a_question_ends_also_where_the_client_swallows_its_cancellation():
    class Swallowing:
        async def time(self):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return 0, 0

    asking = asyncio.create_task(ServerClock().measure(Swallowing()))
    await asyncio.sleep(0)

    asking.cancel()
    await asyncio.wait([asking], timeout=PATIENCE)

    assert asking.cancelled()


async def test_what_one_says_reaches_all_others_and_not_itself(server):
    async with Stage(server) as stage:
        stage.keeper()
        publisher, mine, other = stage.publisher(), stage.replica("mine"), stage.replica("other")
        publisher.publish(seen("a"))
        publisher.publish(kv(stored(1, 2)))
        await until(lambda: mine.state.workers() and other.state.workers())

        mine.report(granted("r"))
        await until(lambda: (("a", "r")) in words(other.state))
        mine.report(ended("r"))
        await until(lambda: (("a", "r")) not in words(other.state))

        assert words(mine.state) == words(other.state) == {"a": True, ("a", "kv"): [1, 2]}
        assert not any(isinstance(one, Granted) for one in mine.records)


async def test_what_is_declared_reaches_those_who_come_later_too(server):
    declared = Declared(budgets=(ScopedBudget(budget=Budget(name="b", max_queue_wait=9.0)),))
    async with Stage(server, entries=3) as stage:
        stage.keeper()
        publisher, first = stage.publisher(), stage.replica("first")
        publisher.declare(declared)
        await until(lambda: first.declared == declared)

        for number in range(20):
            publisher.publish(seen(f"w{number}"))
            await asyncio.sleep(0.01)
        later = stage.replica("later")
        await until(lambda: len(later.state.workers()) == 20)

        assert later.declared == declared


async def test_the_stream_is_cut_and_a_newcomer_gets_all_that_holds(server):
    async with Stage(server, entries=10) as stage:
        keeper, publisher = stage.keeper(), stage.publisher()
        publisher.publish(seen("a"))
        for number in range(200):
            publisher.publish(kv(stored(number), sequence=number))
            await asyncio.sleep(0.001)
        await until(lambda: words(keeper._state).get(("a", "kv")) == list(range(200)))
        length = await stage.clients[0].xlen(stage.log().names["log"])

        newcomer = stage.replica("newcomer")

        await until(lambda: words(newcomer.state).get(("a", "kv")) == list(range(200)))
        assert length <= 3 * 10 + 500


async def test_who_is_in_step_has_heard_all_that_was_said_before_it_came(server):
    entries = 1800
    async with Stage(server) as stage:
        keeper, log = stage.keeper(), stage.log()
        await until(lambda: keeper._tail.epoch is not None)
        async with log.redis.pipeline() as pipe:
            for number in range(1, entries):
                told = (kv(stored(number), sequence=number),) if number > 1 else (seen("a"),)
                pipe.xadd(
                    log.names["log"], log.packed(Batch(source=None, records=told), "w", number)
                )
            await pipe.execute()

        newcomer = stage.replica("newcomer")

        await until(newcomer.synced.is_set)
        assert words(newcomer.state)["a", "kv"] == list(range(2, entries))


async def test_a_reader_that_was_away_for_long_is_told_who_left_meanwhile(server):
    async with Stage(server, entries=5) as stage:
        keeper, publisher, reader = stage.keeper(), stage.publisher(), stage.replica("reader")
        for worker in ("a", "b"):
            publisher.publish(seen(worker))
        await until(lambda: len(reader.state.workers()) == 2)
        reader.task.cancel()
        await asyncio.gather(reader.task, return_exceptions=True)

        publisher.publish(WorkerGone(worker="a"))
        for number in range(50):
            publisher.publish(kv(stored(number), worker="b", sequence=number))
            await asyncio.sleep(0.005)
        await until(lambda: len(words(keeper._state).get(("b", "kv"), [])) == 50)
        position = reader._tail.position
        stage.begin(reader)
        await until(lambda: words(reader.state).get(("b", "kv")) == list(range(50)))

        assert reader._tail.position > position
        assert reader.state.workers() == ["b"]


async def test_a_batch_that_is_sent_twice_counts_once(server):
    async with Stage(server) as stage:
        stage.keeper()
        reader, log = stage.replica("reader"), stage.log()
        said = Batch(source=None, records=(seen("a"), kv(stored(7))))
        for _ in range(2):
            await log.redis.xadd(log.names["log"], log.packed(said, "writer", 1))
        gone = Batch(source=None, records=(kv(Removed(keys=np.array([7], np.uint64))),))
        await log.redis.xadd(log.names["log"], log.packed(gone, "writer", 2))

        await until(lambda: words(reader.state).get(("a", "kv")) == [])

        assert len([one for one in reader.records if isinstance(one, KvEvents)]) <= 3


async def test_times_are_on_the_readers_clock(server):
    async with Stage(server) as stage:
        stage.keeper()
        publisher = stage.publisher()
        here, there = stage.replica("here", shift=1e6), stage.replica("there", shift=-5e5)
        publisher.publish(seen("a"))
        await until(lambda: here.state.workers() and there.state.workers())

        at = time.monotonic() + 1e6
        here.report(granted("r", at=at))
        await until(lambda: any(isinstance(one, Granted) for one in there.records))

        (told,) = [one for one in there.records if isinstance(one, Granted)]
        assert told.at == pytest.approx(at - 1.5e6, abs=0.1)


async def test_the_grants_of_a_replica_that_is_gone_are_ended(server):
    async with Stage(server, grace=0.4) as stage:
        stage.keeper()
        publisher, dies, lives = stage.publisher(), stage.replica("dies"), stage.replica("lives")
        publisher.publish(seen("a"))
        await until(lambda: dies.state.workers() and lives.state.workers())
        dies.report(granted("r"))
        lives.report(granted("s"))
        await until(lambda: ("a", "r") in words(lives.state))

        dies.task.cancel()
        await until(lambda: ("a", "r") not in words(lives.state))

        (end,) = [one for one in lives.records if isinstance(one, Ended)]
        assert (end.request, end.outcome) == ("r", Outcome.CUT_OFF)


async def test_a_redis_that_lost_everything_gets_it_back(own_server):
    async with Stage(own_server) as stage:
        stage.keeper()
        publisher, old = stage.publisher(), stage.replica("old")
        publisher.publish(seen("a"))
        publisher.publish(kv(stored(1, 2, 3)))
        await until(lambda: words(old.state).get(("a", "kv")) == [1, 2, 3])
        old.report(granted("r"))

        own_server.stop()
        publisher.publish(kv(Removed(keys=np.array([2], np.uint64)), sequence=2))
        await asyncio.sleep(0.3)
        own_server.start()
        new = stage.replica("new")

        expected = {"a": True, ("a", "kv"): [1, 3], ("a", "r"): None}
        await until(lambda: words(new.state) == expected)
        await until(lambda: words(old.state) == {"a": True, ("a", "kv"): [1, 3]})
        assert not any(isinstance(one, WorkerGone) for one in old.records)


async def test_what_is_too_much_to_keep_while_redis_is_away_is_said_as_a_whole(own_server):
    async with Stage(own_server, backlog=2_000) as stage:
        stage.keeper()
        publisher, reader = stage.publisher(), stage.replica("reader")
        for worker in ("a", "b"):
            publisher.publish(seen(worker))
        await until(lambda: len(reader.state.workers()) == 2)

        own_server.stop()
        await asyncio.sleep(0.1)
        publisher.publish(WorkerGone(worker="b"))
        for number in range(500):
            publisher.publish(kv(stored(number), sequence=number))
        own_server.start()

        await until(lambda: words(reader.state).get(("a", "kv")) == list(range(500)))
        await until(lambda: reader.state.workers() == ["a"])
        assert publisher.restated >= 1


async def test_another_keeper_goes_on_where_one_stopped(server):
    async with Stage(server, entries=5, lease=0.3) as stage:
        stage.keeper()
        publisher = stage.publisher()
        publisher.publish(seen("a"))
        first = stage.tasks[0]
        second = stage.keeper()
        await asyncio.sleep(0.5)
        first.cancel()
        for number in range(100):
            publisher.publish(kv(stored(number), sequence=number))
            await asyncio.sleep(0.005)

        await until(lambda: len(words(second._state).get(("a", "kv"), [])) == 100)

        newcomer = stage.replica("newcomer")
        await until(lambda: len(words(newcomer.state).get(("a", "kv"), [])) == 100)


async def test_a_worker_that_is_handed_over_is_said_by_the_next_one_alone(server):
    async with Stage(server) as stage:
        stage.keeper()
        before, after, reader = stage.publisher(), stage.publisher(), stage.replica("reader")
        for worker in ("a", "b"):
            before.publish(seen(worker))
        before.publish(kv(stored(1, 2)))
        await until(lambda: words(reader.state).get(("a", "kv")) == [1, 2])

        before.publish(kv(stored(3), sequence=2))
        await before.let_go(["a"])
        found = words(await read_state(stage.log()))
        after.publish(seen("a"))
        after.publish(kv(Cleared(), stored(7), sequence=9))
        await until(lambda: words(reader.state).get(("a", "kv")) == [7])
        before._is_behind = True
        before.publish(kv(stored(5), worker="b"))
        await until(lambda: words(reader.state).get(("b", "kv")) == [5])

        assert found["a"]
        assert found["a", "kv"] in ([1, 2], [1, 2, 3])
        assert words(reader.state)["a", "kv"] == [7]
        assert not any(isinstance(one, WorkerGone) for one in reader.records)


async def test_a_declaration_that_was_passed_on_is_not_said_again(own_server):
    first, second = (
        Declared(budgets=(ScopedBudget(budget=Budget(name=name)),)) for name in ("one", "two")
    )
    async with Stage(own_server) as stage:
        stage.keeper()
        before, after, reader = stage.publisher(), stage.publisher(), stage.replica("reader")
        before.declare(first)
        await until(lambda: reader.declared == first)

        before.declare(None)
        after.declare(second)
        await until(lambda: reader.declared == second)
        own_server.stop()
        own_server.start()
        before.publish(seen("a"))
        after.publish(seen("b"))
        await until(lambda: sorted(reader.state.workers()) == ["a", "b"])

        assert reader.declared == second


@pytest.mark.parametrize("entries", [3, 1000])
async def test_the_whole_state_can_be_read_at_once(server, entries):
    async with Stage(server, entries=entries) as stage:
        before = words(await read_state(stage.log()))
        keeper, publisher = stage.keeper(), stage.publisher()
        publisher.publish(seen("a"))
        for number in range(30):
            publisher.publish(kv(stored(number), sequence=number))
            await asyncio.sleep(0.002)
        await until(lambda: words(keeper._state).get(("a", "kv")) == list(range(30)))

        assert before == {}
        assert words(await read_state(stage.log())) == words(keeper._state)


WORKERS = st.sampled_from("ab")
REQUESTS = st.sampled_from("rst")
KEYS = st.lists(st.integers(0, 5), min_size=1, max_size=3)
COLLECTED = st.one_of(
    st.builds(seen, WORKERS),
    st.builds(lambda w: WorkerGone(worker=w), WORKERS),
    st.builds(lambda w, k: kv(stored(*k), worker=w), WORKERS, KEYS),
    st.builds(lambda w, k: kv(Removed(keys=np.array(k, np.uint64)), worker=w), WORKERS, KEYS),
    st.builds(lambda w: kv(Cleared(), worker=w), WORKERS),
)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(COLLECTED, max_size=40), st.integers(1, 8))
def test_a_newcomer_knows_what_the_records_add_up_to(server, records, entries):
    async def run():
        expected = FleetState()
        async with Stage(server, entries=entries) as stage:
            keeper, publisher = stage.keeper(), stage.publisher()
            for record in records:
                expected.apply(record)
                publisher.publish(record)
                await asyncio.sleep(0)
            await until(lambda: words(keeper._state) == words(expected))
            newcomer = stage.replica("newcomer")

            await until(newcomer.synced.is_set)
            await until(lambda: words(newcomer.state) == words(expected))

    asyncio.run(run())
