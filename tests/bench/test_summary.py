from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from leadsman.grade import Bounded, Grade
from leadsman_bench.report import groups, lines, percent, table, worst
from leadsman_bench.summary import Counts, Graded, shares, summarise
from leadsman_extproc.explaining import seconds


def graded(*, predicted=1.0, actual=1.0, **more):
    grade = Grade(
        **{
            "request": "r",
            "worker": "w",
            "model": "m",
            "prompt_tokens": 1000,
            "credited": 512,
            "reused": 512,
            "block_size": 16,
            **{key: more.pop(key) for key in ("request", "worker", "bounded") if key in more},
        },
        predicted=predicted,
        actual=actual,
    )
    extra = {"at": 0.0, "predicted_wait": 0.0, "actual_wait": 0.0, "ahead": 0, "curve": "own"}
    return Graded(grade=grade, **(extra | more))


def test_a_verdict_is_right_on_either_side_of_the_bound():
    kept = Bounded(bound=5.0, predicted=2.0, actual=4.0)
    broken = Bounded(bound=5.0, predicted=2.0, actual=6.0)

    found = shares([graded(bounded=kept), graded(bounded=broken), graded()])

    assert found.bound_kept == 0.5
    assert found.same_side == 0.5


def test_wait_and_prefill_add_up_to_the_first_token():
    one = graded(predicted=3.0, actual=5.0, predicted_wait=1.0, actual_wait=4.5)

    assert one.predicted_prefill == 2.0
    assert one.actual_prefill == 0.5


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
