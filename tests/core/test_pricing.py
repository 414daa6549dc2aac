from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from leadsman.engine import EngineSettings
from leadsman.mirror import Mirror
from leadsman.pricing import forecast, stepwise
from leadsman.records import Granted
from leadsman.steptime import StepFeatures, StepLearner, StepWeights
from leadsman.units import RequestId, WorkerId

from .naive_scheduler import NaiveRequest, NaiveScheduler
from .plain import plain

SIZE = 4
WEIGHTS = StepWeights(0.01, 1e-3, 1e-5, 1e-3, 1e-5, 0.002)


def engine(**settings):
    usual = {
        "model": "m",
        "version": "0.33.0",
        "max_num_batched_tokens": 16,
        "max_num_seqs": 3,
        "max_model_len": 64,
        "block_size": SIZE,
        "num_blocks": 200,
        "async_scheduling": False,
    }
    return EngineSettings(**usual | settings)


@dataclass(frozen=True)
class Work:
    """One request: `prompt` tokens of a family, of which each has the same at each place."""

    family: str
    prompt: int
    output: int

    @property
    def tokens(self):
        return tuple((self.family, place) for place in range(self.prompt))


def key_of(tokens):
    return int.from_bytes(blake2b(repr(tokens).encode(), digest_size=8).digest(), "big")


def keys_of(tokens):
    ends = range(SIZE, len(tokens) + 1, SIZE)
    return np.array([key_of(tokens[:end]) for end in ends], dtype=np.uint64)


def granted(name, work, at=0.0):
    return Granted(
        worker=WorkerId("w"),
        request=RequestId(name),
        at=at,
        prompt_tokens=work.prompt,
        keys=keys_of(work.tokens),
        max_tokens=work.output,
        priority=0,
        predicted_ttft=None,
    )


class Idle:
    """An idle engine that served some requests before, as a naive scheduler and as a mirror."""

    def __init__(self, settings, served=()):
        self.naive = NaiveScheduler(settings)
        for number, work in enumerate(served):
            self.naive.add(
                NaiveRequest(id=f"earlier-{number}", prompt=work.tokens, output=work.output)
            )
            while self.naive.running or self.naive.waiting:
                self.naive.step(0.0)
            self.naive.drain()
        self.mirror = Mirror(settings, StepLearner(WEIGHTS))
        cached = [key_of(block.key) for block in self.naive.queue if block.key is not None]
        self.mirror.pool.keep(cached)
        self._requests = []

    def queue(self, name, work):
        self._requests.append((name, work))
        self.mirror.grant(granted(name, work), work.output)

    def predict(self, work):
        target = self.mirror.sequence(granted("target", work), work.output)
        return forecast(self.mirror, target, WEIGHTS, 0.0)

    def happens(self, work):
        """Run the naive engine until the target's first token: when admitted, when said, cached."""
        requests = []
        for number, (name, queued) in enumerate([*self._requests, ("target", work)]):
            visible = self.mirror.sequence(granted(name, queued), 1).visible_at
            requests.append(
                NaiveRequest(
                    id=name,
                    prompt=queued.tokens,
                    output=queued.output,
                    visible_at=visible,
                    arrival=number,
                )
            )
        target, admitted_at = requests[-1], None
        clock = requests[0].visible_at
        before = clock
        while True:
            visible = before if self.naive.settings.async_scheduling else clock
            while requests and requests[0].visible_at <= visible:
                self.naive.add(requests.pop(0))
            step = self.naive.step(visible)
            assume(not step.preempted)
            if (
                not step.tokens
                and requests
                and not self.naive.running
                and not self.naive.in_flight[:-1]
            ):
                clock = before = max(clock, requests[0].visible_at)
                continue
            if "target" in step.admitted and admitted_at is None:
                admitted_at = clock
            before, clock = clock, clock + seconds(step)
            if "target" in step.finals:
                return admitted_at, clock, target.cached


def seconds(step):
    prefills, finals = dict(step.prefills), len(step.finals)
    chunks = [(r.computed, n) for r, n in step.tokens.items() if r.id in prefills]
    contexts = [r.computed for r in step.tokens if r.id not in prefills]
    attention = sum(n * (end - n / 2) for end, n in chunks)
    busy = 1 if step.tokens else 0
    prefill = sum(n for _, n in chunks)
    return WEIGHTS.seconds(
        StepFeatures(busy, prefill, attention, len(contexts), sum(contexts), finals)
    )


def works(families):
    return st.builds(Work, st.sampled_from(families), st.integers(1, 50), st.integers(1, 12))


def distinct(prefix):
    """Requests of which no two share a token."""
    sizes = st.tuples(st.integers(1, 50), st.integers(1, 12))
    return st.lists(sizes, max_size=6).map(
        lambda drawn: [Work(f"{prefix}{i}", *size) for i, size in enumerate(drawn)]
    )


def same(found, happened):
    assert found is not None
    assert found.cached_tokens == happened[2]
    assert found[:2] == pytest.approx(happened[:2], rel=1e-9)


engines = st.builds(
    engine,
    max_num_batched_tokens=st.sampled_from([8, 16, 64]),
    max_num_seqs=st.integers(1, 4),
    async_scheduling=st.booleans(),
    reserve_full_isl=st.booleans(),
)


