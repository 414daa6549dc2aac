import numpy as np
import pytest
from leadsman.engine import EngineSettings, SglangRules
from leadsman.mirror import Mirror
from leadsman.pricing import forecast
from leadsman.records import Granted
from leadsman.replay import Replay
from leadsman.schedulers import findable, replay_for
from leadsman.sglang import SglangReplay
from leadsman.steptime import StepLearner, StepWeights
from leadsman.units import RequestId, WorkerId

WEIGHTS = StepWeights(t0=0.01, a=0.001, b=0.0, t_d=0.002, e=0.0, s=0.0)
W = WorkerId("w:1")


def settings(rules, **fields):
    usual = {
        "model": "m",
        "version": "1",
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "max_model_len": 4096,
        "block_size": 16,
        "num_blocks": 1000,
        "async_scheduling": False,
    }
    return EngineSettings(**usual | fields, sglang=rules)


RULES = SglangRules(chunked_prefill_size=64, max_prefill_tokens=128)


def granted(name, prompt, *, at=0.0, most=50, keys=()):
    return Granted(
        worker=W,
        request=RequestId(name),
        at=at,
        prompt_tokens=prompt,
        keys=np.array(keys, dtype=np.uint64),
        max_tokens=most,
        priority=0,
        predicted_ttft=None,
    )


def mirror_of(rules, **fields):
    return Mirror(settings(rules, **fields), StepLearner(WEIGHTS, trust=1000.0))


def test_an_engine_s_rules_choose_its_replay():
    assert type(replay_for(settings(None))) is Replay
    assert type(replay_for(settings(RULES))) is SglangReplay
    assert type(mirror_of(RULES).replay.fork()) is SglangReplay


def ttft(rules, decoding):
    """What a prompt of 128 tokens is predicted behind others that decode."""
    mirror = mirror_of(rules)
    for number in range(decoding):
        mirror.grant(granted(f"d{number}", 16), 40)
    mirror.saw_tokens(RequestId("d0"), 1, 0.5)
    target = mirror.sequence(granted("new", 128, at=0.5), 1)
    found = forecast(mirror, target, WEIGHTS, 0.5)
    return found.first_token_at - found.scheduled_at


def test_where_prompts_go_first_decoding_costs_a_prompt_nothing():
    alone, behind = ttft(RULES, 1), ttft(RULES, 4)

    assert behind == pytest.approx(alone)
    assert ttft(None, 4) > ttft(None, 1)


def test_a_witness_is_believed_though_prompts_stall_it():
    mirror = mirror_of(RULES)
    mirror.grant(granted("watched", 16), 40)
    mirror.saw_tokens(RequestId("watched"), 1, 0.05)
    mirror.saw_tokens(RequestId("watched"), 2, 0.062)
    mirror.grant(granted("long", 120, at=0.063), 40)

    mirror.saw_tokens(RequestId("watched"), 3, 0.074)
    mirror.saw_tokens(RequestId("watched"), 4, 0.235)

    replay = mirror.replay
    assert replay.generated(mirror.flights[RequestId("watched")].seq) == 4
    assert replay.generated(mirror.flights[RequestId("long")].seq) >= 1


def test_what_a_running_prompt_has_for_others_is_asked_of_the_replay():
    replay = replay_for(settings(RULES, async_scheduling=True))

    replay._fresh = {RequestId("a"): 64}

    assert findable(replay, RequestId("a"), 100) == 64
    assert findable(replay, RequestId("b"), 100) == 100
    assert findable(replay_for(settings(None)), RequestId("a"), 100) == 100
