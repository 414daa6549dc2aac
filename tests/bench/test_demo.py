import json
import os
import select
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from leadsman.budget import Budget
from leadsman_bench import demo, demo_plan
from leadsman_bench.demo_plan import Phase, capacity, engine_options, engines, phase_at, plan, trace
from leadsman_bench.demo_results import Named, goodput, grades, in_virtual_time, read_outcomes
from leadsman_bench.player import Planned, Played
from leadsman_bench.traces import TraceRequest
from leadsman_cli.main import main
from rich.console import Console

# A shell that puts its jobs into the background has them ignore Ctrl-C, and theirs inherit that.
STARTED = """import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)
from leadsman_cli.main import main; sys.exit(main(sys.argv[1:]))"""
COMMAND = [
    sys.executable,
    "-c",
    STARTED,
    "demo",
    "--out",
]
WORKERS = {"127.0.0.1:1": Named(name="one", block_size=16)}


def planned(name, *, at=30.0, bound=None):
    row = TraceRequest(at=at, input_tokens=10, output_tokens=1, pieces=(0,), piece_tokens=16)
    return Planned(id=name, at=at, row=row, model="m", max_queue_wait=bound)


def played(name, *, reason=None, bound=None):
    return Played(planned=planned(name, bound=bound), sent_at=0.0, reason=reason)


def line(name, **more):
    usual = {
        "request": name,
        "worker": "127.0.0.1:1",
        "prompt_tokens": 100,
        "outcome": "finished",
        "curve": "own",
        "max_queue_wait": None,
        "predicted_ttft": 2.0,
        "predicted_queue_wait": 1.5,
        "ttft": 2.2,
        "predicted_cached": 32,
        "cached_tokens": 32,
    }
    return json.dumps(usual | more)


def outcomes(tmp_path, *lines):
    path = tmp_path / "outcomes.jsonl"
    path.write_text("".join(f"{one}\n" for one in lines) + '{"request": "cut o')
    return read_outcomes(path)


def test_a_served_request_is_graded_from_the_pickers_own_line(tmp_path):
    rows = outcomes(tmp_path, line("a", max_queue_wait=5.0), line("somebody-else"))

    found = grades(rows, [played("a", bound=5.0)], WORKERS)

    (one,) = found.graded
    assert one.grade.error == pytest.approx(-0.2)
    assert one.grade.bounded.actual == pytest.approx(1.7)
    assert one.grade.cache_matched
    assert one.grade.worker == "one"
    assert one.load == 1.5


def test_every_request_is_accounted_for(tmp_path):
    rows = outcomes(tmp_path, line("a"), line("b", ttft=None), line("c", predicted_ttft=None))
    sent = [played("a"), played("b"), played("c"), played("d", reason="would_wait_too_long")]

    found = grades(rows, sent, WORKERS)

    assert (len(found.graded), found.lost, found.unpriced) == (1, 1, 1)
    assert found.refused_for == {"would_wait_too_long": 1}


def test_goodput_counts_the_bounded_of_the_overloaded_phase(tmp_path):
    wanted = [
        planned("early", at=1.0, bound=5.0),
        planned("free"),
        planned("kept", bound=5.0),
        planned("late", bound=5.0),
        planned("refused", bound=5.0),
    ]
    lines = [
        line("early", max_queue_wait=5.0),
        line("free"),
        line("kept", max_queue_wait=5.0),
        line("late", max_queue_wait=5.0, ttft=9.0),
    ]
    sent = [Played(planned=one, sent_at=0.0) for one in wanted]

    found = grades(outcomes(tmp_path, *lines), sent, WORKERS)

    assert goodput(found, wanted) == pytest.approx(1 / 3)


def test_the_plan_has_both_loads_in_the_traces_order():
    rows = trace()

    wanted = plan(rows, 10.0, seed=1)

    first = [one for one in wanted if phase_at(one.at).load == 0.7]
    assert len(first) == pytest.approx(0.7 * 10 * 28, abs=1)
    assert len(wanted) - len(first) == pytest.approx(1.5 * 10 * 32, abs=1)
    assert all(a.at <= b.at for a, b in pairwise(wanted))
    assert [one.row.pieces for one in wanted] == [row.pieces for row in rows[: len(wanted)]]
    assert {one.max_queue_wait for one in wanted} == {None, 5.0, 10.0}


