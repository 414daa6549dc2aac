from random import Random
from statistics import median

import numpy as np
import pytest
from leadsman.holding import Flight
from leadsman.mirror import Mirror
from leadsman.records import Ended, Granted, KvEvents, Outcome, Stored, TokensSeen
from leadsman.steptime import StepFeatures, StepWeights
from leadsman.units import RequestId

from .plain import names_of, plain
from .served import PROMPT, Engine, W, keys
from .watched import TRUE, WORKER, Watched, conversations, settings_of

BUSY_SECOND = StepFeatures(20, 4000, 8e6, 60, 9e4, 0)
GUESS = StepWeights(0.0, 1e-4, 2e-10, 0.0, 0.0, 0.05)
BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])
RATES = pytest.mark.parametrize("rate", [1.5, 6.0])


def watched(is_async=False, *, slots=4, blocks=2000, **options):
    settings = settings_of(async_scheduling=is_async, max_num_seqs=slots, num_blocks=blocks)
    return Watched(settings=settings, **options)


def worst(asked):
    return max(one.error for one in asked)


def misjudged(asked):
    return [one.name for one in asked if one.predicted[1] != one.cached]


def learned(engine):
    """How long the learned weights say that a usual busy second lasts."""
    return engine.learner.weights.seconds(BUSY_SECOND) / TRUE.seconds(BUSY_SECOND)


def jitter(most, seed=5):
    rng = Random(seed)
    return lambda: most * rng.random()


@BOTH
@SEEDS
@RATES
def test_what_was_predicted_is_what_comes_where_lengths_are_known(is_async, seed, rate):
    engine = watched(is_async)

    asked = conversations(engine, seed=seed, rate=rate)

    assert worst(asked) < 0.06
    assert median(one.error for one in asked) < 0.005
    assert not misjudged(asked)


@BOTH
@SEEDS
def test_predictions_hold_while_prefixes_are_pushed_out(is_async, seed):
    engine = watched(is_async, blocks=260)

    asked = conversations(engine, seed=seed, rate=5.0)

    assert worst(asked) < 0.1
    assert len(misjudged(asked)) <= 1


@BOTH
@SEEDS
@RATES
def test_the_mirror_is_where_the_engine_is(is_async, seed, rate):
    engine, gaps = watched(is_async), []

    def compare(engine):
        believed = engine.believed_state()
        for name, computed in engine.truth(engine.ahead).items():
            if engine.generated.get(name) and name in believed:
                gaps.append(abs(computed - believed[name]))

    engine.after_each = compare
    conversations(engine, seed=seed, rate=rate)

    assert np.mean(np.array(gaps) <= 2) > 0.9


@BOTH
@SEEDS
def test_no_count_runs_away_on_a_crowded_engine_of_unknown_speed(is_async, seed):
    engine = watched(
        is_async, slots=32, blocks=400, believed=GUESS, trust=0.003, chunk_late=jitter(0.002)
    )
    rng, gaps = Random(seed), []

    def compare(engine):
        believed = engine.believed_state()
        for name, computed in engine.truth(engine.ahead).items():
            if engine.generated.get(name) and name in believed and engine.now > 20:
                gaps.append(believed[name] - computed)

    engine.after_each = compare
    for number in range(300):
        engine.run(engine.now + rng.expovariate(4.0))
        engine.submit(f"r{number}", rng.randint(100, 2000), rng.randint(20, 400), expected=100)
    engine.run_out()

    assert engine.engine.scheduler.preemptions > 0
    assert np.mean(np.abs(gaps) <= 2) > 0.6
    assert -3 < np.mean(gaps) < 3


@BOTH
def test_nothing_is_held_once_everything_has_ended(is_async):
    engine = watched(is_async)

    conversations(engine)

    mirror = engine.mirror
    assert not mirror.flights
    assert not mirror.pool.pins
    assert not mirror.replay.has_work
    assert not mirror.replay.waiting
    assert mirror.replay.free == engine.settings.num_blocks
    mirror.pool.check()


