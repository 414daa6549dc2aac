"""A wrong lesson is corrected, and never costs the clients more than was put aside for that."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.curve import fingerprint
from leadsman.engine import EngineSettings
from leadsman.fleet import Fleet
from leadsman.looks import MOST, REST, SHARE, Looks
from leadsman.prediction import Admitted
from leadsman.records import Ended, Learned, Outcome, TokensSeen, WorkerSeen
from leadsman.request import Request
from leadsman.route import route
from leadsman.units import RequestId, WorkerId

SETTINGS = EngineSettings(
    model="m",
    version="0.33.0",
    max_num_batched_tokens=2048,
    max_num_seqs=8,
    max_model_len=131_072,
    block_size=16,
    num_blocks=50_000,
)
TRUE = (0.02, 3e-5)
"""Seconds a request and a token that every engine really takes."""


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=50))
def test_looks_never_cost_more_than_their_share_of_the_time(steps):
    looks, now, spent = Looks(), 0.0, 0.0

    for passed, share in steps:
        now += passed
        price = share * looks.affordable(now)
        looks.spend(price, now)
        spent += price

    assert spent <= MOST + SHARE * now + 1e-6


def asked(candidates, *, now=100.0, **wishes):
    request = Request(id=RequestId("r"), model="m", prompt_tokens=1000, arrived_at=0.0, **wishes)
    choice = route(Soundings(request, candidates, 0.9, now=now), Budget(), Random(0))
    return candidates.workers[choice.index].name, choice.because


def test_a_worker_that_idled_while_passed_over_is_asked(fake_worker, candidates_of):
    quick = fake_worker(name="quick", prefill=0.1)
    slow = fake_worker(name="slow", prefill=0.3, idle_since=100.0 - REST)

    candidates = candidates_of([quick, slow])

    assert asked(candidates) == ("slow", "look")
    assert candidates.looks.affordable(100.0) == pytest.approx(MOST - 0.2)


def test_of_several_the_one_that_idled_longest_is_asked(fake_worker, candidates_of):
    quick = fake_worker(name="quick", prefill=0.1)
    others = [
        fake_worker(name=name, prefill=0.3, idle_since=since)
        for name, since in [("late", 80.0), ("first", 10.0), ("later", 90.0)]
    ]

    assert asked(candidates_of([quick, *others])) == ("first", "look")


@pytest.mark.parametrize(
    ("worker", "wishes"),
    [
        pytest.param({"prefill": 0.3, "idle_since": 99.0}, {}, id="asked a moment ago"),
        pytest.param({"prefill": 0.3, "idle_since": np.inf}, {}, id="works"),
        pytest.param({"prefill": 1.2, "idle_since": 0.0}, {}, id="too dear"),
        pytest.param({"prefill": 1.2, "loose": 0.5, "idle_since": 0.0}, {}, id="dearer than seems"),
        pytest.param({"prefill": 0.3, "idle_since": 0.0}, {"prefers_cache": True}, id="has a wish"),
    ],
)
def test_nobody_else_is_asked(fake_worker, candidates_of, worker, wishes):
    quick = fake_worker(name="quick", prefill=0.1, cached=10)

    name, _ = asked(candidates_of([quick, fake_worker(name="slow", **worker)]), **wishes)

    assert name == "quick"


def test_a_long_prompt_is_not_sent_to_look_however_little_it_is_to_cost(fake_worker, candidates_of):
    quick = fake_worker(name="quick", prefill=5.0)
    slow = fake_worker(name="slow", prefill=5.2, idle_since=0.0)

    assert asked(candidates_of([quick, slow])) == ("quick", "cheapest")


def test_a_session_is_not_moved_to_look(fake_worker, candidates_of):
    home = fake_worker(name="home", prefill=0.1)
    slow = fake_worker(name="slow", prefill=0.3, idle_since=0.0)

    assert asked(candidates_of([home, slow], home="home"), session="s") == ("home", "home")


def test_what_is_spent_is_spent(fake_worker, candidates_of):
    quick = fake_worker(name="quick", prefill=0.1)
    slow = fake_worker(name="slow", prefill=0.8, idle_since=0.0)
    candidates = candidates_of([quick, slow])

    names = [asked(candidates, now=now)[0] for now in (100.0, 100.1, 130.0, 150.0)]

    assert names == ["slow", "quick", "quick", "slow"]


@pytest.mark.parametrize("factor", [3.0, 10.0])
def test_a_worker_that_was_learned_too_slow_gets_its_part_again(factor):
    fleet, now, rng = Fleet(), 0.0, Random(3)
    for name in ("a", "b", "wrong"):
        worker = WorkerId(name)
        times = factor if name == "wrong" else 1.0
        samples = tuple((n, times * (TRUE[0] + TRUE[1] * n)) for n in range(200, 4000, 300))
        fleet.apply(WorkerSeen(worker=worker, endpoint=worker, settings=SETTINGS), now)
        lesson = Learned(worker=worker, fingerprint=fingerprint(SETTINGS), samples=samples)
        fleet.apply(lesson, now)

    served = []
    for number in range(1500):
        now += 1.0
        served.append(_serve(fleet, f"r{number}", rng.randrange(200, 4000), now))

    late = Counter(served[1000:])
    assert set(late) == {"a", "b", "wrong"}, late
    assert late["wrong"] > len(served[1000:]) / 6


def _serve(fleet, name, prompt, now):
    """Serve a request alone, as quickly as any engine really does; gives who served it."""
    request = Request(id=RequestId(name), model="m", prompt_tokens=prompt, arrived_at=now)
    decision = fleet.decide(request, Budget(), now, Random(name))
    assert isinstance(decision, Admitted)
    first = now + TRUE[0] + TRUE[1] * prompt
    told = {"worker": decision.worker, "request": request.id}
    fleet.apply(TokensSeen(at=first, tokens=1, **told), first)
    over = Ended(
        at=first + 0.01, outcome=Outcome.FINISHED, completion_tokens=1, cached_tokens=0, **told
    )
    fleet.apply(over, first + 0.01)
    return decision.worker
