from itertools import islice
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.residuals import unit
from leadsman_bench.chance import Chance, best_point, odds, one_second, share_hit
from leadsman_bench.conversation import bundled_model, draw, generate
from leadsman_bench.offers import offers
from leadsman_bench.scenario import workers
from leadsman_bench.simulate import Grades, LivePicker
from leadsman_bench.traces import scaled
from leadsman_bench.undecided import rank, undecided_length
from leadsman_bench.virtual import VirtualFleet

MODEL = bundled_model()


def some_offers(count, *, per_s=2.0):
    rows = generate(MODEL, requests_per_s=per_s, seed=1)
    short = scaled(islice(rows, count), piece_tokens=64)
    sizes = [spec.settings.block_size for spec in workers()]
    return list(offers(short, block_sizes=sizes, rng=Random(1)))


OFFERS = some_offers(3000)


def run(onlooker, *, count=120, per_s=12.0):
    grades, picker = Grades(), LivePicker(Budget(), Random(1))
    specs = workers()[2:4]
    fleet = VirtualFleet(specs, picker, grades, seed=1, onlooker=onlooker)
    for _ in fleet.run(iter(some_offers(count, per_s=per_s)), iter(())):
        pass
    return grades


@given(st.floats(0, 1))
def test_a_rank_is_where_its_quantile_is_drawn(probability):
    quantiles = [1.0, 4.0, 5.0, 11.0, 90.0]

    found = rank(quantiles, draw(quantiles, probability))

    assert found == pytest.approx(probability, abs=1e-9)


@pytest.mark.parametrize("generated", [0, 150, 400])
def test_a_real_answer_ranks_among_draws_of_it_as_they_do(generated):
    rng = Random(7)
    running = [offer for offer in OFFERS if offer.output_tokens > generated]

    ranks = [_rank_among_draws(offer, generated, rng) for offer in running]

    assert len(ranks) > 500
    assert fmean(ranks) == pytest.approx(0.5, abs=3 / (12 * len(ranks)) ** 0.5)
    assert fmean(r <= 0.25 for r in ranks) == pytest.approx(0.25, abs=0.06)


def _rank_among_draws(offer, generated, rng):
    drawn = [undecided_length(MODEL, offer, generated, rng) for _ in range(15)]
    below = sum(length < offer.output_tokens for length in drawn)
    same = sum(length == offer.output_tokens for length in drawn)
    return (below + rng.random() * (same + 1)) / 16


@given(st.integers(0, 4000), st.integers(0, 2**16))
def test_a_draw_goes_on_and_keeps_its_cap(generated, seed):
    offer = OFFERS[seed % len(OFFERS)]
    cap = offer.request.max_tokens

    found = undecided_length(MODEL, offer, generated, Random(seed))

    assert found > generated
    assert cap is None or found <= max(cap, generated + 1)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12), st.floats(0, 100))
def test_no_point_hits_more_draws_than_the_best(draws, other):
    for reach in (one_second, unit):
        best = share_hit(best_point(draws, reach), draws, lambda x, r=reach: r(x) + 1e-9)

        assert best >= share_hit(other, draws, reach)


@pytest.fixture(scope="module")
def looked_on():
    chance = Chance(MODEL, every=4, seed=1)
    return run(chance), chance.sampled


def test_looking_on_changes_nothing(looked_on):
    seen, _ = looked_on

    unseen = run(None)

    assert [one.grade for one in seen.graded] == [one.grade for one in unseen.graded]


def test_what_comes_ranks_among_what_might_have_come_as_chance_has_it(looked_on):
    _, sampled = looked_on

    ranks = [sum(draw < one.stream.ttft for draw in one.draws) / len(one.draws) for one in sampled]

    assert len(ranks) == 30
    assert fmean(ranks) == pytest.approx(0.5, abs=0.16)
    assert 0 < fmean(rank in (0.0, 1.0) for rank in ranks) < 0.25


def test_a_perfect_forecaster_hits_as_often_as_he_expects(looked_on):
    _, sampled = looked_on

    found = odds(sampled)

    assert found.decisions == 30
    assert found.within_relative_ours <= found.within_relative_best
    assert found.within_relative_expected == pytest.approx(found.within_relative_best, abs=0.2)
