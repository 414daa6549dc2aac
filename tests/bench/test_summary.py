from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_bench.report import groups, lines, percent, seconds, table, worst
from leadsman_bench.summary import Counts, Graded, shares, summarise


def graded(*, predicted=1.0, actual=1.0, wait=0.0, **more):
    return Graded(
        **{
            "request": "r",
            "worker": "w",
            "at": 0.0,
            "prompt_tokens": 1000,
            "credited": 512,
            "reused": 512,
            **more,
        },
        predicted=predicted,
        actual=actual,
        predicted_wait=wait,
    )


@pytest.mark.parametrize(
    ("predicted", "actual", "near"),
    [
        pytest.param(0.01, 0.11, True, id="a-tenth-of-a-second-is-near"),
        pytest.param(0.01, 0.12, False, id="more-is-not"),
        pytest.param(8.5, 10.0, True, id="fifteen-percent-of-the-real-time-is-near"),
        pytest.param(11.6, 10.0, False, id="sixteen-are-not"),
    ],
)
def test_near_is_a_tenth_of_a_second_or_fifteen_percent(predicted, actual, near):
    one = graded(predicted=predicted, actual=actual)

    assert one.within_relative is near


def test_a_cache_estimate_without_a_report_is_neither_right_nor_wrong():
    found = shares([graded(reused=None), graded(reused=512), graded(reused=496)])

    assert found.cache_mismatch == 0.5


def test_the_queue_wait_is_what_the_own_prefill_leaves():
    one = graded(predicted=5.0, wait=4.0, actual=6.5, bound=5.0)

    assert one.actual_wait == 5.5
    assert one.kept_bound is False
    assert one.same_side is False


def test_unbounded_requests_do_not_count_as_kept():
    found = shares([graded(), graded(bound=5.0)])

    assert found.bound_kept == 1.0
    assert found.same_side == 1.0


def test_no_requests_have_no_shares():
    found = shares([])

    assert found.requests == 0
    assert set(msgspec.structs.astuple(found)) == {0, None}


@given(st.lists(st.floats(0, 100), min_size=1))
def test_the_shares_count_errors_either_way(errors):
    late = shares([graded(predicted=0.0, actual=error) for error in errors])

    early = shares([graded(predicted=error, actual=0.0) for error in errors])

    assert late.within_1s == early.within_1s == sum(e <= 1 for e in errors) / len(errors)
    assert late.within_10s == early.within_10s == sum(e <= 10 for e in errors) / len(errors)


def test_a_summary_accounts_for_every_request():
    counts = Counts(workers=2, refused=Counter(would_wait_too_long=3), lost=2, unpriced=1)

    found = summarise([graded(worker="a", load=0.4), graded(worker="b", load=1.4)], counts)

    assert found.requests == 8
    assert found.graded == 2
    assert found.refused_by_reason == {"would_wait_too_long": 3}
    assert set(found.by_worker) == {"a", "b"}
    assert set(found.by_load) == {"0-0.5", "1.3-up"}


def test_the_json_has_the_promised_keys():
    found = msgspec.to_builtins(summarise([graded()], Counts(workers=1, refused=Counter())))

    assert {
        "within_1s", "within_10s", "within_relative", "median_error_s", "p90_error_s",
        "cache_mismatch", "bound_kept", "requests", "workers",
    } <= set(found)  # fmt: skip


def test_a_figure_stands_beside_its_goal():
    many = [graded(), *(graded(predicted=9.0) for _ in range(9))]

    found = {
        line.what: line for line in lines(summarise(many, Counts(workers=1, refused=Counter())))
    }

    assert found["predictions within 1 s"].value == "10.00 %"
    assert found["predictions within 1 s"].met is False
    assert found["predictions within 10 s"].met is True
    assert found["bounds kept"].met is None


def test_the_worst_come_first():
    rows = [graded(request="small"), graded(request="large", actual=50.0)]

    drawn = worst(rows, 1)

    assert list(drawn.columns[0].cells) == ["large"]


def test_tables_hold_every_line_and_group():
    summary = summarise([graded()], Counts(workers=1, refused=Counter(overloaded=1)))

    drawn, by_worker = table("run", lines(summary)), groups("workers", summary.by_worker)

    assert drawn.row_count == len(lines(summary))
    assert list(by_worker.columns[0].cells) == ["w"]


def test_times_and_shares_read_as_people_say_them():
    assert [seconds(None), seconds(0.25), seconds(2.5)] == ["-", "250 ms", "2.50 s"]
    assert [percent(None), percent(0.123)] == ["-", "12.30 %"]
