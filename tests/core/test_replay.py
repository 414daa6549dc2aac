import pytest
from hypothesis import event, given
from hypothesis import settings as profile
from hypothesis import strategies as st
from leadsman.engine import EngineSettings
from leadsman.replay import Replay
from leadsman.sequence import Hit, Seq

from .naive_scheduler import NaiveRequest, NaiveScheduler
from .plain import names_of, plain

LONGEST = 40
STEP = 1.0


@st.composite
def engines(draw, **fixed):
    block_size, slots = draw(st.sampled_from([2, 4, 8])), draw(st.integers(1, 5))
    whole = -(-LONGEST // block_size)
    chunked = draw(st.booleans())
    budget = max(slots, draw(st.sampled_from([4, 8, 16, 64]))) if chunked else 64
    drawn = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": slots,
        "block_size": block_size,
        "num_blocks": draw(st.integers(whole, 5 * whole)),
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": draw(st.sampled_from([None, 3, 6])),
        "async_scheduling": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])),
        "reserve_full_isl": draw(st.booleans()),
        "aligns_chunks": chunked and draw(st.booleans()),
    }
    return engine(**drawn | fixed)


def engine(**settings):
    usual = {
        "model": "m",
        "version": "0.33.0",
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "max_model_len": LONGEST,
        "block_size": 4,
        "num_blocks": 100,
        "async_scheduling": False,
    }
    return EngineSettings(**usual | settings)


@st.composite
def arrivals(draw, *, families=None):
    """Requests in the order of their arrival; with `families`, prompts share prefixes."""
    sizes = st.tuples(st.integers(1, 28), st.integers(1, 12))
    gaps = st.sampled_from([0.0, 0.0, 0.3, 1.3, 4.1])
    requests, at = [], 0.1
    for number, (prompt, output) in enumerate(draw(st.lists(sizes, min_size=1, max_size=8))):
        at += draw(gaps)
        family = number if families is None else draw(st.sampled_from(families))
        request = NaiveRequest(
            id=f"r{number}",
            prompt=tuple((family, token) for token in range(prompt)),
            output=output,
            visible_at=at,
            priority=draw(st.integers(0, 2)),
            arrival=number,
        )
        requests.append(request)
    return requests


def replay_of(settings, requests, *, believes=False):
    """A replay that has them all queued; their ends are certain, or only believed."""
    replay = Replay(settings)
    if believes:
        replay = replay.fork()
    for request in requests:
        seq = Seq(request.id, len(request.prompt), request.visible_at)
        seq.priority, seq.arrival = request.priority, request.arrival
        if believes:
            seq.expected = request.output
        else:
            seq.limit = request.output
        replay.add(seq)
    return replay


class SideBySide:
    """Runs a replay and the naive scheduler over the same arrivals, step by step."""

    def __init__(self, settings, requests, *, believes=False):
        self.naive = NaiveScheduler(settings)
        self.replay = replay_of(settings, requests, believes=believes)
        self.outputs = {request.id: request.output for request in requests}
        self.preemptions = 0
        self._todo = list(requests)
        self._before = None

    def step(self):
        """One step of both: what each did, or None where both are through."""
        replay, naive = self.replay, self.naive
        if not replay.has_work:
            if not replay.waiting:
                naive.drain()
                assert not naive.running + naive.waiting + self._todo
                return None
            replay.wake()
            naive.drain()
            self._before = None
        start = visible = replay.clock
        if replay.settings.async_scheduling and self._before is not None:
            visible = self._before
        while self._todo and self._todo[0].visible_at <= visible:
            naive.add(self._todo.pop(0))
        theirs = naive.step(visible)
        ours = replay.step(lambda seq: Hit(*theirs.lookups[seq.id]))
        replay.ran(ours, start + STEP)
        self._before = start
        self.preemptions += len(theirs.preempted)
        return self._ours(ours), self._theirs(theirs)

    def _ours(self, step):
        decoding = self.replay.decoding.items()
        return {
            "prefills": [(seq.id, tokens) for seq, tokens in step.chunks],
            "admitted": [seq.id for seq in step.admitted],
            "finals": sorted(seq.id for seq in step.finals),
            "decodes": step.features.decodes,
            "generated": {name: self.replay.generated(seq) for name, seq in decoding},
        }

    def _theirs(self, step):
        known = {
            request.id: request.generated + request.placeholders
            for request in self.naive.running
            if request.is_decoding
        }
        return {
            "prefills": step.prefills,
            "admitted": step.admitted,
            "finals": sorted(step.finals),
            "decodes": len(step.decodes),
            "generated": {name: n for name, n in known.items() if n < self.outputs[name]},
        }


