"""Grades of recorded outcomes, held against the core's own summary of the same."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman.grade import Bounded, Grade, Summary
from leadsman.records import Outcome
from leadsman_bench.seeing import grade_command
from leadsman_bench.seeing.grade import KEPT, Asked, grade
from leadsman_bench.seeing.made import make
from leadsman_bench.seeing.records import NoRecordsError, open_records
from leadsman_extproc.columns import Served
from leadsman_extproc.parquet import as_parquet

seconds = st.floats(0.001, 60.0)
tokens = st.integers(0, 3000)


@st.composite
def outcomes(draw):
    wait, own = draw(seconds), draw(seconds)
    return Served(
        request=draw(st.uuids()).hex,
        worker=draw(st.sampled_from(["a:1", "b:1"])),
        model=draw(st.sampled_from(["m", "n"])),
        prompt_tokens=draw(st.integers(3001, 300_000)),
        sent_at=1.0,
        ended_at=2.0,
        time=draw(st.floats(1.7e9, 1.7e9 + 1e5)),
        weight=1.0,
        outcome=Outcome.FINISHED,
        because="cheapest",
        set_aside=None,
        budget="default",
        curve="own",
        trust="live",
        state_age=draw(st.none() | st.floats(0, 40)),
        max_queue_wait=None,
        allowed_queue_wait=draw(st.none() | st.floats(0.1, 60.0)),
        allowed_ttft=None,
        confidence=0.9,
        predicted_ttft=wait + own,
        ttft_bound=wait + own + 1.0,
        predicted_queue_wait=wait,
        queue_wait_bound=wait + 0.5,
        queued_tokens=1,
        queued_requests=1,
        ttft=draw(st.none() | seconds),
        block_size=16,
        held=draw(tokens),
        predicted_cached=draw(tokens),
        predicted_loaded=0,
        cached_tokens=draw(st.none() | tokens),
        completion_tokens=None,
        engine_said=None,
    )


def rounded(told):
    """Give plain values with six digits: sums differ in the last by the order of their parts."""
    if isinstance(told, float):
        return float(f"{told:.6g}")
    if isinstance(told, dict):
        return {name: rounded(value) for name, value in told.items()}
    return [rounded(value) for value in told] if isinstance(told, list | tuple) else told


def plain(told):
    return rounded(msgspec.to_builtins(told))


def as_grade(one):
    waited = max(0.0, one.ttft - (one.predicted_ttft - one.predicted_queue_wait))
    bounded = None
    if one.allowed_queue_wait is not None:
        bounded = Bounded(
            bound=one.allowed_queue_wait, predicted=one.queue_wait_bound, actual=waited
        )
    return Grade(
        request=one.request,
        worker=one.worker,
        model=one.model,
        prompt_tokens=one.prompt_tokens,
        predicted=one.predicted_ttft,
        actual=one.ttft,
        credited=one.predicted_cached,
        reused=one.cached_tokens,
        block_size=one.block_size,
        bounded=bounded,
    )


def written(folder, found):
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in found)
    (folder / "outcomes.jsonl").write_bytes(lines)
    return folder


def graded(folder, asked=Asked()):  # noqa: B008  # frozen
    with open_records([folder], threads=1, keep=KEPT) as database:
        return grade(database, asked)


@settings(max_examples=8)
@given(st.lists(outcomes(), min_size=1, max_size=30))
def test_a_report_says_what_the_cores_summary_says(tmp_path_factory, found):
    folder = written(tmp_path_factory.mktemp("records"), found)
    ours = Summary()
    for one in found:
        if one.ttft is not None:
            ours.add(as_grade(one))

    report = graded(folder)

    assert (report.rows, report.unanswered) == (len(found), len(found) - len(ours))
    assert (report.all is None) == (len(ours) == 0)
    if report.all is not None:
        figures = ours.figures()
        assert report.all.within_1s == pytest.approx(figures["within_1s"])
        assert report.all.within_10s == pytest.approx(figures["within_10s"])
        assert report.all.within_relative == pytest.approx(figures["within_relative"])
        assert report.all.cache_mismatch == pytest.approx(figures["cache_mismatch"])
        assert dict(report.all.cells) == pytest.approx(ours.cells())
        off = sorted(abs(one.ttft - one.predicted_ttft) for one in found if one.ttft is not None)
        median = off[(len(off) + 1) // 2 - 1]
        assert report.all.p50 == pytest.approx(max(median, 1e-4), rel=0.011)


@settings(max_examples=4)
@given(st.lists(outcomes(), min_size=1, max_size=20), st.integers(2, 9))
def test_what_stands_for_several_counts_as_often_as_they_would(tmp_path_factory, found, times):
    many = [
        msgspec.structs.replace(one, request=f"{one.request}{number}")
        for one in found
        for number in range(times)
    ]
    for_many = [msgspec.structs.replace(one, weight=float(times)) for one in found]

    one = graded(written(tmp_path_factory.mktemp("a"), many))
    other = graded(written(tmp_path_factory.mktemp("b"), for_many))

    assert plain(one.groups) == plain(other.groups)
    assert plain(one.reuse) == plain(other.reuse)


@settings(max_examples=4)
@given(st.lists(outcomes(), min_size=2, max_size=20, unique_by=lambda one: one.request))
def test_both_forms_side_by_side_say_what_lines_alone_say(tmp_path_factory, found):
    lines = written(tmp_path_factory.mktemp("lines"), found)
    mixed = written(tmp_path_factory.mktemp("mixed"), found[: len(found) // 2])
    (mixed / "outcomes.jsonl").rename(mixed / "outcomes-1.jsonl")
    as_parquet(mixed / "outcomes-1.jsonl")
    written(mixed, found[len(found) // 2 :])
    (mixed / "outcomes-1.jsonl").write_text('{"request":"again"}\n')

    assert plain(graded(mixed)) == plain(graded(lines))


def test_rows_that_say_no_weight_and_no_hour_count_once(tmp_path, base):
    told = {k: v for k, v in msgspec.to_builtins(base).items() if k not in {"weight", "time"}}
    (tmp_path / "outcomes.jsonl").write_bytes(msgspec.json.encode(told))

    report = graded(tmp_path)

    assert report.requests == 1
    assert report.all is not None
    assert report.all.requests == 1
    assert set(report.groups["hour"]) == {"unknown"}


@settings(max_examples=4)
@given(st.lists(outcomes(), min_size=1, max_size=20))
def test_groups_of_a_kind_add_up_to_all(tmp_path_factory, found):
    report = graded(written(tmp_path_factory.mktemp("records"), found))

    for groups in report.groups.values():
        total = report.all.requests if report.all else 0
        assert sum(group.requests for group in groups.values()) == total


def test_reuse_is_lost_where_routing_or_the_engine_lost_it(tmp_path, base):
    found = [
        msgspec.structs.replace(
            base, request="a", held=1600, predicted_cached=960, cached_tokens=960
        ),
        msgspec.structs.replace(
            base, request="b", held=800, predicted_cached=800, cached_tokens=320
        ),
        msgspec.structs.replace(base, request="c", held=0, predicted_cached=0, cached_tokens=160),
    ]

    [reuse] = graded(written(tmp_path, found)).reuse

    assert (reuse.held, reuse.used, reuse.delivered) == (2400, 1760, 1440)
    assert (reuse.passed_by, reuse.missed, reuse.unforeseen) == (640, 480, 160)


def test_only_what_was_asked_for_is_graded(tmp_path, base):
    found = [
        msgspec.structs.replace(base, request="a", model="m", time=1.7e9),
        msgspec.structs.replace(base, request="b", model="m", time=1.7e9 + 7200),
        msgspec.structs.replace(base, request="c", model="n", time=1.7e9 + 7200),
    ]
    folder = written(tmp_path, found)

    assert graded(folder, Asked(model="m")).rows == 2
    assert graded(folder, Asked(last=3600.0)).rows == 2
    assert graded(folder, Asked(model="n", last=3600.0)).rows == 1


@pytest.fixture
def base():
    return Served(
        **dict.fromkeys(Served.__struct_fields__, None)
        | {
            "request": "r",
            "worker": "a:1",
            "model": "m",
            "prompt_tokens": 4000,
            "time": 1.7e9,
            "weight": 1.0,
            "outcome": Outcome.FINISHED,
            "predicted_ttft": 2.0,
            "predicted_queue_wait": 1.0,
            "ttft": 2.5,
            "block_size": 16,
        }
    )


def test_a_folder_without_records_is_said_to_be_one(tmp_path, capsys):
    with pytest.raises(NoRecordsError, match=str(tmp_path)):
        open_records([tmp_path])

    assert grade_command.main([str(tmp_path)]) == 1
    assert "outcomes" in capsys.readouterr().err


def test_tables_fit_a_terminal_of_100_columns_and_say_it_all(tmp_path, capsys):
    make(tmp_path, 3000)

    status = grade_command.main([str(tmp_path), "--json", str(tmp_path / "out.json")])

    told = capsys.readouterr().out
    assert status == 0
    assert max(map(len, told.splitlines())) <= 100
    by_worker = told.partition("By worker")[2].partition("By prompt")[0]
    assert all(cell.count("…") <= 1 for cell in by_worker.splitlines())
    assert "reque…" not in told
    for title in ("Against the bound", "By model", "Where reuse was lost", "The worst"):
        assert title in told
    figures = msgspec.json.decode((tmp_path / "out.json").read_bytes())
    assert sum(figures["refused"].values()) + figures["rows"] == 3000
