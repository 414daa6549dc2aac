"""Refusals judged by a database, held against the core's own hindsight, one refusal at a time."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman.hindsight import Timeline, hindsight
from leadsman_bench.seeing.grade import KEPT, grade
from leadsman_bench.seeing.records import open_records
from leadsman_bench.seeing.refusals import wilson
from leadsman_extproc.columns import Decided, Served

WORKERS = ("a:1", "b:1")
moments = st.integers(0, 4000).map(lambda ms: ms / 64)
served = st.tuples(st.sampled_from(WORKERS), moments, moments)
refused = st.tuples(
    moments,
    st.none() | moments,
    st.none() | moments,
    st.tuples(*[st.tuples(moments, moments) for _ in WORKERS]),
)


def nothing(kind):
    return dict.fromkeys(kind.__struct_fields__)


def outcome(worker, sent, waited, **other):
    told = {"request": f"{worker}{sent}", "worker": worker, "model": "m", "weight": 1.0}
    told |= {"sent_at": sent + 5, "ended_at": sent + 105, "time": sent + 100, "prompt_tokens": 9}
    told |= {"predicted_ttft": 1.5, "predicted_queue_wait": 1.0, "ttft": waited + 0.5}
    return Served(**nothing(Served) | told | other)


def refusal(at, queue_wait, ttft, prices):
    candidates = [
        {"price": {"worker": worker, "queue_wait": wait, "own_prefill": own}}
        for worker, (wait, own) in zip(WORKERS, prices, strict=True)
    ]
    told = {"request": f"refused at {at}", "kind": "refused", "model": "m", "time": at}
    told |= {"allowed_queue_wait": queue_wait, "allowed_ttft": ttft}
    return Decided(**nothing(Decided) | told | {"decision": {"candidates": candidates}})


def judged(folder, outcomes, decisions):
    for name, rows in (("outcomes", outcomes), ("decisions", decisions)):
        lines = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        (folder / f"{name}.jsonl").write_bytes(lines)
    with open_records([folder], threads=1, keep=KEPT) as database:
        report = grade(database)
    return report.hindsight, report.probed


def by_core(outcomes, one):
    at, queue_wait, ttft, prices = one
    worker = min(range(len(WORKERS)), key=lambda index: sum(prices[index]))
    bounds = [
        bound
        for bound in (queue_wait, None if ttft is None else ttft - prices[worker][1])
        if bound is not None
    ]
    if not bounds:
        return "no bound"
    timeline = Timeline()
    for name, sent, waited in outcomes:
        if name == WORKERS[worker]:
            timeline.add(sent, waited)
    return hindsight(timeline, refused_at=at, allowed=min(bounds))


def distinct(one):
    return sum(one[3][0]) != sum(one[3][1])


@settings(max_examples=15)
@given(
    st.lists(served, max_size=12, unique_by=lambda one: one[:2]),
    st.lists(refused.filter(distinct), max_size=8, unique_by=lambda one: one[0]),
)
def test_the_database_judges_each_refusal_as_the_core_does(tmp_path_factory, outcomes, refusals):
    expected = [by_core(outcomes, one) for one in refusals]

    hindsight_, _ = judged(
        tmp_path_factory.mktemp("records"),
        [*(outcome(*one) for one in outcomes), outcome("c:1", 0.0, 0.0)],
        [refusal(*one) for one in refusals],
    )

    assert hindsight_.false_alarms == expected.count(True)
    assert hindsight_.right == expected.count(False)
    assert hindsight_.asked == len(expected) - expected.count("no bound")


def test_what_was_let_in_to_see_is_judged_by_what_came(tmp_path):
    probe = {"set_aside": "would_wait_too_long", "allowed_queue_wait": 4.0}
    outcomes = [
        outcome("a:1", 1.0, 3.0, **probe),
        outcome("a:1", 2.0, 5.0, **probe),
        outcome("a:1", 3.0, 9.0, **probe),
        outcome("a:1", 4.0, 9.0, allowed_queue_wait=4.0),
        outcome("a:1", 5.0, 9.0, set_aside="overloaded"),
    ]

    _, probed = judged(tmp_path, outcomes, [])

    assert (probed.false_alarms, probed.right, probed.asked) == (1, 2, 3)
    assert probed.share == pytest.approx(1 / 3)


def test_without_refusals_nothing_is_claimed(tmp_path):
    hindsight_, probed = judged(tmp_path, [outcome("a:1", 1.0, 3.0)], [])

    assert (hindsight_.share, hindsight_.interval, probed.share) == (None, None, None)


@pytest.mark.parametrize(
    ("hits", "tries", "least", "most"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (81, 263, 0.2553, 0.3662)],
)
def test_wilsons_interval_is_the_published_one(hits, tries, least, most):
    """Source: R. G. Newcombe, Statistics in Medicine 17, 1998, table I, for 81 of 263."""
    assert wilson(hits, tries) == pytest.approx((least, most), abs=5e-5)


@given(st.integers(1, 500), st.data())
def test_an_interval_holds_the_share_that_was_seen(tries, data):
    hits = data.draw(st.integers(0, tries))

    least, most = wilson(hits, tries)

    assert 0.0 <= least <= hits / tries <= most <= 1.0 or min(hits, tries - hits) == 0
