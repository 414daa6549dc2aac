import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from leadsman.engine import EngineSettings, SglangRules
from leadsman.sequence import NOTHING, Hit, Seq
from leadsman.sglang import SglangReplay
from leadsman.sglang_queue import in_order

from .sglang_runs import Compared

GOLDEN = Path(__file__).parent / "golden" / "sglang-0.5.23.jsonl.gz"
RUNS = [json.loads(line) for line in gzip.decompress(GOLDEN.read_bytes()).splitlines()]


def engine(rules=None, **settings):
    usual = {
        "model": "m",
        "version": "0.5.23",
        "max_num_batched_tokens": 16,
        "max_num_seqs": 8,
        "max_model_len": 400,
        "block_size": 4,
        "num_blocks": 100,
        "async_scheduling": False,
    }
    rules = {"chunked_prefill_size": 16, "max_prefill_tokens": 64} | (rules or {})
    return EngineSettings(**usual | settings, sglang=SglangRules(**rules))


def request(name, prompt, output, *, visible_at=0.0, most=None):
    seq = Seq(name, prompt, visible_at)
    seq.limit, seq.expected = most or output, output
    return seq


def replay_of(settings, *seqs):
    replay = SglangReplay(settings).fork()
    for seq in seqs:
        replay.add(seq)
    return replay


def nothing(_):
    return NOTHING


def chunks(step):
    return [(seq.id, tokens) for seq, tokens in step.chunks]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['mode']}-{run['seed']}")
def test_it_does_what_sglang_s_own_scheduler_did(run):
    compared = Compared(run)

    assert compared.mismatch() is None
    assert compared.steps > 0


@pytest.mark.parametrize(("sharer", "order"), [("waits", "ab"), ("runs", "ba")])
def test_a_prompt_counts_whole_where_a_request_that_waits_no_more_shares_all_of_it(sharer, order):
    rules = SglangRules(schedule_policy="lpm")
    longer, whole = Seq("a", 9, 0.0), Seq("b", 4, 0.0)
    whole.kin = [(sharer, 2)]
    queue = [longer, whole] + [Seq("waits", 23, 0.0)] * (sharer == "waits")

    ordered = in_order(queue, rules, lambda seq: Hit(2 * (seq.id in "ab"), 0), page=2)

    assert "".join(seq.id for seq in ordered if seq.id in "ab") == order


def test_the_golden_runs_hold_retractions_and_every_mode():
    retracted = {run["mode"] for run in RUNS if any(step["retracted"] for step in run["steps"])}

    assert {"overlap", "mixed-overlap", "priority", "priority-overlap"} <= retracted
    assert {"plain", "whole", "lof", "lpm", "lpm-overlap", "shared-overlap"} <= {
        run["mode"] for run in RUNS
    }


@st.composite
def crowds(draw):
    sizes = st.tuples(st.integers(1, 90), st.integers(1, 40))
    waits = st.sampled_from([0.0, 0.5, 7.2])
    seqs, at = [], 0.0
    for number, (prompt, output) in enumerate(draw(st.lists(sizes, min_size=1, max_size=8))):
        at += draw(waits)
        seqs.append(request(f"r{number}", prompt, output, visible_at=at))
    return seqs


@given(crowds(), st.booleans(), st.booleans(), st.sampled_from([40, 100]))
@profile(max_examples=60, deadline=None)
def test_skipping_ends_where_stepping_does(seqs, is_async, mixed, blocks):
    settings = engine({"enable_mixed_chunk": mixed}, async_scheduling=is_async, num_blocks=blocks)

    stepped = timeline(replay_of(settings, *[seq.copy() for seq in seqs]), skips=False)
    skipped = timeline(replay_of(settings, *[seq.copy() for seq in seqs]), skips=True)

    assert stepped.keys() == skipped.keys() == {seq.id for seq in seqs}
    for name, at in stepped.items():
        assert skipped[name] == pytest.approx(at)


def timeline(replay, *, skips):
    """When each request has its first token, if every step lasts a second."""
    firsts = {}
    for _ in range(3_000):
        if not (replay.prefilling or replay.decoding):
            if not replay.waiting:
                return firsts
            replay.wake()
        step = replay.step(nothing)
        replay.ran(step, replay.clock + step.features.steps)
        for seq in step.finals:
            firsts.setdefault(seq.id, replay.clock)
        if skips:
            arrival = replay.next_arrival
            longest = 1 << 40 if arrival is None else int(arrival - replay.clock) - 1
            more = replay.skip(step, longest)
            if more is not None:
                replay.ran(more, replay.clock + more.repeats)
    raise AssertionError("it does not end")


def test_prompts_go_first_and_decoding_waits_for_them():
    replay = replay_of(engine(), request("a", 8, 5), request("b", 40, 5, visible_at=1.5))
    first = replay.step(nothing)
    replay.ran(first, 2.0)

    second = replay.step(nothing)

    assert chunks(first) == [("a", 8)]
    assert chunks(second) == [("b", 16)]
    assert second.features.decodes == 0


def test_a_chunk_that_goes_on_is_served_before_anybody_new():
    replay = replay_of(engine(), request("long", 30, 5), request("short", 3, 5))
    replay.ran(replay.step(nothing), 1.0)

    step = replay.step(nothing)

    assert chunks(step) == [("long", 14)]


def test_one_that_does_not_fit_holds_up_all_behind_it():
    settings = engine(num_blocks=20)
    replay = replay_of(settings, request("a", 12, 40), request("big", 60, 9), request("c", 2, 2))

    step = replay.step(nothing)
    replay.ran(step, 1.0)
    after = replay.step(nothing)

    assert chunks(step) == [("a", 12)]
    assert after.features.decodes == 1


def test_with_overlap_a_prompt_s_last_chunk_is_found_a_step_later():
    replay = replay_of(engine(async_scheduling=True), request("a", 20, 9))

    found = []
    for _ in range(4):
        step = replay.step(nothing)
        replay.ran(step, replay.clock + 1.0)
        seq = replay.entered["a"]
        found.append(replay.stored(seq.id, seq.computed))

    assert found == [16, 16, 20, 20]


def test_what_is_found_cached_is_not_computed():
    replay = replay_of(engine(), request("a", 14, 3))

    step = replay.step(lambda _: Hit(12, 0))

    assert chunks(step) == [("a", 2)]
    assert step.admitted[0].cached == 12


def test_an_idle_engine_forgets_what_answers_needed():
    replay = replay_of(engine(), request("a", 4, 9), request("b", 4, 9, visible_at=100.0))
    for _ in range(9):
        replay.ran(replay.step(nothing), replay.clock + 1.0)
    worn = replay.ratio

    replay.wake()

    assert worn < replay.ratio == SglangReplay(engine()).ratio
