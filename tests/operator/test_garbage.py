import gc

import pytest
from leadsman.engine import EngineSettings
from leadsman.records import WorkerSeen
from leadsman.units import WorkerId
from leadsman_bench.operating._engines import BLOCK_SIZE, batches
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_follower import KvSource
from leadsman_engines.kv_stream import KvStream
from leadsman_fleet.log import FleetLog

W = WorkerId("w:1")
SETTINGS = EngineSettings(
    model="m",
    version="0.33.0",
    block_size=BLOCK_SIZE,
    num_blocks=1000,
    max_model_len=1000,
    max_num_batched_tokens=64,
    max_num_seqs=8,
)


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_kv_events_leave_nothing_for_the_garbage_collector_to_find(uncollected):
    fleet = FleetLog(epoch="e")
    fleet.append(WorkerSeen(worker=W, endpoint=W, settings=SETTINGS, ready=True))
    blocks = EngineBlocks(secret=b"s", model="m", block_size=BLOCK_SIZE)
    source = KvSource(worker=W, events="tcp://127.0.0.1:1")
    stream = KvStream(source, blocks, fleet.append, lambda: 0.0)
    first, again = batches(0)

    for number, batch in enumerate(first + again):
        stream._take_live([b"", number.to_bytes(8, "big"), batch])

    assert fleet.sequence >= len(first + again)
    assert gc.collect() == 0
