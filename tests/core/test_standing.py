"""What is known without a replay: never more than the replay says, and never out of date."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.curve import KnownCurve, PrefillCurve, fingerprint
from leadsman.engine import EngineSettings
from leadsman.fleet import Fleet
from leadsman.lengths import Lengths
from leadsman.records import (
    Ended,
    Granted,
    KvEvents,
    Learned,
    Outcome,
    Stored,
    TokensSeen,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.standing import Standing
from leadsman.units import RequestId, WorkerId
from leadsman.worker import WorkerState

WORKERS = [WorkerId(f"w{number}:8000") for number in range(3)]
CURVE = KnownCurve(curve=PrefillCurve(overhead=0.02, a=3e-5, b=4e-11), provenance="own")
SIZE = 16
SETTINGS = EngineSettings(
    model="m",
    version="0.33.0",
    max_num_batched_tokens=512,
    max_num_seqs=4,
    max_model_len=16_000,
    block_size=SIZE,
    num_blocks=2000,
)
WORKER_SEEN = WorkerSeen(worker=WORKERS[0], endpoint=WORKERS[0], settings=SETTINGS)
WEIGHTS = (0.008, 3e-5, 8e-11, 2e-5, 5e-9, 0.004)


def keys(family, tokens):
    return np.arange(1, tokens // SIZE + 1, dtype=np.uint64) + np.uint64(family << 32)


def request(name, prompt, family):
    return Request(
        id=RequestId(name),
        model="m",
        prompt_tokens=prompt,
        arrived_at=0.0,
        keys={SIZE: keys(family, prompt)},
    )


def learned(worker):
    return Learned(
        worker=worker, fingerprint=fingerprint(SETTINGS), samples=(), step_weights=WEIGHTS
    )


works = st.tuples(st.integers(1, 3000), st.integers(0, 5), st.integers(0, 6))


@profile(max_examples=300)
@given(st.lists(works, max_size=8), works, st.floats(0, 0.2))
def test_no_price_is_below_its_floor(queued, asked, later):
    seen = WorkerSeen(worker=WORKERS[0], endpoint="w", settings=SETTINGS)
    state = WorkerState(seen, Lengths(), CURVE)
    state.adopt(learned(WORKERS[0]))
    for number, (prompt, family, steps) in enumerate(queued):
        state.take(state._as_granted(request(f"q{number}", prompt, family), 0.0))
        for _ in range(steps):
            state.mirror._commit()
    now = max(later, state.mirror.replay.clock - later)

    standing = Standing([state])

    price = state.price(request("asked", *asked[:2]), now)

    own, wait, *_ = standing.floors(asked[0], np.array([price.cached_tokens]), now)
    assert price.queue_wait >= wait[0] - 1e-9
    assert price.ttft >= own[0] + wait[0] - 1e-9


def test_who_decodes_and_was_not_asked_about_ends_as_anybody_does():
    state = WorkerState(WORKER_SEEN, Lengths(), CURVE)
    for number in range(3):
        state.take(state._as_granted(request(f"q{number}", 200, number), 0.0))
    for _ in range(4):
        state.mirror._commit()
    assert len(state.mirror.replay.decoding) == 3
    state._below.pop("q1")
    state._crowd = None

    assert state.price(request("asked", 1000, 9), 1.0).ttft > 0


@st.composite
def happenings(draw):
    """What a fleet is told, and asked, in any order."""
    told = []
    for number in range(draw(st.integers(1, 25))):
        worker = draw(st.sampled_from(WORKERS))
        kind = draw(st.sampled_from(["ask", "ask", "grant", "token", "end", "events", "learn"]))
        told.append((kind, worker, number, draw(works)))
    return told


def happen(fleet, happening, now):
    kind, worker, number, (prompt, family, count) = happening
    other = RequestId(f"r{number - count}")
    if kind == "ask":
        fleet.decide(request(f"r{number}", prompt, family), Budget(), now, Random(number))
        return
    record = {
        "grant": lambda: Granted(
            worker=worker,
            request=RequestId(f"r{number}"),
            at=now,
            prompt_tokens=prompt,
            keys=keys(family, prompt),
            max_tokens=None,
            priority=0,
            predicted_ttft=None,
        ),
        "token": lambda: TokensSeen(worker=worker, request=other, at=now, tokens=count + 1),
        "end": lambda: Ended(
            worker=worker,
            request=other,
            at=now,
            outcome=Outcome.FINISHED,
            completion_tokens=count + 1,
        ),
        "events": lambda: KvEvents(
            worker=worker,
            sequence=number,
            engine_time=now,
            received_at=now,
            events=(Stored(keys=keys(family, prompt)),),
        ),
        "learn": lambda: learned(worker),
    }[kind]()
    fleet.apply(record, now)


@given(happenings())
def test_what_is_kept_of_a_worker_is_what_it_would_say_now(told):
    fleet, now = Fleet(), 0.0
    for worker in WORKERS:
        fleet.apply(WorkerSeen(worker=worker, endpoint=worker, settings=SETTINGS), now)

    for happening in told:
        now += 0.05
        happen(fleet, happening, now)
        kept = fleet.candidates(request("asked", 1000, 1), now)

        afresh = Standing(list(fleet.workers.values()))
        own, wait, measured, idle_since = afresh.floors(1000, kept.cached, now)
        assert kept.own_floors == pytest.approx(own)
        assert kept.wait_floors == pytest.approx(wait)
        assert kept.measured.tolist() == measured.tolist()
        assert kept.idle_since.tolist() == idle_since.tolist()