def decoding(*names, is_async=False, prompt=100, **options):
    """An engine on which these decode, with nothing on its way."""
    engine = watched(is_async, **options)
    for name in names:
        engine.submit(name, prompt, 10_000)
    engine.run(0.5)
    assert set(engine.believed_state()) == set(names)
    return engine


def test_only_the_first_sight_of_a_step_sets_the_clock():
    engine = decoding("a", "b")
    mirror, at = engine.mirror, engine.now + 0.0071
    tokens = engine.generated["a"] + 1, engine.generated["b"] + 1
    mirror.saw_tokens(RequestId("a"), tokens[0], at)
    clock, tick = mirror.replay.clock, mirror.replay.tick

    mirror.saw_tokens(RequestId("b"), tokens[1], at + 0.0015)

    assert (mirror.replay.clock, mirror.replay.tick) == (clock, tick)
    assert clock == at


@BOTH
def test_an_event_older_than_the_last_step_moves_nothing_back(is_async):
    engine = decoding("a", is_async=is_async)
    engine.submit("b", 3000, 5)
    engine.run(engine.now + 0.25)
    mirror = engine.mirror
    before = engine.believed_state(), mirror.replay.clock, mirror.replay.tick
    keys = mirror.flights[RequestId("b")].seq.keys[:2]

    mirror.saw_events(
        KvEvents(
            worker=WORKER,
            sequence=999,
            engine_time=engine.now - 0.2,
            received_at=engine.now + 0.3,
            events=(Stored(keys=np.array(keys, dtype=np.uint64), session="b"),),
        )
    )

    assert (engine.believed_state(), mirror.replay.clock, mirror.replay.tick) == before


def test_a_prompt_that_is_told_of_with_an_answer_runs_only_from_there_on():
    engine = decoding("a", "b", is_async=True)
    mirror, at = engine.mirror, engine.now + 0.03
    mirror.replay.place(mirror.flights[RequestId("b")].seq, 126)
    mirror.flights[RequestId("b")].blocks_seen = 1
    mirror.grant(engine.granted("new", 640, keys=list(range(1, 11))), 100)
    new = Stored(keys=np.arange(1, 9, dtype=np.uint64), session="new")
    answer = Stored(keys=np.array([99], dtype=np.uint64), session="b")
    batch = KvEvents(
        worker=WORKER, sequence=999, engine_time=at, received_at=at, events=(answer, new)
    )

    mirror.saw_events(batch)

    assert mirror.flights[RequestId("new")].seq.computed >= 8 * 64
    assert mirror.replay.clock > at + 0.02


@BOTH
@pytest.mark.parametrize("late", [0.001, 0.002])
def test_an_end_that_is_seen_a_moment_later_still_frees_its_slot(is_async, late):
    engine = watched(is_async, slots=1, chunk_late=late)
    for number in range(5):
        engine.submit(f"r{number}", 700, 12, max_tokens=12)

    predicted = engine.ask("last", 700, 5)[0]
    engine.submit("last", 700, 5)
    engine.run_out()

    assert predicted == pytest.approx(engine.first_at["last"], abs=0.008)


@BOTH
def test_a_prefill_that_takes_longer_than_believed_is_waited_for(is_async):
    engine = watched(is_async)
    engine.submit("a", 6000, 5)
    engine.run(0.2)
    engine.engine.slowdown = 5.0
    engine.run(0.45)

    engine.mirror.catch_up(engine.now)

    behind = engine.truth(engine.ahead)["a"] - engine.believed_state()["a"]
    assert abs(behind) <= engine.settings.max_num_batched_tokens


def test_a_first_token_that_never_came_does_not_end_a_prefill():
    engine = watched(believed=TRUE.scaled(0.2))
    engine.submit("a", 6000, 5)

    engine.run(0.4)

    assert engine.generated.get("a") is None
    assert engine.believed_state()["a"] < 6000


