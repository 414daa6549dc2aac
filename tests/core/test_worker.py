from dataclasses import replace

import numpy as np
import pytest
from leadsman.curve import DEFAULT_CURVE, KnownCurve, PrefillCurve
from leadsman.engine import EngineSettings
from leadsman.lengths import Lengths
from leadsman.records import (
    Cleared,
    Ended,
    KvEvents,
    Learned,
    LoadSample,
    Outcome,
    TokensSeen,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman.worker import NEVER, WorkerState

WORKER = WorkerId("w:8000")
SETTINGS = EngineSettings(
    model="m",
    version="0.33.0",
    max_num_batched_tokens=2048,
    max_num_seqs=2,
    max_model_len=100_000,
    block_size=16,
    num_blocks=10_000,
    async_scheduling=False,
)
CURVE = KnownCurve(curve=PrefillCurve(overhead=0.05, a=3e-5, b=1e-10), provenance="own")
GUESS = KnownCurve(curve=DEFAULT_CURVE, provenance="unmeasured")
WEIGHTS = (0.008, 3e-5, 8e-11, 2e-5, 5e-9, 0.004)


def worker(known=CURVE, lengths=None, **settings):
    settings = replace(SETTINGS, **settings)
    seen = WorkerSeen(worker=WORKER, endpoint="w:8000", settings=settings)
    return WorkerState(seen, lengths or Lengths(), known)


def request(name, prompt=4096, **fields):
    return Request(id=RequestId(name), model="m", prompt_tokens=prompt, arrived_at=0.0, **fields)


def reserve(state, asked, now, family=None):
    state.reserve(asked, state.price(asked, now), now, family)


def said(state, name, at, tokens=1):
    state.saw_tokens(TokensSeen(worker=WORKER, request=RequestId(name), at=at, tokens=tokens))


def over(state, name, at, tokens=20, outcome=Outcome.FINISHED):
    state.saw_end(
        Ended(
            worker=WORKER,
            request=RequestId(name),
            at=at,
            outcome=outcome,
            completion_tokens=tokens,
        )
    )


def served(state, number, *, slower=1.0):
    """One request alone, `slower` times as slow as was predicted."""
    name, at = f"r{number}", 10.0 * (number + 1)
    asked = request(name, 1000 + 37 * number)
    price = state.price(asked, at)
    state.reserve(asked, price, at)
    said(state, name, at + slower * price.ttft)
    over(state, name, at + slower * price.ttft + 0.3)


def test_a_price_is_the_curves_on_an_idle_worker():
    state = worker()

    price = state.price(request("r"), 1.0)

    assert price.ttft == pytest.approx(CURVE.curve.seconds(4096), rel=0.15)
    assert price.queued_requests == price.queued_tokens == 0


def test_a_request_that_can_never_be_admitted_is_priced_at_never():
    state = worker(windows=(None, None))
    whole = request("r", 6_000 * 16)

    price = state.price(whole, 1.0)

    assert price.queue_wait == NEVER


def test_what_no_context_holds_is_several_prompts_and_priced_as_their_sum():
    state = worker()

    price = state.price(request("r", 10 * 10_000 * 16), 1.0)

    assert price.queue_wait < price.own_prefill
    assert price.own_prefill > CURVE.curve.a * 10 * 10_000 * 16


def margin(state):
    """Seconds that a bound adds to a price."""
    price = state.price(request("p"), 900.0)
    return state.predict(price, 0.9, 900.0).ttft_bound - price.ttft


def test_bounds_are_as_wide_as_predictions_were_off():
    exact, surprised = worker(), worker()

    for number in range(40):
        served(exact, number)
        served(surprised, number, slower=1 + number % 3)

    assert margin(exact) < 0.05
    assert margin(surprised) > 0.15


def test_only_answers_that_finished_teach_lengths():
    lengths = Lengths()
    state = worker(lengths=lengths)
    before = lengths.remaining(0)

    for number, outcome in enumerate(set(Outcome) - {Outcome.FINISHED}):
        reserve(state, request(f"r{number}"), 1.0)
        said(state, f"r{number}", 2.0)
        over(state, f"r{number}", 3.0, tokens=9000, outcome=outcome)

    assert lengths.remaining(0) == before


@pytest.mark.parametrize("length", [10, 300, 4000])
def test_who_waits_for_an_answer_of_commanded_length_waits_as_long_as_it_takes(length):
    state = worker(GUESS, max_num_seqs=1)
    state.adopt(
        Learned(
            worker=WORKER, fingerprint=state.curves.fingerprint, samples=(), step_weights=WEIGHTS
        )
    )
    alone = state.price(request("r"), 1.0).ttft
    reserve(state, request("first", max_tokens=length, min_tokens=length), 1.0)

    price = state.price(request("r"), 1.0)

    t0, _, _, t_d, e, _ = WEIGHTS
    decoding = length * (t0 + t_d + e * (4096 + length / 2))
    assert price.ttft == pytest.approx(2 * alone + decoding, rel=0.1)


def test_an_answer_whose_length_was_commanded_teaches_nothing_of_others():
    lengths = Lengths()
    state = worker(lengths=lengths)
    before = lengths.remaining(0)

    reserve(state, request("r", max_tokens=9000, min_tokens=9000), 1.0)
    said(state, "r", 2.0)
    over(state, "r", 3.0, tokens=9000)

    assert lengths.remaining(0) == before


def test_a_family_that_says_little_is_expected_to_say_little():
    state = worker()
    for number in range(12):
        asked = request(f"r{number}")
        reserve(state, asked, 10.0 * number, family=7)
        said(state, asked.id, 10.0 * number + 1)
        over(state, asked.id, 10.0 * number + 2, tokens=5)
        strange = request(f"s{number}")
        reserve(state, strange, 10.0 * number + 3, family=8)
        said(state, strange.id, 10.0 * number + 4)
        over(state, strange.id, 10.0 * number + 9, tokens=800)

    for name, family in (("short", 7), ("long", 8)):
        reserve(state, request(name), 200.0, family=family)

    flights = state.mirror.flights
    assert flights["short"].seq.expected < flights["long"].seq.expected / 4


def test_an_answer_that_outlives_what_was_expected_is_expected_to_go_on():
    state = worker()
    state.adopt(
        Learned(
            worker=WORKER,
            fingerprint=state.curves.fingerprint,
            samples=(),
            step_weights=WEIGHTS,
        )
    )
    reserve(state, request("talks"), 1.0)
    said(state, "talks", 1.3)
    said(state, "talks", 60.0, tokens=6000)

    state.price(request("probe"), 60.1)

    seq = state.mirror.flights[RequestId("talks")].seq
    assert state.mirror.replay.generated(seq) >= 6000
    assert seq.expected > 6000


def test_unlearned_decode_steps_do_not_run_away_with_the_clock():
    state = worker(GUESS)
    for number in range(3):
        reserve(state, request(f"r{number}", 200), 1.0)
        said(state, f"r{number}", 1.2 + 0.01 * number)
    for number in range(2):
        over(state, f"r{number}", 2.0)

    price = state.price(request("probe"), 30.0)

    seq = state.mirror.flights[RequestId("r2")].seq
    assert state.mirror.replay.generated(seq) <= 30_000
    assert price.queue_wait < NEVER


def test_calibrated_steps_are_not_displaced_by_a_curve():
    state = worker(GUESS)
    learned = Learned(
        worker=WORKER, fingerprint=state.curves.fingerprint, samples=(), step_weights=WEIGHTS
    )
    state.adopt(learned)

    state.relearn(CURVE)

    assert tuple(state.weights) == pytest.approx(WEIGHTS)
    assert state.provenance == "own"


def test_what_was_learned_of_other_settings_is_not_taken_over():
    state = worker(GUESS)
    before = state.weights

    taken = state.adopt(
        Learned(
            worker=WORKER, fingerprint="another", samples=((100, 1.0),) * 9, step_weights=WEIGHTS
        )
    )

    assert not taken
    assert state.weights == before


def test_the_age_of_what_is_known_is_since_the_engine_was_heard():
    state = worker()
    unheard = state.predict(state.price(request("p"), 5.0), 0.9, 5.0)

    state.saw_load(LoadSample(worker=WORKER, at=3.0, running=0, waiting=0))

    heard = state.predict(state.price(request("p"), 5.0), 0.9, 5.0)
    assert unheard.state_age is None
    assert heard.state_age == 2.0


def test_grants_that_are_unknown_grade_nothing():
    state = worker()

    said(state, "nobody", 2.0)
    over(state, "nobody", 3.0)

    assert not state.mirror.flights
    assert state.predict(state.price(request("p"), 5.0), 0.9, 5.0).price.queue_wait < 0.1


def test_a_batch_is_a_restart_only_where_its_sequence_does_not_rise():
    state = worker()
    reserve(state, request("r", 90_000), 1.0)

    for sequence in (3, 4, 9):
        state.saw_events(
            KvEvents(worker=WORKER, sequence=sequence, engine_time=1.0, received_at=1.0, events=())
        )
    risen = state.mirror.queued_tokens
    state.saw_events(
        KvEvents(worker=WORKER, sequence=0, engine_time=2.0, received_at=2.0, events=())
    )

    assert risen == 90_000
    assert state.mirror.queued_tokens == 0


def test_keys_of_another_block_size_are_worth_nothing_here():
    state = worker()
    others = np.arange(1, 65, dtype=np.uint64)

    price = state.price(request("r", 4096, keys={64: others}), 1.0)

    assert price.cached_tokens == 0


def test_a_grant_leaves_the_floor_of_the_wait_to_the_price_that_chose_it():
    state = worker()
    state.adopt(
        Learned(
            worker=WORKER,
            fingerprint=state.curves.fingerprint,
            samples=(),
            step_weights=tuple(5 * weight for weight in WEIGHTS),
        )
    )
    for number in range(12):
        served(state, number, slower=0.2)
    for number in range(6):
        reserve(state, request(f"ahead{number}", 20_000), 500.0)

    asked = request("asked")
    price = state.price(asked, 500.0)
    floor = state._last_wait
    state.reserve(asked, price, 500.0)

    assert state.learner.prior != state.learner.weights
    assert price.queue_wait > 0
    assert state._last_wait == floor == (500.0, 0.9 * price.queue_wait)


def heard(state, sequence, *, engine_time=0.0, received_at=0.0, events=()):
    state.saw_events(
        KvEvents(
            worker=WORKER,
            sequence=sequence,
            engine_time=engine_time,
            received_at=received_at,
            events=events,
        )
    )


@pytest.mark.parametrize(
    ("sequences", "missed"),
    [([], 0), ([7], 0), ([0, 1, 2], 0), ([0, 3], 2), ([4, 5, 9, 10, 12], 4), ([8, 9, 0, 2], 1)],
)
def test_batches_between_two_that_came_are_missed_and_a_restart_misses_none(sequences, missed):
    state = worker()

    for sequence in sequences:
        heard(state, sequence)

    assert state.missed_batches == missed


def test_what_is_said_whole_to_one_who_connects_anew_misses_nothing():
    state = worker()

    heard(state, 3)
    heard(state, 90, events=(Cleared(),))
    heard(state, 92)

    assert state.missed_batches == 1


def test_events_lag_by_how_much_longer_they_took_than_the_quickest():
    state = worker()
    assert state.mirror.event_lag is None

    lags = []
    for number, (told, came) in enumerate([(50.0, 1.5), (51.0, 2.25), (52.0, 3.5)]):
        heard(state, number, engine_time=told, received_at=came)
        lags.append(state.mirror.event_lag)

    assert lags == [0.0, 0.0, 0.25]
