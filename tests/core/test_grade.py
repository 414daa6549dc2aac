"""How predictions have done, for the served and for the refused."""

import json
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.grade import Bounded, Cell, Figures, Grade, Summary
from leadsman.hindsight import Timeline, hindsight
from leadsman.units import RequestId, WorkerId

seconds = st.floats(0, 300)
arrivals = st.lists(st.tuples(st.floats(0, 60), st.floats(0.01, 8)), min_size=2, max_size=25).map(
    sorted
)


def grade(predicted=1.0, actual=1.0, **more):
    more = {"credited": 0, "reused": 0, "block_size": 16} | more
    return Grade(
        request=RequestId("r"),
        worker=WorkerId("w"),
        model="m",
        prompt_tokens=1000,
        predicted=predicted,
        actual=actual,
        **more,
    )


def summary_of(*grades):
    summary = Summary()
    for one in grades:
        summary.add(one)
    return summary


def starts_in_order(requests):
    free, starts = 0.0, []
    for arrived, work in requests:
        starts.append(max(arrived, free))
        free = starts[-1] + work
    return starts


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=60))
def test_the_figures_are_those_of_a_plain_count(pairs):
    summary = summary_of(*(grade(predicted, actual) for predicted, actual in pairs))

    figures = summary.figures()

    errors = [abs(predicted - actual) for predicted, actual in pairs]
    assert figures["requests"] == len(pairs)
    assert figures["within_1s"] == sum(e <= 1 for e in errors) / len(pairs)
    assert figures["within_10s"] == sum(e <= 10 for e in errors) / len(pairs)
    assert figures["within_relative"] == sum(
        e <= max(0.1, 0.15 * actual) for e, (_, actual) in zip(errors, pairs, strict=True)
    ) / len(pairs)
    assert figures["median_error_s"] == pytest.approx(median(errors))
    assert figures["p90_error_s"] == pytest.approx(float(np.quantile(errors, 0.9)))


def test_the_keys_are_those_that_every_report_has():
    figures = summary_of(grade()).figures()

    keys = set(json.loads(json.dumps(figures)))

    assert keys == {
        "within_1s",
        "within_10s",
        "within_relative",
        "median_error_s",
        "p90_error_s",
        "cache_mismatch",
        "bound_kept",
        "requests",
    }
    assert keys == set(Figures.__annotations__)


def test_nothing_graded_has_nothing_to_say():
    figures = Summary().figures()

    assert figures.pop("requests") == 0
    assert set(figures.values()) == {None}


@pytest.mark.parametrize(
    ("predicted", "actual", "cell"),
    [
        (0.2, 3.0, Cell.IN_TIME),
        (3.0, 30.0, Cell.UNDERPREDICTED),
        (6.0, 4.0, Cell.FALSE_ALARM),
        (9.0, 30.0, Cell.LATE),
        (5.0, 5.0, Cell.IN_TIME),
    ],
)
def test_what_counts_is_the_side_of_the_bound(predicted, actual, cell):
    bounded = Bounded(bound=5.0, predicted=predicted, actual=actual)

    assert bounded.cell is cell


@pytest.mark.parametrize(
    ("credited", "reused", "matched"),
    [(0, 0, True), (1024, 1024, True), (1024, 1039, True), (1024, 1040, False), (1024, None, None)],
)
def test_a_cache_estimate_matches_to_the_block(credited, reused, matched):
    graded = grade(credited=credited, reused=reused)

    assert graded.cache_matched is matched


def test_unknown_reuse_is_no_mismatch():
    known = grade(credited=160, reused=0)
    unknown = grade(credited=160, reused=None)

    summary = summary_of(known, unknown, unknown)

    assert summary.figures()["cache_mismatch"] == 1.0