@BOTH
def test_a_prompt_that_was_believed_to_be_through_is_taken_back_by_its_blocks(is_async):
    engine = decoding("a", is_async=is_async)
    engine.submit("long", 8000, 100)
    engine.run(engine.now + 0.15)
    seq = engine.mirror.flights[RequestId("long")].seq
    assert 0 < engine.truth(engine.ahead)["long"] < 3000

    engine.mirror.replay.place(seq, 8010)
    engine.run(engine.now + 0.2)

    gap = engine.believed_state()["long"] - engine.truth(engine.ahead)["long"]
    assert abs(gap) <= engine.settings.max_num_batched_tokens
    assert learned(engine) == pytest.approx(1, abs=0.1)


@BOTH
def test_the_first_block_told_of_a_prompt_that_was_all_cached_is_its_answers(is_async):
    engine, prefix = watched(is_async), range(1, 11)
    engine.submit("a", 670, 400, keys=prefix)
    engine.run(0.5)
    engine.submit("b", 670, 400, keys=prefix)
    engine.run(1.5)

    flight = engine.mirror.flights[RequestId("b")]

    assert flight.seq.cached == 640
    assert flight.blocks_seen == (670 + engine.generated["b"]) // 64 > len(prefix)


def test_idle_time_teaches_nothing():
    engine = watched(trust=0.003)

    for number in range(30):
        engine.submit(f"r{number}", 900, 90)
        engine.run(engine.now + 20.0)

    assert engine.learner.windows > 5
    assert learned(engine) == pytest.approx(1.0, rel=0.06)


@BOTH
@pytest.mark.parametrize("seed", [1, 2])
def test_a_guess_becomes_right_by_what_is_seen_of_a_busy_engine(is_async, seed):
    engine = watched(is_async, believed=GUESS, trust=0.003)

    asked = conversations(engine, requests=120, rate=4.0, seed=seed)

    assert worst(asked[60:]) < 0.15
    assert learned(engine) == pytest.approx(1.0, rel=0.1)


@BOTH
def test_the_weights_follow_an_engine_that_slows_down(is_async):
    engine = watched(is_async, trust=0.003)
    conversations(engine, seed=1, rate=4.0)
    engine.engine.slowdown = 1.5

    asked = later_conversations(engine, requests=120)

    assert learned(engine) == pytest.approx(1.5, rel=0.15)
    assert median(one.error for one in asked[60:]) < 0.05


def later_conversations(engine, **options):
    """Conversations after others, whose names come again."""
    for known in (engine.generated, engine.first_at, engine.cached):
        known.clear()
    return conversations(engine, seed=9, rate=4.0, **options)


@BOTH
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_foreign_work_does_not_destroy_the_weights(is_async, seed):
    engine = watched(is_async, trust=20.0)

    conversations(engine, requests=60, rate=3.0, seed=seed, unseen=0.15)

    assert learned(engine) == pytest.approx(1.0, rel=0.35)
    assert not engine.mirror.flights


@BOTH
def test_a_restart_loses_the_work_and_the_cache_but_not_the_weights(is_async):
    engine = watched(is_async, trust=0.003)
    conversations(engine, rate=4.0)
    before = engine.learner.weights
    for number in range(6):
        engine.submit(f"lost{number}", 2000, 50)
    engine.run(engine.now + 0.4)

    lost = engine.engine.restart()
    engine.mirror.reset()
    for name in lost:
        engine.mirror.saw_end(
            Ended(
                worker=WORKER,
                request=RequestId(name),
                at=engine.now,
                outcome=Outcome.ENGINE_GONE,
            )
        )
    engine.run(engine.now + 0.1)

    assert engine.learner.weights.seconds(BUSY_SECOND) == pytest.approx(
        before.seconds(BUSY_SECOND), rel=0.02
    )
    assert worst(later_conversations(engine, requests=40)) < 0.1
    assert not engine.mirror.flights


