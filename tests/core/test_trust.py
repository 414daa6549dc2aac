from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.records import Cleared, LoadSample, Removed, Stored, Trust, WorkerSeen
from leadsman.trust import HITS, LONGEST, MISSES, CacheTrust, Finding, Lookup
from leadsman.units import RequestId

from .served import BLOCKS, SIZE, Engine, W, keys

WHOLE = SIZE * BLOCKS


@pytest.fixture(params=["usage", "counters"])
def engine(request):
    return Engine(reports_usage=request.param == "usage", counts_hits=request.param == "counters")


def test_a_cache_that_was_lost_without_a_word_is_given_up_after_two_misses(engine):
    engine.work_on()
    for seed in range(20):
        engine.serve(seed)
    assert engine.credit(15) == WHOLE

    engine.lose_its_cache()
    lost_at = engine.now
    misses = [engine.serve(seed, says=False) for seed in range(MISSES)]

    assert misses == [(WHOLE, 0)] * MISSES
    assert engine.now - lost_at <= 10.0
    assert engine.state.belief.trust is Trust.SUSPECT
    assert "less was found cached" in engine.state.belief.reason
    assert [engine.credit(seed) for seed in range(20)] == [0] * 20


def test_where_nothing_else_ran_one_miss_shows_that_the_cache_was_lost(engine):
    for seed in range(20):
        engine.serve(seed)

    engine.lose_its_cache()
    missed = engine.serve(3, says=False)

    assert missed == (WHOLE, 0)
    assert engine.state.belief.trust is Trust.SUSPECT
    assert "nothing else ran" in engine.state.belief.reason
    assert [engine.credit(seed) for seed in range(20)] == [0] * 20


def test_what_the_request_stored_that_showed_the_loss_is_credited():
    engine = Engine()
    for seed in range(4):
        engine.serve(seed)

    engine.lose_its_cache()
    engine.serve(3)

    assert engine.serve(3) == (WHOLE, WHOLE)
    assert engine.serve(2) == (0, 0)


def test_an_engine_without_events_keeps_what_it_computed_after_a_loss():
    engine = Engine(trust=Trust.BLIND)
    for seed in (1, 1, 1):
        engine.serve(seed, says=False)

    engine.lose_its_cache()

    assert engine.serve(1, says=False) == (WHOLE, 0)
    assert engine.serve(1, says=False) == (WHOLE, WHOLE)


def test_what_was_doubted_and_is_found_again_and_again_is_right_after_all(engine):
    engine.work_on()
    for seed in range(8):
        engine.serve(seed)
    engine.tell_trust(Trust.SUSPECT)
    doubted = [engine.credit(seed) for seed in range(8)]

    for seed in range(HITS):
        engine.serve(seed)

    assert doubted == [0] * 8
    assert [engine.credit(seed) for seed in range(HITS, 8)] == [WHOLE] * (8 - HITS)


def test_counters_vouch_for_what_is_in_doubt_only_to_the_token():
    engine = Engine(reports_usage=False, counts_hits=True)
    for seed in range(8):
        engine.serve(seed)
    engine.tell_trust(Trust.SUSPECT)

    for seed in range(HITS):
        engine.hits += SIZE
        engine.serve(seed)

    assert engine.credit(7) == 0


def test_a_doubt_that_was_wrong_is_lifted_and_the_stream_believed_again():
    engine = Engine()
    for seed in range(8):
        engine.serve(seed)
    engine.serve(0, found=0)
    assert engine.state.belief.trust is Trust.SUSPECT

    for seed in range(1, 1 + HITS):
        engine.serve(seed)

    assert engine.state.belief.trust is Trust.LIVE
    assert engine.credit(7) == WHOLE


def test_counters_show_a_loss_while_the_answer_is_still_written():
    engine = Engine(counts_hits=True)
    for seed in range(8):
        engine.serve(seed)

    engine.lose_its_cache()
    engine.serve(3, ends=False)

    assert engine.state.belief.trust is Trust.SUSPECT
    assert engine.credit(5) == 0
    assert engine.credit(3) == WHOLE


def test_what_counters_have_judged_usage_does_not_judge_again():
    trust = CacheTrust()
    trust.told(Trust.LIVE, "told")
    trust.found(lookup("known", 1.0), 64, 2.0)
    trust.counted(sample(2.0, 0))

    trust.admitted(lookup("missed", 3.0))
    said = [trust.counted(sample(4.0, 0)), trust.found(lookup("missed", 3.0), 0, 5.0)]

    assert said == [None, None]
    assert trust.found(lookup("next", 6.0), 0, 7.0) is Finding.DOUBTED


def test_what_is_stored_and_found_after_a_loss_is_credited_and_settles_it(engine):
    engine.work_on()
    for seed in range(10):
        engine.serve(seed)
    engine.lose_its_cache()
    for seed in range(MISSES):
        engine.serve(seed)

    again = [engine.serve(seed) for seed in (5, 6)]
    hits = [engine.serve(seed) for seed in (5, 6, 5, 6)[: HITS + 1]]

    assert again == [(0, 0)] * 2
    assert hits == [(WHOLE, WHOLE)] * (HITS + 1)
    assert engine.state.belief.trust is Trust.LIVE
    assert engine.credit(9) == 0