@profile(max_examples=500)
@given(engines(), arrivals(), st.booleans())
def test_every_step_is_the_engines(settings, requests, believes):
    both = SideBySide(settings, requests, believes=believes)

    while (step := both.step()) is not None:
        ours, theirs = step

        assert ours == theirs
        assert both.replay.free == both.naive.free
    event("with preemption" if both.preemptions else "without preemption")


@given(engines(num_blocks=400), arrivals(families="abc"))
def test_every_step_is_the_engines_where_prompts_share_prefixes(settings, requests):
    both = SideBySide(settings, requests)

    while (step := both.step()) is not None:
        ours, theirs = step

        assert ours == theirs


def moved(replay):
    """All that a step changes, in values."""
    return {
        "tick": replay.tick,
        "clock": pytest.approx(replay.clock),
        "context": replay.context,
        "free": replay.free,
        "unused": replay.unused,
        "lost": replay.lost,
        "waiting": [seq.id for seq in replay.waiting],
        "prefilling": [(seq.id, seq.computed) for seq in replay.prefilling],
        "decoding": {name: replay.generated(seq) for name, seq in replay.decoding.items()},
        "ended": [(seq.id, length) for seq, length in replay.ended],
    }


def one_step(replay, lookup):
    if not replay.has_work:
        replay.wake()
    step = replay.step(lookup)
    replay.ran(step, replay.clock + STEP)
    return step


