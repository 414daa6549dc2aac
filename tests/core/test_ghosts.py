import numpy as np
import pytest
from leadsman.records import KvEvents, Stored
from leadsman.residuals import unit

from .watched import WORKER, Watched, conversations, settings_of

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


def watched(is_async=False, *, slots=4):
    return Watched(settings=settings_of(async_scheduling=is_async, max_num_seqs=slots))


def haunted(is_async, *, prompt, output=200):
    """An engine that has shown that it names sessions, and then serves a stranger."""
    engine = watched(is_async)
    engine.submit("ours", 200, 3)
    engine.run_out()
    engine.submit("stranger", prompt, output, seen=False)
    return engine


def within(is_async, *, is_blind=False):
    """Share of predictions that are right; blind: strangers pass for one that has ended."""
    asked = []
    for seed in (1, 2, 3):
        engine = watched(is_async)
        if is_blind:
            engine.submit("ours", 200, 3)
            engine.run_out()
            engine.alias = "ours"
        asked += conversations(engine, requests=80, rate=8.0, seed=seed, unseen=0.1)
    return sum(one.error <= unit(one.ttft) for one in asked) / len(asked)


@BOTH
def test_to_see_strangers_makes_predictions_better(is_async):
    seeing, blind = within(is_async), within(is_async, is_blind=True)

    assert seeing > blind + 0.03


@BOTH
def test_a_stranger_is_one_ghost_as_far_as_it_is(is_async):
    engine = haunted(is_async, prompt=3000)

    engine.run(engine.now + 0.6)

    (ghost,) = engine.mirror.ghosts
    assert engine.believed_state()[ghost.seq.id] == pytest.approx(
        engine.truth(engine.ahead)["stranger"], abs=2 * engine.settings.block_size
    )
    assert ghost.seq.id in engine.mirror.replay.decoding


def test_a_ghost_takes_the_slot_that_somebody_waits_for():
    engine = watched(slots=1)
    engine.submit("ours", 200, 3)
    engine.run_out()
    alone, _ = engine.ask("new", 100, 3)
    engine.submit("stranger", 3000, 20, seen=False)
    engine.run(engine.now + 0.06)

    behind, _ = engine.ask("new", 100, 3)

    assert behind > 2 * alone


@BOTH
def test_two_reports_that_nobody_runs_lay_a_ghost(is_async):
    engine = haunted(is_async, prompt=1000, output=3)
    engine.run(engine.now + 1.0)

    engine.tell_load()
    engine.tell_load()

    assert not engine.mirror.flights
    assert not engine.mirror.replay.has_work
    assert not engine.mirror.pool.pins


def test_ours_that_runs_in_a_full_engine_lays_a_ghost():
    engine = watched(slots=1)
    engine.submit("ours", 200, 3)
    engine.run_out()
    engine.submit("stranger", 1000, 3, seen=False)
    engine.submit("next", 1000, 50)

    engine.run(engine.now + 0.5)

    assert [str(request) for request in engine.mirror.flights] == ["next"]


def test_strangers_that_wait_are_told_by_the_counts():
    engine = haunted(is_async=False, prompt=1000)
    for number in range(5):
        engine.submit(f"stranger-{number}", 1000, 200, seen=False)
    engine.run(engine.now + 0.5)

    engine.tell_load()
    engine.tell_load()

    assert len(engine.mirror.ghosts) == 6, engine.mirror.ghosts
    assert len(engine.mirror.replay.waiting) == 2


def test_a_stranger_whose_grant_comes_late_is_none():
    engine = haunted(is_async=False, prompt=1000)
    engine.run(engine.now + 0.2)

    engine.mirror.grant(engine.granted("stranger", 1000), 200)

    assert [str(request) for request in engine.mirror.flights] == ["stranger"]


def test_what_an_ended_request_stored_last_is_no_strangers():
    engine = watched()
    engine.submit("ours", 200, 3)
    engine.run_out()

    engine.mirror.saw_events(events("ours"))

    assert not engine.mirror.ghosts


def test_an_engine_that_names_no_sessions_has_no_ghosts():
    engine = watched()

    engine.mirror.saw_events(events(None))

    assert not engine.mirror.ghosts


def test_a_restart_ends_all_strangers():
    engine = haunted(is_async=False, prompt=3000)
    engine.run(engine.now + 0.2)
    assert engine.mirror.ghosts

    engine.mirror.reset()

    assert not engine.mirror.flights


def events(session):
    stored = Stored(keys=np.arange(1, 4, dtype=np.uint64), session=session)
    return KvEvents(worker=WORKER, sequence=99, engine_time=9.0, received_at=9.0, events=(stored,))