def test_one_miss_beside_others_is_no_loss(engine):
    engine.work_on()
    for seed in range(4):
        engine.serve(seed)
    del engine.cached[0]
    engine.serve(0)
    engine.serve(1)
    del engine.cached[2]
    engine.serve(2)

    assert engine.state.belief.trust is Trust.LIVE
    assert engine.credit(1) == WHOLE


def test_an_engine_that_says_it_is_empty_is_believed_at_once():
    engine = Engine()
    for seed in range(4):
        engine.serve(seed)
    engine.lose_its_cache()
    for seed in range(MISSES):
        engine.serve(seed, says=False)

    engine.events(Cleared())
    engine.serve(7)

    assert engine.state.belief.trust is Trust.LIVE
    assert engine.credit(0) == 0
    assert engine.credit(7) == WHOLE


def test_a_suspect_view_credits_what_requests_found_in_it():
    engine = Engine()
    for seed in range(3):
        engine.serve(seed)

    engine.tell_trust(Trust.SUSPECT)
    before = [engine.credit(seed) for seed in range(3)]
    found = engine.serve(1)

    assert before == [0, 0, 0]
    assert found == (0, WHOLE)
    assert [engine.credit(seed) for seed in range(3)] == [0, WHOLE, 0]


def test_a_block_that_was_confirmed_goes_when_the_engine_removes_it():
    engine = Engine(trust=Trust.SUSPECT)
    engine.cached[1] = True
    engine.serve(1)
    assert engine.credit(1) == WHOLE

    engine.events(Removed(keys=keys(1)[BLOCKS // 2 :]))

    assert engine.credit(1) == WHOLE // 2


def test_an_engine_without_events_is_credited_what_it_showed_to_keep():
    engine = Engine(trust=Trust.BLIND)

    first = engine.serve(1, says=False)
    second = engine.serve(1, says=False)
    third = engine.serve(1, says=False)

    assert (first, second, third) == ((0, 0), (0, WHOLE), (WHOLE, WHOLE))


def test_an_engine_without_events_holds_no_more_than_its_blocks():
    engine = Engine(trust=Trust.BLIND, num_blocks=3 * BLOCKS)

    for seed in range(5):
        engine.serve(seed, says=False)
        engine.serve(seed, says=False)

    assert [engine.credit(seed) > 0 for seed in range(5)] == [False, False, True, True, True]
    assert engine.fleet.index.blocks(W) <= 3 * BLOCKS


def test_what_a_blind_stream_says_is_not_credited():
    engine = Engine(trust=Trust.BLIND)

    engine.events(Stored(keys=keys(1)))
    blind = engine.credit(1)
    engine.tell_trust(Trust.LIVE)

    assert blind == 0
    assert engine.credit(1) == WHOLE


@pytest.mark.parametrize(
    ("trust", "credited"),
    [(Trust.LIVE, WHOLE), (Trust.SUSPECT, WHOLE), (Trust.BLIND, 0), (None, WHOLE)],
)
def test_a_worker_that_is_said_anew_is_believed_as_far_as_before(trust, credited):
    engine = Engine(trust=trust)

    settings = replace(engine.settings, num_blocks=777)
    engine.tell(WorkerSeen(worker=W, endpoint=W, settings=settings))
    engine.events(Stored(keys=keys(1)))

    assert engine.credit(1) == credited


def test_misses_of_requests_sent_before_the_doubt_say_nothing_new():
    trust = CacheTrust()
    trust.told(Trust.LIVE, "told")
    say = [trust.found(lookup(f"r{n}", 1.0), 0, 2.0 + n) for n in range(6)]

    assert say == [None, Finding.DOUBTED, None, None, None, None]


@given(st.lists(st.booleans(), max_size=40))
def test_doubt_is_two_misses_in_a_row_and_trust_three_hits(hits):
    trust, naive, run = CacheTrust(), Trust.LIVE, []
    trust.told(Trust.LIVE, "told")

    for number, is_hit in enumerate(hits):
        at = float(number)
        trust.found(lookup(f"r{number}", at), 64 * is_hit, at)
        run = [*run, is_hit]
        if run[-MISSES:] == [False] * MISSES:
            naive, run = Trust.SUSPECT, []
        elif naive is Trust.SUSPECT and run[-HITS:] == [True] * HITS:
            naive = Trust.LIVE

        assert trust.trust is naive


def lookup(request, at, first_at=None):
    return Lookup(
        request=RequestId(request),
        granted_at=at,
        first_at=at + 0.5 if first_at is None else first_at,
        believed=64,
        claimed=64,
    )


def sample(at, hits):
    return LoadSample(worker=W, at=at, running=0, waiting=0, prefix_hits=hits)


def test_counters_judge_only_what_surely_fell_between_two_pages():
    trust = CacheTrust()
    trust.told(Trust.LIVE, "told")
    trust.counted(sample(10.0, 0))

    trust.admitted(lookup("early", 9.9, 10.5))
    trust.admitted(lookup("late", 10.5, 12.5))
    said = [trust.counted(sample(at, 0)) for at in (11.0, 12.0, 12.0 + LONGEST, 30.0)]

    assert said == [None] * 4
    assert trust.doubt is None


@given(st.integers(0, 1000))
def test_hits_from_elsewhere_never_make_a_miss(foreign):
    trust = CacheTrust()
    trust.told(Trust.LIVE, "told")

    for number in range(6):
        at = 10.0 * number
        trust.counted(sample(at, number * (64 + foreign)))
        trust.admitted(lookup(f"r{number}", at + 1, at + 2))

    assert trust.trust is Trust.LIVE
