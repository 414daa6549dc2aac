from dataclasses import replace
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman_engines.simulated.blocks import BlocksRemoved, BlocksStored
from leadsman_engines.simulated.scheduler import Scheduler
from leadsman_engines.simulated.sequences import SimulatedRequest, Tracked
from leadsman_engines.simulated.settings import SimulatedSettings

BASE = SimulatedSettings(
    model="m",
    version="0.32.0",
    max_num_batched_tokens=512,
    max_num_seqs=4,
    max_model_len=4096,
    block_size=16,
    num_blocks=1000,
    async_scheduling=False,
)


ARRIVALS = count()
"""No two at once: of the same priority they would push each other out for ever, as in vLLM."""


def tracked(scheduler, name, prompt, output=4, *, names=None, **wishes):
    block_size = scheduler.settings.block_size
    hashes = names or [hash((name, block)) for block in range(prompt // block_size)]
    request = SimulatedRequest(
        id=name,
        prompt_tokens=prompt,
        prompt_hashes=hashes[: prompt // block_size],
        output_tokens=output,
        **wishes,
    )
    one = Tracked(
        request,
        arrival=float(next(ARRIVALS)),
        max_model_len=scheduler.settings.max_model_len,
    )
    scheduler.add(one)
    return one


def run(scheduler, steps=None):
    """Step until nothing is left; return each step's tokens by id, in order."""
    rows = []
    while scheduler.has_requests and (steps is None or len(rows) < steps):
        step = scheduler.schedule()
        rows.append({request.id: count for request, count in step.tokens.items()})
        scheduler.process(step)
        scheduler.check()
    return rows


def test_a_prompt_alone_takes_whole_budgets():
    scheduler = Scheduler(BASE)
    tracked(scheduler, "a", 2048, output=1)

    rows = run(scheduler)

    assert rows == [{"a": 512}] * 4


def test_one_decode_beside_it_costs_a_prompt_one_more_step():
    scheduler = Scheduler(BASE)
    tracked(scheduler, "d", 16, output=99)
    run(scheduler, steps=1)
    tracked(scheduler, "a", 2048, output=1)

    rows = run(scheduler, steps=5)

    assert [row["a"] for row in rows] == [511, 511, 511, 511, 4]
    assert all(row["d"] == 1 for row in rows)


def test_a_repeated_prompt_of_whole_blocks_computes_its_last_block_again():
    scheduler = Scheduler(BASE)
    names = list(range(40))
    tracked(scheduler, "x", 640, names=names)
    run(scheduler)

    again = tracked(scheduler, "y", 640, names=names)
    rows = run(scheduler)

    assert again.cached == 624
    assert rows[0] == {"y": 16}


def test_a_prefix_scheduled_in_the_same_step_is_found():
    scheduler = Scheduler(BASE)
    names = list(range(50))
    tracked(scheduler, "a", 320, names=names)

    second = tracked(scheduler, "b", 400, names=names)
    rows = run(scheduler, steps=1)

    assert second.cached == 320
    assert rows == [{"a": 320, "b": 80}]


def test_the_long_prefill_threshold_is_off_for_a_request_alone():
    scheduler = Scheduler(replace(BASE, long_prefill_token_threshold=128))
    tracked(scheduler, "a", 600, output=1)

    rows = run(scheduler)

    assert rows == [{"a": 512}, {"a": 88}]


def test_the_long_prefill_threshold_lets_short_prompts_in():
    scheduler = Scheduler(replace(BASE, long_prefill_token_threshold=128))
    tracked(scheduler, "a", 600, output=1)
    tracked(scheduler, "b", 600, output=1)
    tracked(scheduler, "c", 40, output=1)

    rows = run(scheduler, steps=1)

    assert rows == [{"a": 128, "b": 128, "c": 40}]


def test_a_head_that_does_not_fit_stops_all_behind_it():
    scheduler = Scheduler(replace(BASE, num_blocks=256))
    tracked(scheduler, "a", 2048, output=9)
    tracked(scheduler, "big", 3000, output=1)
    tracked(scheduler, "small", 16, output=1)

    rows = run(scheduler, steps=5)

    assert rows[4] == {"a": 1}
    assert [request.id for request in scheduler.waiting] == ["big", "small"]


def test_no_more_sequences_run_than_are_allowed():
    scheduler = Scheduler(replace(BASE, max_num_seqs=2))
    for name in "abc":
        tracked(scheduler, name, 16, output=2)

    rows = run(scheduler)

    assert [set(row) for row in rows] == [{"a", "b"}, {"a", "b"}, {"c"}, {"c"}]


def test_the_one_admitted_last_is_pushed_out_and_nobody_is_admitted_in_that_step():
    scheduler = Scheduler(replace(BASE, num_blocks=20, max_model_len=320))
    first = tracked(scheduler, "a", 150, output=60)
    last = tracked(scheduler, "b", 150, output=60)
    tracked(scheduler, "c", 16, output=1)

    while not last.preemptions:
        step = scheduler.schedule()
        scheduler.process(step)

    assert first.running
    assert [request.id for request in scheduler.waiting] == ["b", "c"]
    assert set(step.tokens) == {first}


def test_a_pushed_out_request_finds_its_own_blocks_again():
    scheduler = Scheduler(replace(BASE, num_blocks=20, max_model_len=320))
    tracked(scheduler, "a", 150, output=60)
    last = tracked(scheduler, "b", 150, output=60)

    rows = run(scheduler)

    assert last.preemptions == 1
    assert last.cached == 0
    assert sum(row.get("b", 0) for row in rows) > 150 + 60 - 1
    assert scheduler.pool.free == 20


def test_the_least_urgent_is_pushed_out_under_the_priority_policy():
    scheduler = Scheduler(replace(BASE, num_blocks=20, max_model_len=320, policy="priority"))
    lazy = tracked(scheduler, "lazy", 150, output=60, priority=5)
    run(scheduler, steps=1)
    tracked(scheduler, "urgent", 150, output=60, priority=0)

    while scheduler.has_requests and not scheduler.preemptions:
        scheduler.process(scheduler.schedule())

    assert lazy.preemptions == 1


@pytest.mark.parametrize(("version", "served"), [("0.32.0", set()), ("0.33.0", {"b"})])
def test_who_pushes_itself_out_stops_the_others_only_before_0_33(version, served):
    limits = replace(BASE, num_blocks=20, max_model_len=320, policy="priority", version=version)
    scheduler = Scheduler(limits)
    lazy = tracked(scheduler, "a", 175, output=60, priority=5)
    run(scheduler, steps=1)
    tracked(scheduler, "b", 138, output=60, priority=0)
    run(scheduler, steps=1)

    step = scheduler.schedule()

    assert step.preempted == [lazy]
    assert {request.id for request in step.tokens} == served


def test_an_aborted_request_frees_its_blocks_and_keeps_them_findable():
    scheduler = Scheduler(BASE)
    names = list(range(40))
    gone = tracked(scheduler, "a", 640, names=names)
    run(scheduler, steps=1)

    scheduler.abort(gone)

    assert scheduler.pool.free == BASE.num_blocks
    assert len(scheduler.pool.longest_prefix(names, 40)) == 32


def test_events_name_the_span_and_its_parent():
    scheduler = Scheduler(BASE)
    tracked(scheduler, "a", 640, names=list(range(100, 140)), session_id="s")

    run(scheduler, steps=2)

    assert scheduler.pool.take_events() == [
        BlocksStored("a", "s", tuple(range(100, 132)), None, 0),
        BlocksStored("a", "s", tuple(range(132, 140)), 131, 32),
    ]


def test_generated_blocks_are_stored_when_full():
    scheduler = Scheduler(BASE)
    tracked(scheduler, "a", 16, output=18, names=[5], output_hash=lambda block: 1000 + block)

    run(scheduler)

    assert scheduler.pool.take_events() == [
        BlocksStored("a", None, (5,), None, 0),
        BlocksStored("a", None, (1001,), 5, 1),
    ]


@st.composite
def workloads(draw):
    limits = replace(
        BASE,
        max_num_batched_tokens=draw(st.sampled_from([8, 33, 64, 512])),
        max_num_seqs=draw(st.integers(1, 6)),
        block_size=draw(st.sampled_from([1, 4, 16])),
        max_model_len=96,
        num_blocks=draw(st.integers(96, 150)),
        version=draw(st.sampled_from(["0.32.0", "0.33.0"])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        watermark=draw(st.sampled_from([0.0, 0.05])),
        reserve_full_isl=draw(st.booleans()),
        async_scheduling=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from([None, 7])),
        enable_prefix_caching=draw(st.integers(0, 4)) > 0,
    )
    limits = replace(limits, num_blocks=limits.num_blocks // limits.block_size + 1)
    return limits, draw(st.integers(0, 10**6))


@settings(max_examples=150, deadline=None)
@given(workloads())
def test_nothing_is_lost_or_doubled_whatever_the_load(workload):
    limits, seed = workload
    rng = Random(seed)
    scheduler = Scheduler(limits)
    depth = 2 if limits.async_scheduling else 1
    left, all_requests, delivered, queue = 14, [], {}, []

    stored, removed = [], []
    while left or scheduler.has_requests or queue:
        if left and rng.random() < 0.5:
            left -= 1
            family, prompt = rng.randrange(3), rng.randint(1, 70)
            names = [family * 1000 + block for block in range(prompt)]
            all_requests.append(
                tracked(
                    scheduler,
                    str(left),
                    prompt,
                    rng.randint(1, 20),
                    names=names,
                    max_tokens=rng.choice([None, 12]),
                    priority=rng.randint(0, 2),
                )
            )
        queue.append(scheduler.schedule())
        assert sum(queue[-1].tokens.values()) <= limits.max_num_batched_tokens
        if len(queue) == depth:
            for name in scheduler.process(queue.pop(0)).tokens:
                delivered[name] = delivered.get(name, 0) + 1
        scheduler.check()
        for event in scheduler.pool.take_events():
            (stored if isinstance(event, BlocksStored) else removed).extend(event.hashes)
        if not left and not scheduler.has_requests:
            while queue:
                scheduler.process(queue.pop(0))

    assert delivered == {one.id: one.ends_at - one.prompt for one in all_requests}
    assert scheduler.pool.free == limits.num_blocks
    assert len(stored) - len(removed) == len(scheduler.pool._hash_of)


def test_steps_beside_a_removed_block_are_reported_in_order():
    scheduler = Scheduler(replace(BASE, num_blocks=20, max_model_len=320))
    tracked(scheduler, "a", 300, output=1)
    run(scheduler)
    tracked(scheduler, "b", 160, output=1)
    run(scheduler)

    kinds = [type(event) for event in scheduler.pool.take_events()]

    assert kinds == [BlocksStored, BlocksRemoved, BlocksStored]
