"""The A10 example of the AdmitPerf talk: a wait for slots, which no prefill and no cache shows.

A half-billion-parameter model with four sequences at most, at 14 requests a second. There the KV
cache peaked at half a percent, so a KV threshold never fired, and a cap of two waiting requests
admitted 63 % with a p95 of a second, where it had been two and a half.
"""

from random import Random

import pytest
from leadsman.budget import Budget
from leadsman.keys import block_keys
from leadsman.records import LoadSample
from leadsman.request import Request
from leadsman.units import RequestId
from leadsman_bench.offers import SEED
from leadsman_bench.scenario import MODEL, WorkerSpec
from leadsman_bench.simulate import LivePicker
from leadsman_bench.virtual import Offer, VirtualFleet
from leadsman_engines.simulated.presets import presets

PER_S, REQUESTS, LEARNING = 14.0, 1200, 400
PROMPT = (60, 200)
ANSWER = (20, 88)
"""Tokens of an answer: four slots then end nine in a second, 63 % of what comes."""


def offers(seed):
    rng, at = Random(seed), 0.0
    for number in range(REQUESTS):
        at += rng.expovariate(PER_S)
        tokens = [rng.randrange(1, 50_000) for _ in range(rng.randint(*PROMPT))]
        request = Request(
            id=RequestId(f"r{number}"),
            model=MODEL,
            prompt_tokens=len(tokens),
            arrived_at=at,
            keys={16: block_keys(np_tokens(tokens), 16, SEED)},
        )
        yield Offer(request=request, output_tokens=rng.randint(*ANSWER))


def np_tokens(tokens):
    import numpy as np

    return np.array(tokens, dtype=np.uint32)


class Kept:
    def __init__(self):
        self.streams, self.refusals = [], 0

    def ended(self, stream):
        if int(stream.offer.request.id[1:]) >= LEARNING:
            self.streams.append(stream)

    def refused(self, offer, refused):
        self.refusals += int(offer.request.id[1:]) >= LEARNING


class Watched(LivePicker):
    peak = 0.0

    def apply(self, record, now):
        super().apply(record, now)
        if isinstance(record, LoadSample) and record.kv_usage is not None:
            self.peak = max(self.peak, record.kv_usage)


def run(budget, seed=1):
    preset = presets()["qwen2.5-0.5b-a10g"]
    spec = WorkerSpec(name="a10", settings=preset.settings, hardware=preset.hardware)
    picker, kept = Watched(budget, Random(seed)), Kept()
    for _ in VirtualFleet([spec], picker, kept, seed=seed).run(offers(seed), iter(())):
        pass
    return picker, kept


def p95(streams):
    return sorted(stream.ttft for stream in streams)[int(0.95 * len(streams))]


@pytest.fixture(scope="module")
def bounded():
    return run(Budget(overload=1.0))


def test_a_kv_threshold_never_fires_while_requests_wait_for_slots():
    picker, kept = run(Budget(policy="kv_threshold"))

    assert picker.peak < 0.02
    assert kept.refusals == 0
    assert p95(kept.streams) > 5.0
    assert not picker.faults


def test_a_queue_cap_sheds_what_the_slots_cannot_serve():
    _, kept = run(Budget(policy="queue_cap", parameters={"limit": 2}))

    admitted = len(kept.streams) / (REQUESTS - LEARNING)
    assert 0.5 < admitted < 0.75
    assert p95(kept.streams) < 1.0


def test_the_predicted_wait_sees_the_wait_for_slots_and_bounds_it(bounded):
    _, kept = bounded

    admitted = len(kept.streams) / (REQUESTS - LEARNING)
    late = [stream for stream in kept.streams if stream.ttft > 1.0 + 0.15]
    assert 0.5 < admitted < 0.8
    assert len(late) < 0.1 * len(kept.streams)


def test_the_wait_for_slots_is_predicted_and_is_nearly_all_of_the_wait(bounded):
    _, kept = bounded

    prices = [(stream.admitted.prediction.price, stream.ttft) for stream in kept.streams]
    near = [abs(price.ttft - ttft) <= max(0.2, 0.25 * ttft) for price, ttft in prices]
    waited = sum(price.queue_wait for price, _ in prices)
    assert waited > 3 * sum(price.own_prefill for price, _ in prices)
    assert sum(near) > 0.85 * len(near)