@BOTH
def test_tokens_of_who_was_there_before_a_restart_tell_where_it_is(is_async):
    engine = watched(is_async)
    engine.submit("ours", 1000, 200)
    engine.run(engine.now + 0.5)
    engine.mirror.reset()
    tokens = engine.generated["ours"]

    for _ in range(2):
        engine.mirror.saw_tokens("ours", tokens, engine.now)

    assert engine.believed_state() == {"ours": 1000 + tokens - 1}


@BOTH
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_seen_seldom_does_not_destroy_measured_weights(is_async, seed):
    engine = watched(is_async, has_witnesses=False)

    conversations(engine, requests=80, rate=4.0, seed=seed)

    assert learned(engine) == pytest.approx(1.0, rel=0.3)


@BOTH
@pytest.mark.parametrize(("late", "error", "misses"), [(0.05, 0.15, 0), (0.5, 0.2, 5)])
def test_predictions_outlast_late_events(is_async, late, error, misses):
    engine = watched(is_async, events_late=late)

    asked = conversations(engine, rate=4.0)

    assert worst(asked) < error
    assert len(misjudged(asked)) <= misses


@BOTH
@SEEDS
def test_predictions_outlast_chunks_that_come_20_ms_early_or_late(is_async, seed):
    engine = watched(is_async, chunk_late=jitter(0.02))

    asked = conversations(engine, rate=4.0, seed=seed)

    assert worst(asked) < 0.1
    assert learned(engine) == pytest.approx(1.0, rel=0.05)


@BOTH
def test_a_picker_that_restarts_is_right_again_once_what_it_does_not_know_has_ended(is_async):
    engine = watched(is_async)
    for number in range(8):
        engine.submit(f"old{number}", 1500, 60)
    engine.run(0.8)
    engine.mirror = Mirror(engine.settings, engine.learner)

    asked = conversations(engine, requests=80, rate=3.0, seed=4)

    assert worst(asked[40:]) < 0.1
    assert not engine.mirror.flights


@BOTH
def test_tokens_are_counted_not_chunks(is_async):
    engine = watched(is_async, tokens_a_chunk=8)

    asked = conversations(engine, rate=4.0)

    assert worst(asked) < 0.12
    assert learned(engine) == pytest.approx(1.0, rel=0.05)


def test_a_burst_moves_a_stream_by_all_its_tokens():
    engine = decoding("a")
    mirror, tokens = engine.mirror, engine.generated["a"]
    seq = mirror.flights[RequestId("a")].seq

    mirror.saw_tokens(RequestId("a"), tokens + 8, engine.now + 0.055)

    assert mirror.replay.generated(seq) == tokens + 8


def test_an_answer_block_behind_a_cached_prefix_is_as_deep_as_both():
    engine = watched(is_async=True)
    mirror = engine.mirror
    keys = np.arange(1, 11, dtype=np.uint64)
    granted = engine.granted("a", 10 * 64, keys=keys.tolist())
    flight = mirror.grant(granted, 100)

    told = Stored(keys=np.array([10, 99], dtype=np.uint64), session="a")
    mirror.saw_events(
        KvEvents(worker=WORKER, sequence=1, engine_time=9.0, received_at=9.0, events=(told,))
    )

    assert flight.seq.cached == 9 * 64
    assert flight.blocks_seen == 11
    assert mirror.replay.generated(flight.seq) == 65


def test_steps_that_cost_nothing_are_not_committed_without_end():
    engine = watched(has_witnesses=False, believed=GUESS)
    engine.submit("a", 100, 10_000)
    engine.run(1.0)

    engine.mirror.catch_up(5.0)

    assert engine.believed_state()["a"] <= 100 + 5_000


