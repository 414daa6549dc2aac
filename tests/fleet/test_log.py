import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from leadsman.records import (
    Cleared,
    Ended,
    Granted,
    KvEvents,
    Learned,
    LoadSample,
    Outcome,
    Removed,
    Stored,
    StoreSeen,
    TokensSeen,
    Trust,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
)
from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.codec import decode, encode
from leadsman_fleet.follower import Follower, Part, Phase
from leadsman_fleet.log import Bounds, FleetLog
from leadsman_fleet.state import FleetState

from tests.settings import SETTINGS

EMPTY = np.empty(0, np.uint64)

MUST_BE_EQUAL = (WorkerSeen, StoreSeen, TrustChanged, KvEvents, Granted, TokensSeen)
MAY_OUTLIVE_A_LOG = (LoadSample, Learned)

workers = st.sampled_from(["a", "b"])
stores = st.just("store s")
requests = st.sampled_from(["r1", "r2"])
keys = st.lists(st.integers(0, 9), max_size=4).map(lambda k: np.array(k, dtype=np.uint64))
tiers = st.sampled_from(["GPU", "CPU"])


def seen(worker, *, ready=True):
    return WorkerSeen(worker=worker, endpoint=worker, settings=SETTINGS, ready=ready)


def granted(worker, request):
    return Granted(
        worker=worker,
        request=request,
        at=1.0,
        prompt_tokens=9,
        keys=EMPTY,
        max_tokens=None,
        priority=0,
        predicted_ttft=None,
    )


def batch(worker, *events):
    return KvEvents(worker=worker, sequence=7, engine_time=1.0, received_at=2.0, events=events)


events = (
    st.builds(Stored, keys=keys, tier=tiers)
    | st.builds(Removed, keys=keys, tier=tiers)
    | st.builds(Cleared, tier=st.none() | tiers)
)
observations = st.one_of(
    st.builds(seen, workers, ready=st.booleans()),
    st.builds(WorkerGone, worker=workers | stores),
    st.builds(batch, workers | stores, events, events),
    st.builds(
        StoreSeen,
        worker=stores,
        chunks=st.integers(0, 9),
        unused=st.just({"uneven": 1}),
        problem=st.none() | st.just("away"),
    ),
    st.builds(TrustChanged, worker=workers, trust=st.sampled_from(Trust), reason=st.just("why")),
    st.builds(
        LoadSample, worker=workers, at=st.just(1.0), running=st.integers(0, 9), waiting=st.just(0)
    ),
)
reports = st.one_of(
    st.builds(granted, workers, requests),
    st.builds(
        TokensSeen, worker=workers, request=requests, at=st.just(3.0), tokens=st.integers(1, 9)
    ),
    st.builds(
        Ended,
        worker=workers,
        request=requests,
        at=st.just(4.0),
        outcome=st.just(Outcome.FINISHED),
    ),
    st.builds(
        Learned, worker=workers, fingerprint=st.sampled_from("xy"), samples=st.just(((9, 0.1),))
    ),
)


def told(records, kinds):
    """Give what a snapshot says, whatever the order of workers, grants and blocks."""
    return {sorted_blocks(record) for record in records if isinstance(record, kinds)}


def sorted_blocks(record):
    if not isinstance(record, KvEvents):
        return repr(encode(record))
    blocks = [
        (event.tier, key)
        for event in record.events
        if isinstance(event, Stored)
        for key in event.keys.tolist()
    ]
    return repr((record.worker, record.sequence, sorted(blocks)))


class Reader:
    """A follower and the state that it keeps, by nothing but the records it passes on."""

    def __init__(self, name):
        self.name = name
        self.follower = Follower()
        self.state = FleetState()
        self.live = set()

    def read(self, log, *, cut_after=None):
        follower = self.follower
        follower.begin()
        for part in itertools.islice(stream(log, follower, self.name), cut_after):
            for record in follower.take(part, now=5.0):
                self.apply(record)

    def apply(self, record):
        match record:
            case Granted():
                grant = (record.worker, record.request)
                assert grant not in self.live
                self.live.add(grant)
            case Ended():
                self.live.discard((record.worker, record.request))
            case WorkerGone():
                self.live = {grant for grant in self.live if grant[0] != record.worker}
        self.state.apply(record, "anybody")


def read(catchup):
    return decode(pb.Envelope.FromString(b"".join(catchup.written)).records).records


def stream(log, follower, name):
    while (follower.epoch, follower.sequence) != (log.epoch, log.sequence):
        catchup = log.since(follower.epoch, follower.sequence, reader=name)
        news = read(catchup)
        if catchup.is_snapshot:
            for record in news:
                yield Part(epoch=log.epoch, sequence=0, phase=Phase.SNAPSHOT, records=(record,))
            news = ()
        phase = Phase.SNAPSHOT_END if catchup.is_snapshot else Phase.LIVE
        yield Part(epoch=log.epoch, sequence=catchup.sequence, phase=phase, records=news)


