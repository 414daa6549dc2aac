"""Traces of three formats become tasks; ours keeps all that a task is."""

from itertools import islice

import pytest
from leadsman_bench import agents
from leadsman_bench.formats import dump, parse
from leadsman_bench.tasks import single
from leadsman_bench.traces import TraceError, bundled
from leadsman_bench.traces import dump as dump_rows


def test_a_mooncake_trace_is_one_of_ours():
    rows = bundled()[:40]

    tasks = parse(dump_rows(rows), source="test")

    assert [task.calls[0].row for task in tasks] == rows
    assert [len(task.calls) for task in tasks] == [1] * 40


def test_tasks_that_were_written_read_back_the_same():
    some = list(islice(agents.tasks(tasks_per_s=1.0, seed=4), 3))

    again = parse(dump(some), source="test")

    for before, after in zip(some, again, strict=True):
        assert after.session == before.session
        for one, other in zip(before.calls, after.calls, strict=True):
            assert other.row.pieces == one.row.pieces
            assert other.row.at == pytest.approx(one.row.at, abs=1e-3)
            assert other.after == one.after
            assert other.thinks == pytest.approx(one.thinks)
            assert other.hangs_up == one.hangs_up


def test_rows_without_followers_stay_tasks_of_their_own():
    some = list(single(bundled()[:5]))

    again = parse(dump(some), source="test")

    assert [task.calls for task in again] == [task.calls for task in some]


def test_admitperfs_rows_of_one_prefix_share_half_of_the_shorter_prompt():
    lines = (
        b'{"id":"a","arrival_t":0.5,"priority":1,"prompt_tokens":320,"max_new_tokens":9,'
        b'"prefix_hash":"p","timeout_s":30,"tenant":"t"}\n'
        b'{"id":"b","arrival_t":1.5,"prompt_tokens":960,"max_new_tokens":9,"prefix_hash":"p"}\n'
        b'{"id":"c","arrival_t":2.5,"prompt_tokens":320,"max_new_tokens":9,"prefix_hash":"q"}\n'
    )

    first, second, other = parse(lines, source="test")

    common = [
        a == b for a, b in zip(first.calls[0].row.pieces, second.calls[0].row.pieces, strict=False)
    ]
    assert common == [True] * 10 + [False] * 10
    assert not set(first.calls[0].row.pieces) & set(other.calls[0].row.pieces)
    assert (first.tenant, first.calls[0].hangs_up, first.calls[0].priority) == ("t", 30.0, 1)
    assert [task.at for task in (first, second, other)] == [0.5, 1.5, 2.5]


def test_a_later_turn_of_admitperfs_first_generation_goes_on_from_the_former():
    lines = b"".join(
        b'{"time":%d,"request_id":"r%d","agent_id":"a","tenant_id":"t","input_tokens":%d,'
        b'"expected_output_tokens":20,"turn_index":%d,"is_final_turn":false}\n'
        % (n, n, 160 * (n + 1), n)
        for n in range(3)
    )

    turns = parse(lines, source="test")

    pieces = [task.calls[0].row.pieces for task in turns]
    assert pieces[1][:10] == pieces[0]
    assert pieces[2][:20] == pieces[1]
    assert {task.session for task in turns} == {"a"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(b"", "no rows", id="empty"),
        pytest.param(b"{", "line 1", id="malformed"),
        pytest.param(b'{"when": 1}', "line 1: no trace that is known has rows of when", id="other"),
        pytest.param(
            b'{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[0],"after":["x"]}',
            r"line 1: after \['x'\]: no rows of one task yet",
            id="follows-nobody",
        ),
        pytest.param(
            b'{"id":"a","arrival_t":0,"prompt_tokens":"many","max_new_tokens":1}',
            "line 1: Expected `int`",
            id="admitperf",
        ),
    ],
)
def test_what_is_no_trace_is_named_by_its_line(content, problem):
    with pytest.raises(TraceError, match=problem):
        parse(content, source="trace.jsonl")
