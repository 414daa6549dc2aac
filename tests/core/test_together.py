from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from leadsman.engine import EngineSettings, SglangRules
from leadsman.fleet import Fleet
from leadsman.mirror import ARRIVAL_DELAY, ARRIVAL_DELAY_PER_TOKEN, Mirror
from leadsman.pricing import forecast
from leadsman.records import Granted, WorkerGone, WorkerSeen
from leadsman.steptime import StepLearner, StepWeights
from leadsman_engines.simulated.sequences import SimulatedRequest
from leadsman_engines.simulated.sglang.engine import SimulatedSglang
from leadsman_engines.simulated.sglang.settings import SglangSettings

WEIGHTS = StepWeights(0.01, 1e-4, 0.0, 1e-3, 0.0, 0.0)
NO_KEYS = np.empty(0, dtype=np.uint64)
PAGE, CHUNK = 4, 64


class Linear:
    """Hardware whose steps last exactly as the weights say."""

    def __init__(self):
        self.model = SimpleNamespace(kv_bytes=1.0)

    def step_seconds(self, chunks, contexts):
        return WEIGHTS.t0 + WEIGHTS.a * sum(n for n, _ in chunks) + WEIGHTS.t_d * len(contexts)

    def by_chance(self, seconds, rng):
        return seconds


def settings(*, together):
    return EngineSettings(
        model="m",
        version="0.5.23",
        max_num_batched_tokens=CHUNK,
        max_num_seqs=4,
        max_model_len=2_000,
        block_size=PAGE,
        num_blocks=4_000,
        sglang=SglangRules(chunked_prefill_size=CHUNK, steps_together=together),
    )


APART = 0.001
"""Between requests, so that no short prompt overtakes a long one on its way to a scheduler."""


def granted(name, prompt, output, at):
    return Granted(
        worker="w",
        request=name,
        at=at,
        prompt_tokens=prompt,
        keys=NO_KEYS,
        max_tokens=output,
        priority=0,
        predicted_ttft=None,
    )


def first_token(ranks):
    """When the last request of the first rank has its first token, on the simulated server."""
    engine = SimulatedSglang(
        SglangSettings(
            model="m",
            page_size=PAGE,
            max_total_num_tokens=4_000 * PAGE,
            max_running_requests=4,
            context_length=2_000,
            chunked_prefill_size=CHUNK,
            dp_size=len(ranks),
            enable_dp_attention=True,
            api_delay=ARRIVAL_DELAY,
            api_delay_per_token=ARRIVAL_DELAY_PER_TOKEN,
        ),
        Linear(),
        Random(0),
    )
    moments = []
    for rank, work in enumerate(ranks):
        for number, (prompt, output) in enumerate(work):
            name = f"{rank}/{number}"
            asked = SimulatedRequest(
                id=name,
                prompt_tokens=prompt,
                prompt_hashes=[hash((name, page)) for page in range(prompt // PAGE)],
                output_tokens=output,
                max_tokens=output,
            )
            moments.append((at(rank, number), asked, rank))
    target, firsts = f"0/{len(ranks[0]) - 1}", {}
    for moment, asked, rank in sorted(moments, key=lambda one: one[0]):
        for output in engine.advance(moment):
            firsts |= dict.fromkeys(output.first, output.ended_at)
        engine.submit(asked, moment, rank)
    while (moment := engine.next_time()) is not None:
        for output in engine.advance(moment):
            firsts |= dict.fromkeys(output.first, output.ended_at)
    return firsts[target]


def at(rank, number):
    return APART * (number + 0.3 * rank)


def predicted(ranks):
    mirrors = []
    for rank, work in enumerate(ranks):
        mirror = Mirror(settings(together=True), StepLearner(WEIGHTS, trust=1.0))
        for number, (prompt, output) in enumerate(work):
            if (rank, number) != (0, len(work) - 1):
                mirror.grant(granted(f"{rank}/{number}", prompt, output, at(rank, number)), output)
        mirrors.append(mirror)
    mine = mirrors[0]
    mine.beside = [(other, WEIGHTS) for other in mirrors[1:]]
    prompt, output = ranks[0][-1]
    moment = at(0, len(ranks[0]) - 1)
    target = mine.sequence(granted("target", prompt, output, moment), output)
    return forecast(mine, target, WEIGHTS, 0.0).first_token_at


def works(least):
    sizes = st.tuples(st.integers(1, 300), st.integers(1, 30))
    return st.lists(sizes, min_size=least, max_size=5)


@given(works(1), st.lists(works(0), min_size=1, max_size=2))
@profile(max_examples=30)
def test_a_forecast_is_what_ranks_that_step_together_then_do(own, others):
    ranks = [own, *others]

    assert predicted(ranks) == pytest.approx(first_token(ranks))


def test_a_prompt_on_another_rank_delays_the_first_token():
    alone = predicted([[(200, 5)], []])

    beside = predicted([[(200, 5)], [(250, 5), (250, 5)]])

    assert beside > alone


def test_ranks_of_one_server_are_beside_each_other_only_while_all_step_together():
    fleet = Fleet()
    for worker, endpoint, together in [
        ("a#0", "a", True),
        ("a#1", "a", True),
        ("b#0", "b", True),
        ("c#0", "c", False),
        ("c#1", "c", False),
    ]:
        seen = WorkerSeen(worker=worker, endpoint=endpoint, settings=settings(together=together))
        fleet.apply(seen, 0.0)

    beside = {name: [one.worker for one in w.beside] for name, w in fleet.workers.items()}
    fleet.apply(WorkerGone(worker="a#1"), 0.0)

    assert beside == {"a#0": ["a#1"], "a#1": ["a#0"], "b#0": [], "c#0": [], "c#1": []}
    assert fleet.workers["a#0"].beside == []