class ReadersOfOneLog(RuleBasedStateMachine):
    """However a reader comes and goes, it ends with what the log says."""

    @initialize(ring=st.sampled_from([0, 2, 8]))
    def start(self, ring):
        self.ring = ring
        self.epochs = itertools.count()
        self.readers = [Reader(None), Reader("me"), Reader("other")]
        self.restart()

    @rule()
    def restart(self):
        bounds = Bounds(records=self.ring, piece=150)
        self.log = FleetLog(epoch=f"epoch {next(self.epochs)}", bounds=bounds)
        self.log.append(seen("a"))

    @rule(record=observations)
    def observe(self, record):
        self.log.append(record)

    @rule(record=reports, source=st.sampled_from(["me", "other", "a third"]))
    def report(self, record, source):
        if not isinstance(record, Learned):
            record = dataclasses.replace(record, request=f"{record.request} of {source}")
        self.log.append(record, source)

    @rule(reader=st.integers(0, 2))
    def read(self, reader):
        self.readers[reader].read(self.log)

    @rule(reader=st.integers(0, 2), parts=st.integers(0, 6))
    def lose_the_stream(self, reader, parts):
        self.readers[reader].read(self.log, cut_after=parts)

    @invariant()
    def the_ring_keeps_its_bounds(self):
        assert len(self.log._ring) <= self.ring

    def teardown(self):
        if not hasattr(self, "log"):
            return
        for reader in self.readers:
            reader.read(self.log)
            expected = self.log.snapshot(reader=reader.name)
            held = reader.state.snapshot()
            assert told(held, MUST_BE_EQUAL) == told(expected, MUST_BE_EQUAL)
            if reader.name is None:
                assert told(held, MAY_OUTLIVE_A_LOG) >= told(expected, MAY_OUTLIVE_A_LOG)


ReadersOfOneLog.TestCase.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None
)
TestReadersOfOneLog = ReadersOfOneLog.TestCase


def test_a_reader_inside_the_ring_is_sent_only_what_it_missed():
    log = FleetLog(epoch="e")
    log.append(seen("a"))
    position = log.sequence
    log.append(seen("b"))

    catchup = log.since("e", position)

    assert not catchup.is_snapshot
    assert read(catchup) == (seen("b"),)


def test_a_reader_that_was_away_too_long_is_sent_a_snapshot():
    log = FleetLog(epoch="e", bounds=Bounds(records=1))
    log.append(seen("a"))
    log.append(seen("b"))
    log.append(seen("c"))

    catchup = log.since("e", 1)

    assert catchup.is_snapshot
    assert catchup.sequence == 3


def test_a_store_that_left_and_came_back_silent_is_not_believed_to_have_spoken():
    log = FleetLog(epoch="e", bounds=Bounds(records=0))
    reader = Reader(None)
    log.append(StoreSeen(worker="store s", chunks=4, unused={}, problem="away"))
    reader.read(log)
    log.append(WorkerGone(worker="store s"))
    log.append(batch("store s", Stored(keys=np.arange(3, dtype=np.uint64), tier="CPU")))

    reader.read(log)

    assert not [one for one in reader.state.snapshot() if isinstance(one, StoreSeen)]


def test_the_ring_is_bounded_in_bytes_too():
    log = FleetLog(epoch="e", bounds=Bounds(bytes=1000))
    log.append(seen("a"))

    log.append(batch("a", Stored(keys=np.arange(1000, dtype=np.uint64))))

    assert log.since("e", 1).is_snapshot
    assert not log.since("e", 2).is_snapshot


def test_a_departed_worker_gives_back_all_that_was_held_for_it():
    log = FleetLog(epoch="e")
    log.append(seen("a"))
    log.append(batch("a", Stored(keys=np.arange(1000, dtype=np.uint64))))
    log.append(granted("a", "r"))

    log.append(WorkerGone(worker="a"))

    assert log.snapshot() == []


def test_a_late_record_does_not_bring_a_departed_worker_back():
    log = FleetLog(epoch="e")

    sequence = log.append(batch("a", Stored(keys=np.arange(3, dtype=np.uint64))))

    assert sequence is None
    assert log.snapshot() == []


@pytest.mark.parametrize(
    "report",
    [
        granted("a", "r"),
        TokensSeen(worker="a", request="earlier", at=1.0, tokens=2),
        Learned(worker="a", fingerprint="f", samples=((9, 0.1),)),
    ],
)
def test_a_report_that_is_repeated_is_told_once(report):
    log = FleetLog(epoch="e")
    log.append(seen("a"))
    log.append(granted("a", "earlier"), "me")
    log.append(report, "me")

    again = log.append(report, "me")

    assert again is None
