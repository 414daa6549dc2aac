"""A collector that takes a worker over: an engine's own cache is what it has to come to."""

import itertools
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman.engine import EngineSettings
from leadsman.records import KvEvents, Stored, Trust, TrustChanged, WorkerSeen
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_events import BlockRemoved, BlockStored
from leadsman_fleet.state import FleetState
from leadsman_operator.succession import Succession

CAPACITY = 12
SEEN = WorkerSeen(
    worker="w",
    endpoint="w",
    settings=EngineSettings(
        model="m",
        version="0.33.0",
        max_num_batched_tokens=2048,
        max_num_seqs=16,
        max_model_len=8192,
        block_size=1,
        num_blocks=CAPACITY,
    ),
)


class Engine:
    """A cache that gives up what was stored longest ago, and keeps its last batches."""

    def __init__(self, kept):
        self.kept = kept
        self.cache, self.batches = OrderedDict(), []

    def step(self, token):
        """Store the block of a token, after giving up one where there is no room."""
        events = []
        if token in self.cache:
            return
        if len(self.cache) == CAPACITY:
            oldest, _ = self.cache.popitem(last=False)
            events.append(BlockRemoved(hashes=(oldest,), tier="GPU"))
        self.cache[token] = None
        tokens = np.array([token], dtype=np.uint32)
        events.append(stored(token, tokens))
        self.batches.append(events)

    @property
    def history(self):
        numbered = list(enumerate(self.batches))
        return numbered if self.kept is None else numbered[-self.kept :]

    def keys(self):
        blocks = EngineBlocks(secret=b"", model="m")
        events = [stored(token, np.array([token], dtype=np.uint32)) for token in self.cache]
        return {int(key) for one in blocks.resolve(events) for key in one.keys}


def stored(token, tokens):
    return BlockStored(
        hashes=(token,), parent=None, tokens=tokens, block_size=1, tier="GPU", group=0
    )


class Log:
    """What everybody knows of the worker, and how it is believed."""

    def __init__(self):
        self.state = FleetState()
        self.state.apply(SEEN)
        self.trust = []

    def publish(self, record):
        self.state.apply(record)
        if isinstance(record, TrustChanged):
            self.trust.append(record.trust)

    def said(self):
        [record] = [one for one in self.state.snapshot() if isinstance(one, KvEvents)]
        return record

    def copies(self):
        return sorted(
            int(k) for one in self.said().events if isinstance(one, Stored) for k in one.keys
        )


class Collector:
    """Follows the engine as `KvStream` does: the history first, then what is new."""

    def __init__(self, engine, log, *, before=None):
        self.engine, self.blocks = engine, EngineBlocks(secret=b"", model="m")
        self.hear = log.publish
        if before is not None:
            self.hear = Succession(SEEN, before, self.blocks, log.publish).hear
        self.believe(Trust.REPLAYING)
        for number, events in engine.history:
            self.apply(number, events)
        self.believe(Trust.LIVE)
        self.next = len(engine.batches)

    def catch_up(self):
        for number in range(self.next, len(self.engine.batches)):
            self.apply(number, self.engine.batches[number])
        self.next = len(self.engine.batches)

    def believe(self, trust):
        self.hear(TrustChanged(worker="w", trust=trust, reason="test"))

    def apply(self, number, events):
        record = KvEvents(
            worker="w",
            sequence=number,
            engine_time=0.0,
            received_at=0.0,
            events=self.blocks.resolve(events),
        )
        self.hear(record)


TOKENS = st.lists(st.integers(1, 30), max_size=60)


@settings(max_examples=40)
@given(TOKENS, TOKENS, TOKENS, st.none() | st.integers(0, 30))
def test_whoever_takes_over_comes_to_what_the_engine_holds(first, between, after, kept):
    engine, log = Engine(kept), Log()
    one = Collector(engine, log)
    for token in first:
        engine.step(token)
    one.catch_up()
    for token in between:
        engine.step(token)

    two = Collector(engine, log, before=log.said())
    for token in after:
        engine.step(token)
        two.catch_up()
        assert log.trust[-1] is not Trust.LIVE or known(log) <= engine.keys()
        assert len(log.copies()) == len(known(log)) <= CAPACITY

    for token in range(100, 100 + CAPACITY):
        engine.step(token)
    two.catch_up()
    assert log.copies() == sorted(engine.keys())
    assert log.trust[-1] is Trust.LIVE


@settings(max_examples=40)
@given(TOKENS, TOKENS, st.integers(1, 30))
def test_a_cache_that_gives_up_the_oldest_is_known_at_once_however_short_the_replay(
    first, between, kept
):
    engine, log = Engine(kept), Log()
    one = Collector(engine, log)
    for token in first:
        engine.step(token)
    one.catch_up()
    count = len(engine.batches)
    for token in between:
        engine.step(token)

    Collector(engine, log, before=log.said())

    if len(engine.batches) - count < kept:
        assert log.copies() == sorted(engine.keys())


def known(log):
    return set(log.copies())


def test_what_is_known_stays_known_while_the_engine_replays():
    engine, log = Engine(None), Log()
    Collector(engine, log)
    for token in range(1, 5):
        engine.step(token)
    before = Log()
    old = Collector(engine, before)
    old.catch_up()
    heard = []

    Succession(SEEN, before.said(), EngineBlocks(secret=b"", model="m"), heard.append).hear(
        TrustChanged(worker="w", trust=Trust.REPLAYING, reason="connected")
    )

    assert [type(one) for one in heard] == [TrustChanged]
    assert known(before) == engine.keys()


def test_an_engine_that_started_anew_inherits_nothing():
    engine, log = Engine(3), Log()
    one = Collector(engine, log)
    for token in range(1, 11):
        engine.step(token)
    one.catch_up()
    anew = Engine(3)
    for token in range(11, 16):
        anew.step(token)

    Collector(anew, log, before=log.said())

    assert known(log) <= anew.keys()
    assert len(known(log)) == 3
    assert log.trust[-1] is Trust.LIVE


@pytest.mark.parametrize("trust", [Trust.SUSPECT, Trust.BLIND])
def test_where_batches_are_lost_nothing_inherited_is_kept(trust):
    engine, log = Engine(2), Log()
    one = Collector(engine, log)
    for token in range(1, 8):
        engine.step(token)
    one.catch_up()
    two = Collector(engine, log, before=log.said())
    assert log.trust[-1] is Trust.REPLAYING
    assert known(log) == engine.keys()

    two.believe(trust)

    assert len(known(log)) == 2
    assert log.trust[-1] is trust


def test_an_inherited_block_that_is_stored_again_is_one_block():
    engine, log = Engine(1), Log()
    one = Collector(engine, log)
    for token in (1, 2, 3):
        engine.step(token)
    one.catch_up()
    two = Collector(engine, log, before=log.said())

    two.apply(3, [BlockRemoved(hashes=(1,), tier="GPU"), stored(2, np.array([2], dtype=np.uint32))])

    numbers = itertools.groupby(log.copies())
    assert all(len(list(copies)) == 1 for _, copies in numbers)
