import gc

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from leadsman.engine import EngineSettings
from leadsman.firstcome import FirstCome, is_first_come
from leadsman.future import FutureCache
from leadsman.mirror import Mirror
from leadsman.pricing import forecast, stepwise
from leadsman.records import Granted
from leadsman.sequence import Seq
from leadsman.steptime import StepLearner, StepWeights
from leadsman.units import RequestId, WorkerId

SIZE = 4
WEIGHTS = StepWeights(0.01013, 1.0171e-3, 1.0193e-5, 1.0223e-3, 1.0237e-5, 0.0020291)
FREE_DECODES = StepWeights(0.0, 1.0171e-3, 1.0193e-5, 0.0, 0.0, 0.0020291)


@st.composite
def engines(draw, **fixed):
    budget = draw(st.sampled_from([8, 16, 64]))
    drawn = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": draw(st.integers(1, 7)),
        "num_blocks": draw(st.sampled_from([16, 24, 40, 80, 400])),
        "enable_chunked_prefill": draw(st.sampled_from([True, True, True, False])),
        "long_prefill_token_threshold": draw(st.sampled_from([None, None, None, 6])),
        "async_scheduling": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "fcfs", "priority"])),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "reserve_full_isl": draw(st.booleans()),
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
    }
    return EngineSettings(
        model="m", version="0.33.0", max_model_len=100, block_size=SIZE, **drawn | fixed
    )


def keys(family, blocks):
    return np.array([1 + family * 1000 + block for block in range(blocks)], dtype=np.uint64)


@st.composite
def grants(draw, at):
    """A request of one of some families, each of which has the same tokens at each place."""
    drawn = draw(st.tuples(st.integers(0, 8), st.integers(1, 60), st.integers(0, 2)))
    family, prompt, priority = drawn
    return Granted(
        worker=WorkerId("w"),
        request=RequestId("target"),
        at=at,
        prompt_tokens=prompt,
        keys=keys(family, prompt // SIZE),
        max_tokens=draw(st.sampled_from([None, 1, 4, 30])),
        priority=priority,
        predicted_ttft=None,
        reads_cache=draw(st.sampled_from([True, True, False])),
    )


class Asked:
    """A mirror in the midst of its work, and a request that it is asked about."""

    def __init__(self, settings, weights, draw):
        self.mirror = mirror = Mirror(settings, StepLearner(weights))
        self.weights, self.now = weights, 0.0
        for family, blocks in draw(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)))):
            mirror.pool.keep(keys(family, blocks).tolist()[: settings.num_blocks // 4])
        for number in range(draw(st.integers(0, 9))):
            self.now += draw(st.sampled_from([0.0, 0.0, 0.004, 0.3]))
            granted = draw(grants(self.now))
            mirror.grant(
                Granted(
                    **{n: getattr(granted, n) for n in granted.__slots__}
                    | {"request": RequestId(f"r{number}")}
                ),
                draw(st.integers(1, 20)),
            )
            for _ in range(draw(st.integers(0, 5))):
                mirror._commit()
        for seq in [s for s in mirror.replay.decoding.values() if s.due <= mirror.replay.tick]:
            mirror.replay.expect(seq, mirror.replay.generated(seq) + draw(st.integers(1, 9)))
        self.now += draw(st.sampled_from([0.0, 0.01, 1.0]))
        self.target = mirror.sequence(draw(grants(self.now)), draw(st.integers(1, 20)))
        self.behind = None
        if draw(st.booleans()):
            self.behind = Seq(
                RequestId("behind"),
                draw(st.integers(1, 60)),
                self.now + draw(st.sampled_from([0.0, 0.02, 0.1, 1.0])),
            )
            self.behind.arrival = self.target.arrival + 1

    def in_steps(self):
        return stepwise(self.mirror, self.target, self.weights, self.now, self.behind, skips=False)

    def in_closed_form(self):
        return FirstCome(self.mirror, self.target, self.weights, self.now, self.behind).run()


@st.composite
def asked(draw, **fixed):
    weights = draw(st.sampled_from([WEIGHTS, WEIGHTS, FREE_DECODES]))
    return Asked(draw(engines(**fixed)), weights, draw)


ordinary = asked(
    policy="fcfs", enable_chunked_prefill=True, long_prefill_token_threshold=None
).filter(lambda one: is_first_come(one.mirror.replay))


@profile(max_examples=2000)
@given(ordinary)
def test_the_closed_form_is_the_replay_step_by_step(one):
    closed = one.in_closed_form()

    stepped = one.in_steps()

    event("left to the replay" if closed is None else "closed")
    if closed is not None:
        assert stepped is not None
        assert closed.cached_tokens == stepped.cached_tokens
        assert closed[:2] == pytest.approx(stepped[:2], rel=1e-9)


@profile(max_examples=500)
@given(asked())
def test_a_forecast_is_the_replay_step_by_step_whatever_the_engines_rules(one):
    found = forecast(one.mirror, one.target, one.weights, one.now, one.behind)

    stepped = one.in_steps()

    assert found == (stepped and pytest.approx(stepped, rel=1e-9))


def queued(prompts, output=20, **settings):
    usual = {"max_num_batched_tokens": 8192, "max_num_seqs": 64, "num_blocks": 200_000}
    engine = EngineSettings(
        model="m", version="0.33.0", max_model_len=1_000_000, block_size=16, **usual | settings
    )
    mirror = Mirror(engine, StepLearner(WEIGHTS))
    for number, prompt in enumerate([*prompts, 1]):
        granted = Granted(
            worker=WorkerId("w"),
            request=RequestId(f"r{number}"),
            at=0.0,
            prompt_tokens=prompt,
            keys=np.empty(0, dtype=np.uint64),
            max_tokens=None,
            priority=0,
            predicted_ttft=None,
        )
        if number == len(prompts):
            return mirror, mirror.sequence(granted, output)
        mirror.grant(granted, output)
    raise AssertionError


def events(mirror, target):
    """Count the rounds that a price takes; none of them may be the replay's."""
    run, rounds = FirstCome(mirror, target, WEIGHTS, 0.0), 0
    cache = FutureCache(mirror, run)
    while (mine := run.entered.get(target.id)) is None or mine.computed < mine.target:
        assert run._advance(run._steps(), cache)
        rounds += 1
    return rounds


def test_a_million_tokens_take_as_few_rounds_as_ten_thousand():
    short, long = (events(*queued([prompt])) for prompt in (10_000, 900_000))

    assert long <= short


def test_a_queued_prompt_takes_three_rounds_even_where_blocks_run_short():
    ten, twenty = (events(*queued([100_000] * n, num_blocks=40_000)) for n in (10, 20))

    assert twenty - ten <= 3 * 10


@profile(max_examples=50)
@given(asked())
def test_a_forecast_leaves_nothing_for_the_garbage_collector_to_find(one):
    gc.collect()
    gc.disable()

    forecast(one.mirror, one.target, one.weights, one.now, one.behind)

    found = gc.collect()
    gc.enable()
    assert found == 0
