import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.engine import EngineSettings, SglangRules
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
from leadsman_fleet.codec import decode, encode, shifted
from leadsman_fleet.written import element

counts = st.integers(0, 2**31 - 1)
seconds = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(max_size=20)
keys = st.lists(st.integers(0, 2**64 - 1), max_size=8).map(lambda k: np.array(k, dtype=np.uint64))


def maybe(strategy):
    return st.none() | strategy


sglang = st.builds(
    SglangRules,
    max_prefill_tokens=counts,
    chunked_prefill_size=maybe(counts),
    schedule_policy=st.sampled_from(["fcfs", "lpm", "lof"]),
    schedule_conservativeness=seconds,
    enable_mixed_chunk=st.booleans(),
    enable_priority_scheduling=st.booleans(),
    low_priority_first=st.booleans(),
    preemption_threshold=st.integers(-100, 100),
    prefill_max_requests=maybe(counts),
)
settings = st.builds(
    EngineSettings,
    model=words,
    version=words,
    max_num_batched_tokens=counts,
    max_num_seqs=counts,
    max_model_len=counts,
    block_size=counts,
    num_blocks=counts,
    enable_prefix_caching=st.booleans(),
    enable_chunked_prefill=st.booleans(),
    long_prefill_token_threshold=maybe(counts),
    async_scheduling=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    watermark=seconds,
    reserve_full_isl=st.booleans(),
    windows=st.lists(maybe(st.integers(1, 2**31)), min_size=1, max_size=3).map(tuple),
    retention_interval=maybe(counts),
    num_speculative_tokens=counts,
    num_lookahead_tokens=counts,
    is_eagle=st.booleans(),
    aligns_chunks=st.booleans(),
    hardware=maybe(words),
    image=maybe(words),
    sglang=maybe(sglang),
)
events = (
    st.builds(Stored, keys=keys, tier=words, session=maybe(words))
    | st.builds(Removed, keys=keys, tier=words)
    | st.builds(Cleared, tier=maybe(words))
)
records = st.one_of(
    st.builds(
        WorkerSeen,
        worker=words,
        endpoint=words,
        settings=settings,
        ready=st.booleans(),
        dp_rank=maybe(counts),
    ),
    st.builds(WorkerGone, worker=words),
    st.builds(
        StoreSeen,
        worker=words,
        chunks=counts,
        unused=st.dictionaries(words, counts, max_size=3),
        problem=maybe(words),
    ),
    st.builds(
        KvEvents,
        worker=words,
        sequence=counts,
        engine_time=seconds,
        received_at=seconds,
        events=st.lists(events, max_size=4).map(tuple),
    ),
    st.builds(TrustChanged, worker=words, trust=st.sampled_from(Trust), reason=words),
    st.builds(
        LoadSample,
        worker=words,
        at=seconds,
        running=counts,
        waiting=counts,
        kv_usage=maybe(seconds),
        prefix_hits=maybe(seconds),
    ),
    st.builds(
        Granted,
        worker=words,
        request=words,
        at=seconds,
        prompt_tokens=counts,
        keys=keys,
        max_tokens=maybe(counts),
        priority=st.integers(-(2**31), 2**31),
        predicted_ttft=maybe(seconds),
        reads_cache=st.booleans(),
    ),
    st.builds(TokensSeen, worker=words, request=words, at=seconds, tokens=counts),
    st.builds(
        Ended,
        worker=words,
        request=words,
        at=seconds,
        outcome=st.sampled_from(Outcome),
        completion_tokens=maybe(counts),
        cached_tokens=maybe(counts),
    ),
    st.builds(
        Learned,
        worker=words,
        fingerprint=words,
        samples=st.lists(st.tuples(counts, seconds), max_size=4).map(tuple),
        step_weights=maybe(st.lists(seconds, max_size=6).map(tuple)),
    ),
)


def plain(value):
    if isinstance(value, np.ndarray):
        return ("keys", value.dtype, value.tolist())
    if isinstance(value, tuple):
        return tuple(plain(one) for one in value)
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return (type(value), *(plain(getattr(value, field.name)) for field in fields))
    return (type(value), value)


@given(records)
def test_a_record_survives_the_wire(record):
    sent = encode(record).SerializeToString()

    arrived = decode([pb.Record.FromString(sent)])

    assert arrived.skipped == 0
    assert [plain(one) for one in arrived.records] == [plain(record)]


@given(st.lists(records, max_size=4), st.integers(0, 2**64 - 1), st.integers(0, 40))
def test_what_is_written_by_hand_is_what_protobuf_reads(told, sequence, copies):
    long = Stored(keys=np.arange(copies * 7, dtype=np.uint64), session="s" * copies)
    batch = KvEvents(
        worker="w", sequence=sequence, engine_time=1.0, received_at=-2.0, events=(long,) * copies
    )
    head = pb.Envelope(epoch="e", sequence=3).SerializeToString()

    envelope = pb.Envelope.FromString(head + b"".join(map(element, [*told, batch])))

    assert list(envelope.records) == [encode(record) for record in [*told, batch]]
    assert (envelope.epoch, envelope.sequence) == ("e", 3)


@pytest.mark.parametrize("sequence", [-1, 2**64])
def test_a_number_that_does_not_fit_the_wire_is_refused(sequence):
    batch = KvEvents(worker="w", sequence=sequence, engine_time=0.0, received_at=0.0, events=())

    with pytest.raises(ValueError, match="64-bit"):
        element(batch)


@given(st.lists(records, max_size=4), st.integers(0, 4))
def test_a_kind_from_the_future_is_skipped_and_counted(known, place):
    field_200_of_length_3 = b"\xc2\x0c\x03abc"
    messages = [encode(one) for one in known]
    messages.insert(place, pb.Record.FromString(field_200_of_length_3))

    arrived = decode(messages)

    assert arrived.skipped == 1
    assert [plain(one) for one in arrived.records] == [plain(one) for one in known]


def test_an_event_kind_from_the_future_costs_only_that_event():
    batch = KvEvents(worker="w", sequence=1, engine_time=0.0, received_at=0.0, events=(Cleared(),))
    message = encode(batch)
    message.kv_events.events.add()

    arrived = decode([message])

    assert arrived.skipped == 1
    assert arrived.records == (batch,)


@pytest.mark.parametrize(
    "message",
    [
        pb.Record(trust_changed=pb.TrustChanged(worker="w", trust="devout")),
        pb.Record(ended=pb.Ended(worker="w", request="r", outcome="ascended")),
        pb.Record(worker_seen=pb.WorkerSeen(settings=pb.EngineSettings(engine="abacus"))),
        pb.Record(granted=pb.Granted(worker="w", request="r", keys=b"1234567")),
    ],
)
def test_a_word_that_is_not_known_costs_only_its_record(message):
    load = LoadSample(worker="w", at=1.0, running=2, waiting=3)

    arrived = decode([message, encode(load)])

    assert arrived.skipped == 1
    assert arrived.records == (load,)


@given(records, st.integers(-1000, 1000))
def test_shifting_a_record_moves_its_times_and_nothing_else(record, offset):
    times = {"at", "received_at"}

    moved = shifted(record, offset)

    for field in dataclasses.fields(record):
        before, after = getattr(record, field.name), getattr(moved, field.name)
        expected = before + offset if field.name in times else before
        assert plain(after) == plain(expected)
