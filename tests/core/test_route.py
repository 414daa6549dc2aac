"""Which worker a request goes to, and how few are asked."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.request import Request
from leadsman.route import MOST_REPLAYS, route, same
from leadsman.units import RequestId

seconds = st.floats(0, 100)
shapes = st.lists(st.tuples(seconds, seconds, st.floats(0, 1)), min_size=1, max_size=40)


def request(**wishes):
    return Request(id=RequestId("r"), model="m", prompt_tokens=1000, arrived_at=0.0, **wishes)


def routed(candidates, *, seed=0, move_cost=0.25, **wishes):
    soundings = Soundings(request(**wishes), candidates, 0.9, now=0.0)
    choice = route(soundings, Budget(session_move_cost=move_cost), Random(seed))
    return candidates.workers[choice.index], choice.because


@given(shapes, st.integers(0, 100))
def test_few_workers_are_never_priced_worse_than_by_asking_all(
    fake_worker, candidates_of, shape, seed
):
    workers = [
        fake_worker(name=f"w{i}", wait=wait, prefill=prefill, loose=loose)
        for i, (wait, prefill, loose) in enumerate(shape[:MOST_REPLAYS])
    ]

    chosen, _ = routed(candidates_of(workers), seed=seed)

    least = min(worker.wait + worker.prefill for worker in workers)
    assert chosen.wait + chosen.prefill - least <= same(chosen.wait + chosen.prefill)


@given(shapes, st.integers(0, 100))
def test_no_decision_costs_more_replays_than_allowed(fake_worker, candidates_of, shape, seed):
    workers = [
        fake_worker(name=f"w{i}", wait=wait, prefill=prefill, loose=loose)
        for i, (wait, prefill, loose) in enumerate(shape)
    ]

    routed(candidates_of(workers), seed=seed)

    assert 1 <= sum(worker.replays for worker in workers) <= MOST_REPLAYS


def test_a_tight_floor_spares_all_other_replays(fake_worker, candidates_of):
    workers = [fake_worker(name=f"w{i}", prefill=1.0 + i) for i in range(256)]

    chosen, because = routed(candidates_of(workers))

    assert (chosen.name, because) == ("w0", "cheapest")
    assert sum(worker.replays for worker in workers) == 1


def test_identical_idle_workers_take_turns_at_random_for_one_replay_each(
    fake_worker, candidates_of
):
    workers = [fake_worker(name=f"w{i}") for i in range(4)]

    chosen = Counter(routed(candidates_of(workers), seed=seed)[0].name for seed in range(400))

    assert sum(worker.replays for worker in workers) == 400
    assert min(chosen[worker.name] for worker in workers) > 60


def test_a_worker_that_looks_cheap_but_is_not_is_passed_over(fake_worker, candidates_of):
    tempting = fake_worker(name="tempting", prefill=9.0, loose=0.95)
    honest = fake_worker(name="honest", prefill=2.0)

    chosen, _ = routed(candidates_of([tempting, honest]))

    assert chosen is honest


def test_a_session_stays_at_home_while_moving_costs_more(fake_worker, candidates_of):
    home = fake_worker(name="home", wait=0.3, prefill=1.0)
    workers = [fake_worker(name="other", prefill=1.1), home]

    chosen, because = routed(candidates_of(workers, home="home"), session="s", move_cost=0.25)

    assert (chosen, because) == (home, "home")
    assert workers[0].replays == 0


def test_a_session_leaves_home_for_a_worker_cheaper_by_more(fake_worker, candidates_of):
    home = fake_worker(name="home", wait=8.0, prefill=0.1)
    other = fake_worker(name="other", prefill=5.0)

    chosen, because = routed(candidates_of([home, other], home="home"), session="s")

    assert (chosen, because) == (other, "cheapest")


def test_a_home_that_is_gone_is_no_home(fake_worker, candidates_of):
    other = fake_worker(name="other")

    chosen, because = routed(candidates_of([other], home="gone"), session="s")

    assert (chosen, because) == (other, "cheapest")


def test_a_request_that_prefers_its_cache_waits_for_it(fake_worker, candidates_of):
    warm = fake_worker(name="warm", wait=20.0, prefill=0.1, cached=900)
    warm_and_free = fake_worker(name="warm too", wait=10.0, prefill=0.1, cached=900)
    cold = fake_worker(name="cold", prefill=2.0, cached=100)

    chosen, because = routed(candidates_of([warm, cold, warm_and_free]), prefers_cache=True)

    assert (chosen, because) == (warm_and_free, "cache")


def test_preferring_a_cache_that_nobody_has_changes_nothing(fake_worker, candidates_of):
    slow, fast = fake_worker(name="slow", prefill=3.0), fake_worker(name="fast", prefill=2.0)

    chosen, because = routed(candidates_of([slow, fast]), prefers_cache=True)

    assert (chosen, because) == (fast, "cheapest")


def test_an_unmeasured_worker_is_ranked_like_any_other(fake_worker, candidates_of):
    unmeasured = fake_worker(name="new", prefill=1.0, curve="unmeasured")
    measured = fake_worker(name="old", wait=3.0, prefill=0.5)

    chosen, _ = routed(candidates_of([measured, unmeasured]))

    assert chosen is unmeasured


@pytest.mark.parametrize(
    ("filter_", "left"),
    [
        (lambda candidates: candidates.ready(), ["a", "c"]),
        (lambda candidates: candidates.at(np.array([1, 2])), ["b", "c"]),
    ],
    ids=["ready", "subset"],
)
def test_a_filter_keeps_workers_and_what_is_known_of_them_together(
    fake_worker, candidates_of, filter_, left
):
    names = {"a": 1.0, "b": 2.0, "c": 3.0}
    workers = [
        fake_worker(name=name, prefill=prefill, cached=int(prefill), ready=name != "b")
        for name, prefill in names.items()
    ]

    kept = filter_(candidates_of(workers))

    assert [worker.name for worker in kept.workers] == left
    assert kept.own_floors.tolist() == [names[name] for name in left]
    assert kept.cached.tolist() == [int(names[name]) for name in left]


def test_fallbacks_are_the_next_best_first_by_price_then_by_floor(fake_worker, candidates_of):
    workers = [fake_worker(name=f"w{i}", prefill=1.0 + i) for i in range(6)]
    soundings = Soundings(request(), candidates_of(workers), 0.9, now=0.0)
    soundings.sound(0)
    soundings.sound(2)

    fallbacks = soundings.fallbacks(0)

    assert fallbacks == ("w2:8000", "w1:8000", "w3:8000")
