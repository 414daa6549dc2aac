import asyncio
import contextlib
import itertools

import grpc
import numpy as np
import pytest
from leadsman.records import (
    Ended,
    Granted,
    KvEvents,
    Learned,
    LoadSample,
    Outcome,
    Stored,
    TokensSeen,
    WorkerGone,
    WorkerSeen,
)
from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.client import ClientTiming, FleetClient, Target
from leadsman_fleet.codec import encode
from leadsman_fleet.fleet_pb2_grpc import FleetStub
from leadsman_fleet.log import Bounds, FleetLog
from leadsman_fleet.server import FleetService, ServerTiming, listen

from .records import ended, granted, seen

PATIENCE = 20.0


def stored(keys, *, worker="a"):
    block = Stored(keys=np.array(keys, dtype=np.uint64))
    return KvEvents(worker=worker, sequence=1, engine_time=1.0, received_at=2.0, events=(block,))


class Stage:
    """A server that can be stopped and started on its port, and replicas that watch it."""

    def __init__(self, socket):
        self.address = f"unix:{socket}"
        self.epochs = itertools.count()
        self.tasks = []

    async def start(self, *, bounds=None, **timing):
        log = FleetLog(epoch=f"epoch {next(self.epochs)}", bounds=bounds)
        settings = ServerTiming(**{"linger": 0.0, "heartbeat": 0.05} | timing)
        self.service = FleetService(log, timing=settings)
        self.server, _ = await listen(self.service, self.address)
        return self.service

    async def stop(self):
        await self.server.stop(None)

    def replica(self, name, **options):
        heard = asyncio.Queue()
        timing = ClientTiming(linger=0.0, retry=0.05)
        target = Target(address=self.address, replica=name)
        client = FleetClient(target, heard.put_nowait, timing=timing, **options)
        task = asyncio.create_task(client.run())
        self.tasks.append(task)
        return client, heard, task

    async def close(self):
        for task in self.tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.server.stop(None)


@pytest.fixture
async def stage(tmp_path):
    stage = Stage(tmp_path / "s")
    yield stage
    await stage.close()


async def hear(heard, wanted):
    """Take what was heard until a record of this kind or with this request comes."""
    async with asyncio.timeout(PATIENCE):
        while True:
            record = await heard.get()
            if isinstance(record, wanted):
                return record


async def test_a_newcomer_hears_what_there_is_and_then_what_happens(stage):
    service = await stage.start()
    service.publish(seen("a"))
    service.publish(stored([1, 2, 3]))
    _, heard, _ = stage.replica("one")

    first = await hear(heard, WorkerSeen)
    blocks = await hear(heard, KvEvents)
    service.publish(LoadSample(worker="a", at=3.0, running=1, waiting=0))
    load = await hear(heard, LoadSample)

    assert first == seen("a")
    assert blocks.events[1].keys.tolist() == [1, 2, 3]
    assert load.running == 1


@pytest.mark.looptime
async def test_a_server_that_is_away_is_asked_again_and_again_and_complained_of_once(caplog):
    clock, turns = asyncio.get_running_loop().time, []
    client = FleetClient(Target(address="nobody", replica="one"), print, clock=clock)

    async def attempt(_stub):
        turns.append(clock())
        if len(turns) == 10:
            await asyncio.sleep(60)
        raise TimeoutError

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(70):
            await client._again_and_again(attempt, None)

    pauses = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert max(sorted(pauses)[:-1]) <= ClientTiming().retry
    assert [one.message for one in caplog.records] == 2 * ["fleet stream lost"]


async def test_a_grant_and_what_becomes_of_it_reach_the_other_replica(stage):
    service = await stage.start()
    service.publish(seen("a"))
    one, heard_by_one, _ = stage.replica("one")
    _, heard_by_two, _ = stage.replica("two")
    await hear(heard_by_one, WorkerSeen)
    await hear(heard_by_two, WorkerSeen)

    one.report(granted("r"))
    one.report(TokensSeen(worker="a", request="r", at=1.5, tokens=1))
    one.report(ended("r"))
    relayed = [await hear(heard_by_two, kind) for kind in (Granted, TokensSeen, Ended)]

    assert {record.request for record in relayed} == {"r"}
    assert relayed[0].keys.tolist() == [0, 1, 2]


async def test_the_reporter_hears_none_of_its_own_reports(stage):
    service = await stage.start()
    service.publish(seen("a"))
    one, heard_by_one, _ = stage.replica("one")
    _, heard_by_two, _ = stage.replica("two")
    await hear(heard_by_one, WorkerSeen)
    await hear(heard_by_two, WorkerSeen)
    one.report(granted("r"))
    await hear(heard_by_two, Granted)

    service.publish(WorkerGone(worker="a"))
    heard = []
    async with asyncio.timeout(PATIENCE):
        while not heard or not isinstance(heard[-1], WorkerGone):
            heard.append(await heard_by_one.get())

    assert not [record for record in heard if isinstance(record, Granted)]


async def test_a_server_that_restarts_is_told_the_live_grants_again(stage):
    service = await stage.start()
    service.publish(seen("a"))
    one, heard_by_one, _ = stage.replica("one")
    await hear(heard_by_one, WorkerSeen)
    one.report(granted("lives"))
    one.report(granted("ends"))
    one.report(Learned(worker="a", fingerprint="f", samples=((9, 0.1),)))

    await stage.stop()
    one.report(ended("ends"))
    restarted = await stage.start()
    restarted.publish(seen("a"))
    _, heard_by_two, _ = stage.replica("two")
    told = set()
    while told != {"lives", "f"}:
        record = await hear(heard_by_two, (Granted, Learned))
        told.add(record.fingerprint if isinstance(record, Learned) else record.request)
        told.discard("ends")

    assert told == {"lives", "f"}