def test_the_trace_holds_enough_for_the_measured_capacity():
    rows = trace()

    per_s = sum(capacity(rows))

    needed = sum(phase.load * phase.seconds for phase in demo_plan.PHASES) * per_s
    assert needed <= len(rows)


def test_the_command_line_makes_the_engines_of_the_plan():
    for spec, (name, changes) in zip(engines(), demo_plan.ENGINES, strict=True):
        options = engine_options(name, changes)

        given = dict(zip(options[2::2], options[3::2], strict=True))

        assert options[:2] == ["--preset", name]
        assert all(
            str(getattr(spec.settings, key.removeprefix("--").replace("-", "_"))) == value
            for key, value in given.items()
        )


def test_the_plan_runs_in_virtual_time_too():
    wanted = plan(trace(), 3.0, seed=1)[:40]

    found = in_virtual_time(wanted, Budget(mode="shadow"), seed=1)

    assert len(found.graded) == 40


@pytest.mark.envoy
def test_a_short_demo_leaves_its_artifacts_and_no_process(tmp_path, monkeypatch):
    phases = (Phase(load=0.3, seconds=3.0), Phase(load=0.5, seconds=1.0))
    monkeypatch.setattr(demo_plan, "PHASES", phases)

    summary = demo.run(tmp_path, Console(quiet=True), seed=1)

    assert summary.graded > 10
    kept = {path.name for path in tmp_path.iterdir()}
    assert {"decisions.jsonl", "outcomes.jsonl", "summary.json", "manifest.json"} <= kept
    assert {"ttft.png", "ttft.svg", "ttft.html"} <= kept
    written = json.loads((tmp_path / "summary.json").read_text())
    assert {"within_1s", "bound_kept"} <= set(written)
    assert {"goodput_admission", "goodput_admission_virtual", "goodput_none"} <= set(written)
    assert descendants(os.getpid()) == []


SGLANG = (
    ("llama-3.1-8b-a100", {"engine": "sglang", "schedule_policy": "lpm"}),
    ("qwen2.5-0.5b-a10g", {"engine": "sglang", "max_running_requests": 8}),
)


@pytest.mark.envoy
def test_sglang_behind_envoy_is_predicted_and_its_cache_is_known(tmp_path, monkeypatch):
    phases = (Phase(load=0.5, seconds=4.0), Phase(load=0.8, seconds=2.0))
    monkeypatch.setattr(demo_plan, "PHASES", phases)
    for module in (demo, demo_plan):
        monkeypatch.setattr(module, "ENGINES", SGLANG)

    summary = demo.run(tmp_path, Console(quiet=True), seed=1)

    rows = [json.loads(one) for one in (tmp_path / "outcomes.jsonl").read_text().splitlines()]
    served = [row for row in rows if row["outcome"] == "finished"]
    assert summary.graded > 10
    assert all(row["predicted_ttft"] is not None for row in served)
    assert any(row["cached_tokens"] for row in served)
    off = [row for row in served if row["cached_tokens"] != row["predicted_cached"]]
    assert len(off) <= 0.05 * len(served)


@pytest.mark.envoy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(tmp_path, number):
    process = subprocess.Popen(
        [*COMMAND, str(tmp_path)], stdout=subprocess.PIPE, start_new_session=True
    )
    with process:
        while b"requests of the trace" not in process.stdout.readline():
            assert process.poll() is None
        started = descendants(process.pid)

        process.send_signal(number)
        said = process.stdout.read()

    assert process.returncode == demo.INTERRUPTED
    assert b"interrupted" in said
    assert len(started) >= 5
    for pid in started:
        assert_gone(pid)


def test_a_demo_that_cannot_start_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "leadsman", lambda *_: [sys.executable, "-c", "exit('no luck')"])

    status = main(["demo", "--out", str(tmp_path)])

    assert status == 1
    assert "no luck" in capsys.readouterr().out


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return found


def assert_gone(pid):
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, *_ = select.select([process], [], [], 10)
    os.close(process)
    assert ended