def test_no_answer_outgrows_the_context():
    engine = watched()
    seq = engine.mirror.sequence(engine.granted("a", 15_990), expected=300)

    asked = engine.ask("a", 15_990, 300)

    assert seq.limit == seq.expected == 10
    assert asked[0] > 0


def test_two_streams_are_witnesses_and_another_takes_over_when_one_leaves():
    engine = decoding("a", "b", "c")
    first = witnesses(engine)

    leave(engine, "a")
    engine.submit("d", 100, 60)
    engine.run(engine.now + 0.3)

    assert first == {"a", "b"}
    assert witnesses(engine) == {"b", "d"}


def witnesses(engine):
    return {name for name, flight in engine.mirror.flights.items() if flight.is_witness}


def leave(engine, name):
    engine.engine.abort(name, engine.now)
    gone = Ended(worker=WORKER, request=RequestId(name), at=engine.now, outcome=Outcome.CLIENT_GONE)
    engine.mirror.saw_end(gone)


def test_what_is_unknown_is_ignored():
    engine = decoding("a")
    before = engine.believed_state()

    engine.mirror.saw_tokens(RequestId("nobody"), 3, engine.now)
    ended = engine.mirror.saw_end(
        Ended(worker=WORKER, request=RequestId("nobody"), at=engine.now, outcome=Outcome.FINISHED)
    )

    assert ended is None
    assert engine.believed_state() == before


@BOTH
def test_a_client_that_leaves_gives_back_its_slot_and_blocks(is_async):
    engine = decoding("a", "b", "c", "d", is_async=is_async)
    free = engine.mirror.free_blocks()

    leave(engine, "b")
    predicted = engine.ask("e", 100, 5)[0]
    engine.submit("e", 100, 5)
    started = engine.now
    engine.run(engine.now + 1.0)

    assert engine.mirror.free_blocks() > free - 10
    assert predicted == pytest.approx(engine.first_at["e"] - started, abs=0.02)


def test_a_question_moves_nothing_in_the_mirror():
    engine = decoding("a", "b")
    engine.submit("c", 3000, 20)
    engine.run(engine.now + 0.1)
    before = snapshot(engine.mirror)

    for number in range(5):
        engine.ask(f"asked{number}", 2000, 30)

    assert snapshot(engine.mirror) == before


def snapshot(mirror):
    replay = mirror.replay
    seqs = [*replay.prefilling, *replay.decoding.values(), *replay.waiting]
    return (
        replay.clock,
        replay.tick,
        replay.free,
        replay.context,
        dict(replay.phases),
        [
            tuple(getattr(seq, name) for name in ("id", "computed", "generated", "blocks", "due"))
            for seq in seqs
        ],
        dict(mirror.pool.pins),
        dict(mirror.pool.free),
        [
            [plain(getattr(flight, name)) for name in names_of(Flight) if name != "seq"]
            for flight in mirror.flights.values()
        ],
    )


@pytest.mark.parametrize("drafts", [1, 3, 7])
def test_an_engine_whose_drafts_are_right_is_followed_by_what_comes(drafts):
    engine, requests = Engine(num_speculative_tokens=drafts), 4
    for number in range(requests):
        engine.tell(
            Granted(
                worker=W,
                request=RequestId(str(number)),
                at=2.0 + number / 10,
                prompt_tokens=PROMPT,
                keys=keys(50 + number),
                max_tokens=None,
                priority=0,
                predicted_ttft=None,
            )
        )

    for step in range(60):
        at, tokens = 3.0 + 0.03 * step, 1 + step * (1 + drafts)
        for number in range(requests):
            seen = TokensSeen(worker=W, request=RequestId(str(number)), at=at, tokens=tokens)
            engine.fleet.apply(seen, at)
        engine.state.catch_up(at)

    followed = [seq.generated for seq in engine.state.mirror.replay.decoding.values()]
    assert len(followed) == requests
    assert all(abs(generated - tokens) <= 2 * (1 + drafts) for generated in followed)