@profile(max_examples=300)
@given(engines, distinct("served"), distinct("queued"), st.data())
def test_a_forecast_is_what_the_naive_engine_then_does(settings, served, queued, data):
    idle = Idle(settings, served)
    for number, work in enumerate(queued):
        idle.queue(f"q{number}", work)
    families = [work.family for work in (*served, *queued)] or ["new"]
    target = data.draw(works(families))

    found = idle.predict(target)

    same(found, idle.happens(target))


@given(engines, st.lists(works("abc"), max_size=6), works("abc"))
def test_what_is_cached_ahead_in_the_queue_is_found(settings, queued, target):
    idle = Idle(settings)
    for number, work in enumerate(queued):
        idle.queue(f"q{number}", work)

    found = idle.predict(target)

    same(found, idle.happens(target))


@profile(max_examples=300)
@given(
    st.builds(engine, num_blocks=st.integers(16, 60), max_num_seqs=st.integers(1, 2)),
    distinct("served"),
    distinct("queued"),
    st.data(),
)
def test_what_is_pushed_out_before_its_turn_is_not_found(settings, served, queued, data):
    idle = Idle(settings, served)
    for number, work in enumerate(queued):
        idle.queue(f"q{number}", work)
    target = data.draw(works([work.family for work in served] or ["new"]))

    found = idle.predict(target)

    same(found, idle.happens(target))


with_room = engines.filter(lambda settings: not settings.async_scheduling).map(
    lambda settings: replace(settings, max_num_seqs=8, num_blocks=200)
)
"""Engines on which nobody waits for a slot or for blocks: more work may free these sooner."""


@given(with_room, distinct("queued"), st.integers(0, 6), works(["more"]), works(["target"]))
def test_more_work_ahead_never_brings_the_first_token_sooner(settings, queued, place, more, target):
    alone, behind = Idle(settings), Idle(settings)
    for idle, works_ahead in ((alone, queued), (behind, [*queued[:place], more, *queued[place:]])):
        for number, work in enumerate(works_ahead):
            idle.queue(f"q{number}", work)

    before, after = alone.predict(target), behind.predict(target)

    assert after.first_token_at >= before.first_token_at - 1e-9


def test_where_slots_are_scarce_more_work_ahead_may_bring_a_slot_sooner():
    settings = engine(max_num_seqs=2, reserve_full_isl=False)
    alone, behind = Idle(settings), Idle(settings)
    ahead, long = Work("q0", 16, 9), Work("q1", 34, 7)
    for idle, works_ahead in ((alone, [ahead, long]), (behind, [ahead, Work("more", 1, 6), long])):
        for number, work in enumerate(works_ahead):
            idle.queue(f"q{number}", work)
    target = Work("target", 1, 1)

    before, after = alone.predict(target), behind.predict(target)

    assert after.scheduled_at < before.scheduled_at
    assert after.first_token_at < before.first_token_at


@given(engines, distinct("served"), st.lists(works("abc"), max_size=6), works("abc"))
def test_a_forecast_does_not_move_the_mirror(settings, served, queued, target):
    asked, left_alone = Idle(settings, served), Idle(settings, served)
    for idle in (asked, left_alone):
        for number, work in enumerate(queued):
            idle.queue(f"q{number}", work)

    for _ in range(3):
        asked.predict(target)

    assert whole(asked.mirror) == whole(left_alone.mirror)


def whole(mirror):
    replay = mirror.replay
    seqs = [*replay.prefilling, *replay.decoding.values(), *replay.waiting]
    numbers = [getattr(replay, name) for name in ("clock", "tick", "context", "free", "lost")]
    return (
        numbers,
        plain(seqs),
        mirror.pool.pins,
        list(mirror.pool.free.items()),
        {name: flight.held for name, flight in mirror.flights.items()},
    )


@given(engines, st.integers(1, 50))
def test_the_last_token_of_a_prompt_is_never_found(settings, prompt):
    idle = Idle(settings, [Work("a", 52, 2)])

    found = idle.predict(Work("a", prompt, 5))

    assert found.cached_tokens == (prompt - 1) // SIZE * SIZE


def test_skipping_changes_no_forecast():
    idle = Idle(engine(num_blocks=40), [Work("a", 30, 5)])
    for number in range(12):
        idle.queue(f"q{number}", Work(f"q{number}", 50, 12))

    target = idle.mirror.sequence(granted("target", Work("a", 30, 5)), 5)
    skipped = stepwise(idle.mirror, target, WEIGHTS, 0.0)
    stepped = stepwise(idle.mirror, target, WEIGHTS, 0.0, skips=False)

    assert skipped == pytest.approx(stepped)


def test_what_no_context_holds_is_forecast_as_what_fills_it():
    settings = engine(num_blocks=4)
    longest = settings.longest_prompt

    beyond = Idle(settings).predict(Work("a", longest + 40, 5))
    filling = Idle(settings).predict(Work("a", longest, 5))

    assert beyond.first_token_at - beyond.scheduled_at == pytest.approx(
        filling.first_token_at - filling.scheduled_at
    )