@profile(max_examples=500)
@given(engines(), arrivals(), st.randoms())
def test_skipping_is_stepping_faster(settings, requests, rng):
    size = settings.block_size
    found = {r.id: rng.randint(0, (len(r.prompt) - 1) // size) * size for r in requests}
    fast, slow = (replay_of(settings, requests, believes=True) for _ in "ab")

    while fast.has_work or fast.waiting:
        step = one_step(fast, lambda seq: Hit(found[seq.id], 0))
        one_step(slow, lambda seq: Hit(found[seq.id], 0))
        arrival = fast.next_arrival
        longest = 1 << 40 if arrival is None else int((arrival - fast.clock) / STEP) - 1
        skipped = fast.skip(step, longest)
        if skipped is not None:
            fast.ran(skipped, fast.clock + STEP * skipped.repeats)
            steps = [
                one_step(slow, lambda seq: Hit(found[seq.id], 0)) for _ in range(skipped.repeats)
            ]
            summed = [sum(column) for column in zip(*(s.features for s in steps), strict=True)]

            assert list(skipped.features) == pytest.approx(summed, rel=1e-9)
        assert moved(fast) == moved(slow)


UNCOMPARED = {"settings", "decoding", "running", "_rules", "accepts", "has_overdue"}
"""A fork may note in who decodes when it expects its end; who asks for the overdue tidies up."""


@given(engines(), arrivals(), st.integers(0, 12))
def test_a_fork_runs_on_without_moving_what_it_came_from(settings, requests, steps):
    replay = replay_of(settings, requests)
    for _ in range(steps):
        if replay.has_work or replay.waiting:
            one_step(replay, lambda _: Hit(0, 0))
    names = [name for name in names_of(Replay) if name not in UNCOMPARED]
    before = {name: plain(getattr(replay, name)) for name in names}
    decoding = list(replay.decoding)

    fork = replay.fork()
    while fork.has_work or fork.waiting:
        fork.skip(one_step(fork, lambda _: Hit(0, 0)), 3)

    assert list(replay.decoding) == decoding
    assert {name: plain(getattr(replay, name)) for name in names} == before


def counted(replay):
    """Run to the end; returns the calls that it took and the steps that they were."""
    calls = steps = 0
    while replay.has_work or replay.waiting:
        step = one_step(replay, lambda _: Hit(0, 0))
        calls, steps = calls + 1, steps + 1
        skipped = replay.skip(step, 1 << 40)
        if skipped is not None:
            replay.ran(skipped, replay.clock + STEP * skipped.repeats)
            calls, steps = calls + 1, steps + skipped.repeats
    return calls, steps


@pytest.mark.parametrize("aligns_chunks", [False, True])
def test_a_million_tokens_take_as_few_calls_as_a_thousand(aligns_chunks):
    settings = engine(max_num_batched_tokens=257, num_blocks=300_000, aligns_chunks=aligns_chunks)
    requests = [NaiveRequest(id=str(n), prompt=range(n), output=9) for n in (1_000, 1_000_000)]

    short, long = (counted(replay_of(settings, [request], believes=True)) for request in requests)

    assert long[1] > 3_000
    assert long[0] == short[0]


def test_decodes_are_skipped_while_the_head_of_the_queue_waits_for_blocks():
    settings = engine(num_blocks=10, max_model_len=40)
    first = NaiveRequest(id="first", prompt=range(16), output=24)
    second = NaiveRequest(id="second", prompt=range(28), output=1)
    replay = replay_of(settings, [first, second], believes=True)

    calls, steps = counted(replay)

    assert steps == 26
    assert calls <= 8


def run_until(replay, condition):
    while not condition(replay):
        one_step(replay, lambda _: Hit(0, 0))


def test_a_preempted_request_still_says_as_much_as_it_was_going_to():
    settings = engine(num_blocks=10, max_num_batched_tokens=64)
    requests = [NaiveRequest(id=name, prompt=range(14), output=12) for name in "ab"]
    replay = replay_of(settings, requests)
    run_until(replay, lambda r: r.waiting and r.tick)
    victim = replay.waiting[0]
    had = victim.generated

    run_until(replay, lambda r: not r.has_work and not r.waiting)

    assert victim.id == "b"
    assert 0 < had < 12
    assert victim.generated == 12


def test_an_arrival_is_seen_a_step_later_by_an_asynchronous_engine():
    late = NaiveRequest(id="late", prompt=range(3), output=2, visible_at=0.5)
    first = NaiveRequest(id="first", prompt=range(3), output=9)
    admitted = {}

    for is_async in (False, True):
        replay = replay_of(engine(async_scheduling=is_async), [first, late])
        run_until(replay, lambda r: "late" in r.decoding)
        admitted[is_async] = replay.tick

    assert admitted == {False: 2, True: 3}


def test_a_slot_is_free_a_step_later_on_an_asynchronous_engine():
    requests = [
        NaiveRequest(id=name, prompt=range(3), output=o)
        for name, o in zip("abc", (9, 3, 3), strict=True)
    ]
    admitted = {}

    for is_async in (False, True):
        replay = replay_of(engine(async_scheduling=is_async, max_num_seqs=2), requests)
        run_until(replay, lambda r: "c" in r.decoding)
        admitted[is_async] = replay.tick

    assert admitted == {False: 4, True: 5}


def test_an_urgent_request_on_its_way_does_not_hold_up_those_that_are_there():
    urgent = NaiveRequest(id="urgent", prompt=range(3), output=2, visible_at=50.0, priority=0)
    patient = NaiveRequest(id="patient", prompt=range(3), output=2, priority=5)
    replay = replay_of(engine(policy="priority"), [urgent, patient])

    step = one_step(replay, lambda _: Hit(0, 0))

    assert [seq.id for seq in step.admitted] == ["patient"]


def test_a_preempted_request_gives_back_the_block_that_it_was_given_in_the_same_step():
    settings = engine(
        policy="priority", max_num_batched_tokens=4, num_blocks=6, reserve_full_isl=False
    )
    patient = NaiveRequest(id="patient", prompt=range(4), output=9, priority=2)
    urgent = NaiveRequest(id="urgent", prompt=range(16), output=2, visible_at=1.0)
    replay = replay_of(settings, [patient, urgent])

    run_until(replay, lambda r: r.tick == 6)

    assert [seq.id for seq in replay.waiting] == ["patient"]
    assert replay.free == 6 - 4


def test_the_watermark_is_a_share_of_all_blocks_the_null_block_too():
    requests = [NaiveRequest(id=name, prompt=range(16), output=4) for name in "ab"]
    admitted = {}

    for blocks in (9, 10):
        replay = replay_of(engine(num_blocks=blocks, watermark=0.1), requests)
        one_step(replay, lambda _: Hit(0, 0))
        one_step(replay, lambda _: Hit(0, 0))
        admitted[blocks] = len(replay.decoding) + len(replay.prefilling)

    assert admitted == {9: 1, 10: 2}
