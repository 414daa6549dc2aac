from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman_engines.simulated.blocks import BlocksStored, CacheCleared
from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.presets import presets
from leadsman_engines.simulated.sequences import SimulatedRequest

SMALL = presets()["qwen2.5-0.5b-a10g"]
SYNC = replace(SMALL.settings, async_scheduling=False)


def make(limits=SMALL.settings, seed=1):
    return SimulatedEngine(limits, SMALL.hardware, Random(seed))


def ask(name, prompt=200, output=10, **wishes):
    return SimulatedRequest(id=name, prompt_tokens=prompt, output_tokens=output, **wishes)


def token_times(outputs):
    times = {}
    for output in outputs:
        for name in output.tokens:
            times.setdefault(name, []).extend(output.ends)
    return times


def test_a_request_alone_gets_each_token_once_and_leaves_nothing_behind():
    engine = make()
    engine.submit(ask("a", output=37), now=0.0)

    outputs = engine.advance(60.0)

    assert len(token_times(outputs)["a"]) == 37
    assert [output.finished for output in outputs if output.finished] == [{"a": "stop"}]
    assert engine.next_time() is None
    assert engine.kv_usage == 0


def test_the_cap_ends_a_request_by_length():
    engine = make()
    engine.submit(ask("a", output=37, max_tokens=5), now=0.0)

    outputs = engine.advance(60.0)

    assert len(token_times(outputs)["a"]) == 5
    assert {"a": "length"} in [output.finished for output in outputs]


def test_the_front_end_delays_a_request_by_its_length():
    engine = make()

    engine.submit(ask("a", prompt=20_000), now=1.0)

    assert engine.next_time() == pytest.approx(1.0 + 0.004 + 0.015)


def test_an_arrival_during_a_step_waits_for_its_end():
    engine = make(SYNC)
    engine.submit(ask("long", prompt=8000), now=0.0)
    engine.advance(0.03)
    begun = engine.next_time()

    engine.submit(ask("late", prompt=10), now=0.03)
    engine.advance(begun - 1e-9)

    assert engine.waiting == 0
    engine.advance(begun)
    assert engine.waiting == 1


@pytest.mark.parametrize(("limits", "steps_behind"), [(SYNC, 1), (SMALL.settings, 2)])
def test_an_arrival_runs_a_step_later_when_steps_are_scheduled_ahead(limits, steps_behind):
    engine = make(limits)
    engine.submit(ask("busy", prompt=30, output=400), now=0.0)
    engine.advance(0.2)

    engine.submit(ask("late", prompt=10, output=1), now=0.2)
    arrival = 0.2 + 0.004 + 0.0000075
    outputs = engine.advance(1.0)
    ends = sorted({end for output in outputs for end in output.ends if end >= arrival})

    assert token_times(outputs)["late"] == [ends[steps_behind]]


def test_events_of_the_next_step_leave_a_step_early_when_scheduled_ahead():
    engine = make()
    engine.submit(ask("a", prompt=1024, output=1, max_tokens=1), now=0.0)

    outputs = engine.advance(9.0)

    assert [sum(len(event.hashes) for event in output.events) for output in outputs] == [64, 0]


def test_an_end_that_was_not_foreseen_burns_one_scheduled_token():
    engine = make()
    engine.submit(ask("stops", prompt=32, output=5, max_tokens=50), now=0.0)

    outputs = engine.advance(9.0)

    assert [output.tokens for output in outputs][-1] == ()


def test_a_foreseen_end_leaves_room_for_the_next_request():
    engine = make()
    engine.submit(ask("a", prompt=32, output=5, max_tokens=1), now=0.0)
    engine.submit(ask("b", prompt=32, output=5), now=0.02)

    outputs = engine.advance(9.0)

    assert {name: len(times) for name, times in token_times(outputs).items()} == {"a": 1, "b": 5}


def test_an_abort_names_the_request_no_more_and_frees_its_blocks():
    engine = make()
    engine.submit(ask("a", prompt=4000, output=400), now=0.0)
    seen = engine.advance(0.5)

    aborted = engine.abort("a", now=0.5)
    outputs = engine.advance(9.0)

    assert aborted
    assert "a" in token_times(seen)
    assert "a" not in token_times(outputs)
    assert engine.kv_usage == 0
    engine.scheduler.check()


def test_a_request_aborted_before_the_scheduler_saw_it_never_runs():
    engine = make()
    engine.submit(ask("a"), now=0.0)

    engine.abort("a", now=0.001)

    assert engine.next_time() is None


def test_an_unknown_request_cannot_be_aborted():
    engine = make()

    assert not engine.abort("nobody", now=0.0)


def test_a_restart_loses_requests_and_cache():
    engine = make()
    engine.submit(ask("a", prompt=320, prompt_hashes=tuple(range(20))), now=0.0)
    engine.advance(0.1)

    lost = engine.restart()
    engine.submit(ask("b", prompt=320, prompt_hashes=tuple(range(20))), now=0.2)
    outputs = engine.advance(9.0)

    assert lost == ["a"]
    assert {name: used for output in outputs for name, used in output.first.items()} == {"b": 0}