async def test_a_worker_that_left_while_the_stream_was_down_is_gone_afterwards(stage):
    service = await stage.start()
    service.publish(seen("a"))
    service.publish(seen("b"))
    _, heard, _ = stage.replica("one")
    await hear(heard, WorkerSeen)
    await hear(heard, WorkerSeen)

    await stage.stop()
    restarted = await stage.start()
    restarted.publish(seen("b"))
    gone = await hear(heard, WorkerGone)

    assert gone == WorkerGone(worker="a")


async def test_an_end_that_happens_while_the_stream_is_down_is_told_afterwards(stage):
    service = await stage.start()
    service.publish(seen("a"))
    one, heard_by_one, _ = stage.replica("one")
    _, heard_by_two, _ = stage.replica("two")
    await hear(heard_by_one, WorkerSeen)
    await hear(heard_by_two, WorkerSeen)
    one.report(granted("r"))
    await hear(heard_by_two, Granted)

    await stage.stop()
    one.report(ended("r"))
    stage.server, _ = await listen(service, stage.address)
    over = await hear(heard_by_two, Ended)

    assert over.outcome is Outcome.FINISHED


async def test_a_replica_that_stays_away_has_its_grants_ended(stage):
    service = await stage.start(replica_grace=0.05)
    service.publish(seen("a"))
    one, heard_by_one, task = stage.replica("one")
    _, heard_by_two, _ = stage.replica("two")
    await hear(heard_by_one, WorkerSeen)
    await hear(heard_by_two, WorkerSeen)
    one.report(granted("r"))
    await hear(heard_by_two, Granted)

    task.cancel()
    over = await hear(heard_by_two, Ended)

    assert over.request == "r"
    assert over.outcome is Outcome.CUT_OFF


async def test_times_are_put_on_the_clock_of_whoever_reads_them(stage):
    service = await stage.start()
    service.publish(seen("a"))
    ahead = 1000.0
    one, heard_by_one, _ = stage.replica("one", clock=lambda: service._clock() + ahead)
    _, heard_by_two, _ = stage.replica("two")
    await hear(heard_by_one, WorkerSeen)
    await hear(heard_by_two, WorkerSeen)

    one.report(granted("r", at=ahead + 5.0))
    relayed = await hear(heard_by_two, Granted)

    assert relayed.at == pytest.approx(5.0, abs=PATIENCE)


async def test_the_state_is_as_old_as_the_last_word(stage):
    service = await stage.start()
    clock = iter([10.0] + [12.0] * 1000)
    client, heard, _ = stage.replica("one", clock=lambda: next(clock, 12.0))
    before = client.state_age(99.0)

    service.publish(seen("a"))
    await hear(heard, WorkerSeen)

    assert before is None
    assert client.state_age(99.0) == pytest.approx(87.0)


async def test_a_record_that_its_owner_chokes_on_does_not_end_the_stream(stage):
    service = await stage.start()
    heard = asyncio.Queue()

    def choke(record):
        heard.put_nowait(record)
        assert not isinstance(record, WorkerSeen)

    client = FleetClient(Target(address=stage.address, replica="one"), choke)
    stage.tasks.append(asyncio.create_task(client.run()))
    service.publish(seen("a"))
    service.publish(LoadSample(worker="a", at=3.0, running=1, waiting=0))

    load = await hear(heard, LoadSample)

    assert load.running == 1
    assert client.failed >= 1


async def test_a_slow_watcher_holds_nobody_up_and_gets_a_snapshot(stage):
    service = await stage.start(bounds=Bounds(records=4))
    service.publish(seen("a"))
    slow = service.Watch(pb.WatchRequest(pool="default", replica="slow"), None)
    first = pb.Envelope.FromString(await anext(slow))
    _, heard, _ = stage.replica("quick")
    await hear(heard, WorkerSeen)

    for number in range(9):
        service.publish(stored([number]))
        await hear(heard, KvEvents)
    second = pb.Envelope.FromString(await anext(slow))

    await slow.aclose()
    blocks = second.records[2].kv_events.events[1].stored.keys
    assert (first.phase, second.phase) == (pb.Envelope.SNAPSHOT_END, pb.Envelope.SNAPSHOT_END)
    assert len(blocks) == 9 * 8


async def test_a_pool_that_is_not_here_is_refused(stage):
    await stage.start()
    async with grpc.aio.insecure_channel(stage.address) as channel:
        call = FleetStub(channel).Watch(pb.WatchRequest(pool="elsewhere", replica="one"))

        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()

    assert refusal.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_picker_cannot_report_what_only_a_collector_sees(stage):
    service = await stage.start()
    async with grpc.aio.insecure_channel(stage.address) as channel:
        request = pb.ReportRequest(replica="one", records=[encode(seen("a"))])

        response = await FleetStub(channel).Report(request)

    assert response.skipped == 1
    assert service._log.snapshot() == []


async def test_an_address_that_cannot_be_had_is_said(tmp_path):
    service = FleetService(FleetLog(epoch="e"))

    with pytest.raises(OSError, match="cannot listen for the fleet stream at"):
        await listen(service, f"unix:{tmp_path}/no/such/folder/s")