def test_the_bound_is_kept_by_those_who_were_admitted_on_it():
    kept = grade(bounded=Bounded(bound=5.0, predicted=2.0, actual=4.0))
    broken = grade(bounded=Bounded(bound=5.0, predicted=2.0, actual=6.0))
    unbounded = grade()
    probe = grade(bounded=Bounded(bound=5.0, predicted=9.0, actual=8.0, set_aside=True))

    summary = summary_of(kept, kept, kept, broken, unbounded, probe)

    assert summary.figures()["bound_kept"] == 0.75
    assert summary.underprediction_share == 0.2


def test_a_probe_stands_for_all_refusals_that_were_not_probed():
    served = grade(bounded=Bounded(bound=5.0, predicted=2.0, actual=4.0))
    probe = grade(
        bounded=Bounded(bound=5.0, predicted=9.0, actual=4.0, set_aside=True), weight=20.0
    )

    summary = summary_of(*[served] * 80, probe)

    assert summary.cells()[Cell.FALSE_ALARM] == 20.0
    assert summary.false_alarm_share == 0.2


def test_refusals_are_counted_as_hindsight_judges_them():
    summary = summary_of(grade(bounded=Bounded(bound=5.0, predicted=2.0, actual=4.0)))

    for judged in (True, False, False, None):
        summary.add_refused(would_have_been_in_time=judged)

    assert summary.cells() == {
        Cell.IN_TIME: 1.0,
        Cell.UNDERPREDICTED: 0.0,
        Cell.FALSE_ALARM: 1.0,
        Cell.LATE: 2.0,
    }


@given(arrivals, st.data())
def test_hindsight_is_never_wrong_where_it_speaks(requests, data):
    refused = data.draw(st.integers(0, len(requests) - 1))
    allowed = data.draw(st.floats(0, 60))
    arrived = requests[refused][0] + 1e-6
    with_it = sorted([*requests, (arrived, 1.0)])
    real_wait = starts_in_order(with_it)[with_it.index((arrived, 1.0))] - arrived
    timeline = Timeline()
    for (at, _), start in zip(requests, starts_in_order(requests), strict=True):
        timeline.add(at, start - at)

    judged = hindsight(timeline, refused_at=arrived, allowed=allowed)

    close = abs(real_wait - allowed) < 1e-6
    assert judged is None or close or judged == (real_wait <= allowed)


@given(arrivals, st.floats(0, 70))
def test_the_least_wait_is_never_above_the_most(requests, at):
    timeline = Timeline()
    for (arrived, _), start in zip(requests, starts_in_order(requests), strict=True):
        timeline.add(arrived, start - arrived)

    least, most = timeline.least_wait(at), timeline.most_wait(at)

    assert least >= 0
    assert most is None or least <= most + 1e-9


def test_a_refusal_beside_an_idle_moment_was_a_false_alarm():
    timeline = Timeline()
    timeline.add(0.0, 0.0)
    timeline.add(10.5, 0.0)

    judged = hindsight(timeline, refused_at=10.0, allowed=5.0)

    assert judged is True


def test_a_refusal_behind_a_long_queue_was_right():
    timeline = Timeline()
    timeline.add(0.0, 40.0)
    timeline.add(20.0, 50.0)

    judged = hindsight(timeline, refused_at=10.0, allowed=5.0)

    assert judged is False


def test_before_anything_came_after_it_a_refusal_is_not_judged():
    timeline = Timeline()
    timeline.add(0.0, 1.0)

    judged = hindsight(timeline, refused_at=10.0, allowed=5.0)

    assert judged is None


@given(arrivals, st.floats(0, 70))
def test_forgetting_the_past_changes_no_later_judgement(requests, at):
    full, short = Timeline(), Timeline()
    for (arrived, _), start in zip(requests, starts_in_order(requests), strict=True):
        full.add(arrived, start - arrived)
        short.add(arrived, start - arrived)

    short.forget_before(at)

    assert short.least_wait(at) == full.least_wait(at)
    assert short.most_wait(at) == full.most_wait(at)


def test_a_negative_wait_is_refused():
    timeline = Timeline()

    with pytest.raises(ValueError, match=r"-1.0 s is negative"):
        timeline.add(3.0, -1.0)