def test_a_reset_cache_is_reported_with_the_next_step_only():
    engine = make()
    engine.submit(ask("a", prompt=320, prompt_hashes=tuple(range(20))), now=0.0)
    engine.advance(9.0)

    done = engine.reset_cache()
    silent = engine.advance(20.0)
    engine.submit(ask("b", prompt=320, prompt_hashes=tuple(range(20))), now=20.0)
    events = [event for output in engine.advance(30.0) for event in output.events]

    assert done
    assert silent == []
    assert events[0] == CacheCleared()
    assert isinstance(events[1], BlocksStored)


def test_a_slowed_engine_takes_longer_from_the_next_step_on():
    usual, slowed = make(), make()
    slowed.slowdown = 3.0
    for engine in (usual, slowed):
        engine.submit(ask("a", prompt=4000), now=0.0)

    first, second = (engine.advance(60.0)[0].ended_at - 0.007 for engine in (usual, slowed))

    assert second == pytest.approx(3 * first)


@pytest.mark.parametrize(
    "request_", [ask("a", prompt=32768), ask("a", prompt=0), ask("a", output=0)]
)
def test_a_request_that_cannot_be_served_is_refused(request_):
    engine = make()

    with pytest.raises(ValueError, match="token"):
        engine.submit(request_, now=0.0)


def test_an_id_in_use_and_a_time_that_goes_back_are_refused():
    engine = make()
    engine.submit(ask("a"), now=5.0)
    engine.advance(5.001)

    with pytest.raises(ValueError, match="in use"):
        engine.submit(ask("a"), now=6.0)
    with pytest.raises(ValueError, match="goes back"):
        engine.submit(ask("b"), now=1.0)


def play(limits, seed, pauses, *, shortest_stretch=3):
    """Serve a random hour of traffic; return every output, stretches cut into single steps."""
    rng, engine, now, rows = Random(seed), make(limits, seed), 0.0, []
    engine.shortest_stretch = shortest_stretch
    for number in range(18):
        now += rng.expovariate(6.0)
        rows += engine.advance(now)
        family, prompt = rng.randrange(4), rng.randint(1, 400)
        names = tuple(family * 10_000 + block for block in range(prompt // limits.block_size))
        cap = rng.choice([None, None, 1, 40])
        wish = ask(str(number), prompt, rng.randint(1, 150), prompt_hashes=names, max_tokens=cap)
        engine.submit(wish, now)
        if rng.random() < 0.2:
            engine.abort(str(rng.randrange(number + 1)), now)
        for pause in pauses:
            rows += engine.advance(now + pause)
            now += pause
    rows += engine.advance(1e6)
    engine.scheduler.check()
    single = []
    for output in rows:
        single += [(end, output.tokens) for end in output.ends[:-1]]
        single.append((output.ended_at, output.tokens, output.first, output.finished))
        single.append(output.events)
    return [row for row in single if row != []]


def without_detail(rows):
    return [row[:2] if isinstance(row, tuple) and row[2:] == ({}, {}) else row for row in rows]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.booleans(),
    st.booleans(),
    st.lists(st.floats(0.001, 0.3), max_size=2),
)
def test_a_stretch_is_what_its_single_steps_would_have_been(seed, ahead, caching, pauses):
    limits = replace(
        SMALL.settings,
        async_scheduling=ahead,
        enable_prefix_caching=caching,
        num_blocks=150,
        max_model_len=2400,
    )

    stretched = play(limits, seed, pauses)
    literal = play(limits, seed, pauses, shortest_stretch=10**9)

    assert without_detail(stretched) == without_detail(literal)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.floats(0.0, 3.0))
def test_a_copy_goes_on_as_its_original_would_and_leaves_it_alone(seed, ahead, moment):
    limits = replace(
        SMALL.settings, async_scheduling=ahead, num_blocks=100, max_model_len=1600, max_num_seqs=3
    )
    engine, rng = make(limits, seed), Random(seed)
    for number in range(12):
        names = tuple(rng.randrange(2) * 1000 + block for block in range(20))
        wish = ask(str(number), 320, rng.randint(1, 150), prompt_hashes=names)
        engine.submit(wish, engine.next_time() or 0.0)
    engine.advance(moment)
    engine.abort(str(rng.randrange(12)), moment)
    state = engine.rng.getstate()

    twin = engine.copy(Random())
    twin.rng.setstate(state)
    ahead_of_it = twin.advance(1e6)

    engine.scheduler.check()
    twin.scheduler.check()
    assert ahead_of_it == engine.advance(1e6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(0.001, 0.3), min_size=1, max_size=3))
def test_how_often_time_is_moved_changes_nothing(seed, pauses):
    coarse, fine = make(seed=seed), make(seed=seed)
    for engine in (coarse, fine):
        for name in "abcdef":
            engine.submit(ask(name, prompt=300 + ord(name), output=120), now=0.0)

    moments = [sum(pauses[: index + 1]) for index in range(len(pauses))]
    pieces = [output for moment in moments for output in fine.advance(moment)]

    assert token_times(pieces + fine.advance(99.0)) == token_times(coarse.advance(99.0))
