"""Another picker's grants come late: by then the engine's events have told of its requests."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman.records import KvEvents, Stored
from leadsman.residuals import unit

from .watched import WORKER, Watched, settings_of

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
LATEST = 0.5
EVERY = 0.1
"""Seconds between two looks at what is believed."""


def watched(is_async=False, *, slots=8):
    return Watched(settings=settings_of(async_scheduling=is_async, max_num_seqs=slots))


def haunted(is_async, *, prompt, keys=(), slots=8):
    """An engine that has shown that it names sessions, and then serves whom nobody has named."""
    engine = watched(is_async, slots=slots)
    engine.submit("ours", 500, 3, keys=keys)
    engine.run_out()
    engine.submit("theirs", prompt, 200, keys=keys, late=LATEST)
    return engine


def believed(engine):
    """Everybody whom the replay has somewhere."""
    replay = engine.mirror.replay
    return {seq.id for seq in (*replay.waiting, *replay.prefilling, *replay.decoding.values())}


def side_by_side(is_async, seed, latest, *, requests=60, theirs=0.3):
    """Play the same requests to two mirrors, of which one hears of `theirs` late.

    Gives what both predict at moments when both have heard of all, and the mirror that was late.
    """
    ours, late = watched(is_async), watched(is_async)
    rng, asked, known, heard_at, now = Random(seed), [], {}, 0.0, 0.0
    for number in range(requests):
        until = now + rng.expovariate(6.0)
        while now < until:
            now = min(until, now + EVERY)
            for engine in (ours, late):
                engine.run(now)
            assert believed(late) <= late.mirror.flights.keys()
            if now > heard_at:
                asked.append([engine.ask("asked", 700, 20)[0] for engine in (ours, late)])
        if number % 3 == 0:
            ours.tell_load()
            late.tell_load()
        family = rng.randrange(4)
        keys = known.setdefault(family, [rng.getrandbits(60) for _ in range(20)])
        prompt, output = rng.randint(70, 2000), rng.randint(3, 80)
        delay = latest * rng.random() if rng.random() < theirs else 0.0
        for engine, lateness in ((ours, 0.0), (late, delay)):
            engine.submit(f"r{number}", prompt, output, keys=keys, late=lateness)
        heard_at = max(heard_at, now + delay + 0.01)
    ours.run_out()
    late.run_out()
    late.tell_load()
    late.tell_load()
    return asked, late


@settings(max_examples=12, deadline=None)
@given(is_async=st.booleans(), seed=st.integers(0, 1000), latest=st.floats(0.005, LATEST))
def test_who_hears_late_comes_to_believe_what_who_heard_at_once_believes(is_async, seed, latest):
    asked, late = side_by_side(is_async, seed, latest)

    # 99 % in the mean of forty plays; one burst in which one differs may be a tenth of a play.
    alike = [abs(there - here) <= unit(here) for here, there in asked]
    assert sum(alike) >= 0.8 * len(alike)
    assert not believed(late)


@BOTH
def test_a_late_grant_is_where_its_ghost_was(is_async):
    engine = haunted(is_async, prompt=3000)
    engine.run(engine.now + LATEST + 0.01)

    assert [str(request) for request in engine.mirror.flights] == ["theirs"]
    assert engine.believed_state()["theirs"] == pytest.approx(
        engine.truth(engine.ahead)["theirs"], abs=3
    )


@BOTH
def test_a_late_grant_is_believed_to_have_found_what_it_found(is_async):
    engine = haunted(is_async, prompt=3000, keys=range(1, 8))
    engine.run(engine.now + LATEST + 0.01)

    flight = engine.mirror.flights["theirs"]
    assert flight.seq.cached == engine.cached["theirs"] == 7 * engine.settings.block_size
    assert flight.believed == flight.seq.cached


def test_who_came_after_a_late_grant_stands_and_finds_its_blocks_behind_it():
    engine = watched(slots=1)
    engine.submit("runs", 1000, 300)
    engine.run(engine.now + 0.2)
    keys = range(100, 130)
    engine.submit("theirs", 2000, 3, keys=keys, late=0.05)
    engine.run(engine.now + 0.01)
    engine.submit("ours", 2000, 3, keys=keys)

    engine.run(engine.now + 0.1)

    first, second = engine.mirror.replay.waiting
    assert (first.id, second.id) == ("theirs", "ours")
    assert second.kin == [("theirs", 30)]


def test_of_whom_one_batch_tells_all_go_on():
    engine = haunted(is_async=False, prompt=1000, slots=1)
    engine.run(engine.now + 0.3)
    (ghost,) = engine.mirror.ghosts

    engine.mirror.saw_events(events(engine.now, ("theirs", 1), ("another", 3)))

    assert ghost.seq.id in engine.mirror.flights
    assert believed(engine) <= engine.mirror.flights.keys()


def test_two_sessions_in_one_batch_are_two_ghosts():
    engine = haunted(is_async=False, prompt=1000)
    engine.run(engine.now + 0.01)

    engine.mirror.saw_events(events(engine.now, ("one", 3), ("another", 3)))

    assert [ghost.session for ghost in engine.mirror.ghosts] == ["one", "another"]


def test_a_late_grant_proves_no_strangers():
    engine = haunted(is_async=False, prompt=1000)
    engine.run(engine.now + LATEST + 0.01)
    for number in range(3):
        engine.submit(f"on its way {number}", 1000, 200, late=LATEST)
    engine.run(engine.now + 0.01)

    engine.tell_load()
    engine.tell_load()

    assert not engine.mirror.ghosts


def events(at, *stored):
    """One step's events: of so many blocks of each session."""
    told = tuple(
        Stored(
            keys=np.arange(1 + 100 * place, 1 + 100 * place + count, dtype=np.uint64),
            session=session,
        )
        for place, (session, count) in enumerate(stored, start=1)
    )
    return KvEvents(worker=WORKER, sequence=99, engine_time=at, received_at=at, events=told)
