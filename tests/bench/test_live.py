"""The files of a live run: AdmitPerf's own tools read them, and what cannot be ranked is not."""

import json
import re
from itertools import pairwise
from random import Random

import pytest
from admitperf import discover
from admitperf.report import Report
from admitperf.status import Status
from leadsman_bench.live import comparing, files, page
from leadsman_bench.live.deployment import Deployment, DeploymentError, read
from leadsman_bench.live.play import Told
from leadsman_bench.live.run import Plan, Ran, Unloaded, paced, tasks_of
from leadsman_bench.live.scraping import Sample, signals
from leadsman_bench.player import Planned, Played
from leadsman_bench.tasks import Call, Task
from leadsman_bench.traces import TraceRequest

UP = Deployment(
    keeper=1,
    url="http://gateway",
    picker="h:1",
    engines=["http://e"],
    names=["llama"],
    model="m",
    tokenizer="t",
    chat_template=None,
    simulated=True,
    capacity_per_s=4.0,
)


def plan(policy="queue_cap", **changes):
    told = {
        "workload": "conversation",
        "trace": None,
        "manners": "leave",
        "policy": policy,
        "parameters": {},
        "unit": "request",
        "load": 1.5,
        "seconds": 20.0,
        "warm_up": 5.0,
        "repeats": 3,
        "seed": 1,
        "slack": 1.0,
        "factor": 2.0,
        "experiment": "nightly",
    }
    return Plan(**told | changes)


def ran(repeat=1, policy="queue_cap", refuses=0.3, queue=6.0, capacity=4.0, **changes):
    """Make a run of a hundred calls, some refused, as a play would have left it."""
    rng, told = Random(f"{policy}/{repeat}"), []
    for number in range(100):
        at = 0.25 * number
        row = TraceRequest(
            at=at, input_tokens=rng.randint(50, 9000), output_tokens=5, pieces=(number,)
        )
        task = Task(name=f"r{number}", calls=(Call(row=row),), tenant="a" if number % 2 else "b")
        played = Played(planned=Planned(id=f"r{number}.0.0", at=at, row=row, model="m"), sent_at=at)
        if rng.random() < refuses:
            played.status, played.reason, played.retry_after = 429, "overloaded", 2.5
        else:
            played.status, played.first_at = 200, at + rng.uniform(0.1, 4.0)
            played.chunks_at = [played.first_at, played.first_at + 0.05]
        played.ended_at = (played.first_at or at) + 0.1
        told.append(Told(task=task, place=0, began=at, tries=[played]))
    samples = [
        Sample(at=1000.0 + at, signals={"queue_depth": queue * at / 25, "kv_pressure": 0.1})
        for at in range(25)
    ]
    return Ran(
        plan=plan(policy, **changes),
        repeat=repeat,
        unloaded=Unloaded(base=0.1, per_token=1e-4),
        capacity=capacity,
        began_at=1000.0,
        wall=25.0,
        told=told,
        samples=samples,
        versions=["0.33.0"],
    )


def written(folder, *, policies=("none", "queue_cap"), **changes):
    for policy in policies:
        for repeat in (1, 2, 3):
            refuses = 0.0 if policy == "none" else 0.3
            files.write(folder, ran(repeat, policy, refuses, **changes), UP)
    return folder


def test_admitperfs_tools_read_the_runs_and_find_every_disclosure_they_can_check(tmp_path):
    written(tmp_path)

    found = discover.experiments(tmp_path)["nightly"]

    assert found.baseline.policy == "none"
    assert {name: len(one.logs) for name, one in found.policies.items()} == {
        "none": 3,
        "queue_cap": 3,
    }
    report = Report.from_log(found.policies["queue_cap"].logs[0])
    [summary] = [
        json.loads((log.parent / "summary.json").read_text())
        for log in found.policies["queue_cap"].logs[:1]
    ]
    assert report.verdict() == "LIVE"
    assert report.refused == summary["rejected"] == 80 - summary["admitted"]
    met = sum(one["outcome"]["ok"] for one in report.outcomes)
    assert met / len(report.decisions) == pytest.approx(summary["goodput_under_admission"])
    items = report.items(repeats=3, has_baseline=True)
    assert [one.number for one in items if one.status is not Status.OK] == [1, 2]
    assert not report.fault_text()


def test_what_came_before_the_end_of_the_warm_up_is_not_counted():
    one = ran()

    assert len(one.counted) == 80
    assert files.summary(one)["warmup_excluded"] == 20


def test_calls_that_were_never_made_are_misses():
    one = ran(refuses=0.0)
    whole = one.told[-1].task
    calls = (*whole.calls, *whole.calls, *whole.calls)
    one.told[-1].task = Task(name=whole.name, calls=calls)

    summary = files.summary(one)

    assert summary["never_made"] == 2
    assert summary["offered"] == 82


@pytest.mark.parametrize("name", files.DISCLOSURES)
def test_a_disclosure_that_is_missing_is_named(name):
    told = files.manifest(ran(), UP)

    whole = files.missing(told)
    told["disclosures"].pop(name)
    lacking = files.missing(told)

    assert whole == []
    assert lacking == [f"{name}: {files.DISCLOSURES[name]}"]


@pytest.mark.parametrize(
    ("name", "hollow"),
    [
        pytest.param("variation", {"repeats": 1}, id="one-repeat-has-no-spread"),
        pytest.param("load", {"multiple_of_capacity": 2.0, "capacity_rps": None}, id="a-raw-rate"),
        pytest.param(
            "liveness",
            {"signals": {"kv_pressure": {"min": 0, "max": 1}}, "watched": "queue_depth"},
            id="another-signal-moved",
        ),
    ],
)
def test_a_disclosure_that_says_nothing_is_as_good_as_missing(name, hollow):
    told = files.manifest(ran(), UP)

    told["disclosures"][name] = hollow

    assert [one.partition(":")[0] for one in files.missing(told)] == [name]


def test_policies_are_ranked_by_their_goodput(tmp_path):
    runs = comparing.read(written(tmp_path))

    ranking = comparing.ranked(runs)

    assert list(ranking) == [1.5]
    assert [len(values) for _, values in ranking[1.5]] == [3, 3]
    best, worst = (sum(values) for _, values in ranking[1.5])
    assert best > worst


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"manners": "obey"}, "manners: 'leave' in none", id="manners"),
        pytest.param({"slack": 9.0}, "deadline", id="deadline"),
        pytest.param({"capacity": 9.0}, "1 x is not the same load", id="capacity"),
        pytest.param({"workload": "agents"}, "workload", id="workload"),
        pytest.param({"load": 2.0}, "no load that all policies were run at", id="load"),
    ],
)
def test_runs_that_met_something_else_are_not_ranked_and_what_differs_is_said(
    tmp_path, changes, said
):
    written(tmp_path, policies=["none"])
    written(tmp_path, policies=["queue_cap"], **changes)

    with pytest.raises(comparing.CompareError, match=said):
        comparing.ranked(comparing.read(tmp_path))


def test_a_load_that_not_all_policies_have_is_not_ranked_and_named(tmp_path):
    written(tmp_path)
    written(tmp_path, policies=["none"], load=2.0)
    runs = comparing.read(tmp_path)

    ranking, left_out, drawn = comparing.ranked(runs), comparing.left_out(runs), page.drawn(runs)

    assert list(ranking) == [1.5]
    assert left_out == ["2 x is not ranked: not run with queue_cap"]
    assert left_out[0] in drawn


def test_a_broken_run_is_named(tmp_path):
    written(tmp_path, policies=["none"])
    (tmp_path / "none-1.5x-r2" / "summary.json").unlink()

    with pytest.raises(comparing.CompareError, match=r"none-1\.5x-r2: no run"):
        comparing.read(tmp_path)


def test_the_report_is_one_file_with_five_plots_that_needs_nothing_else(tmp_path):
    runs = comparing.read(written(tmp_path))

    drawn = page.drawn(runs)

    assert drawn.count("<svg") == 5
    assert 'src="' not in drawn
    assert "<script" not in drawn
    assert "queue_cap" in drawn
    assert {"#1f6feb", "#ffffff"} <= set(re.findall(r"#[0-9a-f]{6}\b", drawn))
    ids = re.findall(r' id="([^"]+)"', drawn)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', drawn)) <= {
        pair for one in ids for pair in ((one, ""), ("", one))
    }


def test_a_trace_keeps_its_bunching_at_every_pace():
    tasks = [
        Task(
            name=str(at),
            calls=(Call(row=TraceRequest(at=at, input_tokens=9, output_tokens=1, pieces=(0,))),),
        )
        for at in (0.0, 1.0, 1.1, 9.0, 10.0)
    ]

    slow, fast = (paced(tasks, per_s, 1000.0) for per_s in (1.0, 4.0))

    assert len(fast) == pytest.approx(4 * len(slow), rel=0.02)
    gaps = [b.at - a.at for a, b in pairwise(slow[:5])]
    assert gaps == pytest.approx([0.5, 0.05, 3.95, 0.5])


def test_no_two_repeats_share_a_prompt():
    one, other = (tasks_of(plan(), 5.0, 30.0, seed) for seed in (1, 2))

    pieces = [
        {piece for task in made for call in task.calls for piece in call.row.pieces}
        for made in (one, other)
    ]

    assert not pieces[0] & pieces[1]


def test_signals_are_means_over_engines_and_ranks_and_none_where_nobody_tells():
    pages = [
        'vllm:kv_cache_usage_perc{engine="0"} 0.6\nvllm:kv_cache_usage_perc{engine="1"} 0.7\n',
        "vllm:kv_cache_usage_perc 0.2\nvllm:num_requests_waiting 3.0\n",
    ]

    found = signals(pages)

    assert found == {"kv_pressure": pytest.approx(0.5), "queue_depth": 3.0, "running": None}


def test_a_folder_in_which_nothing_is_up_says_so(tmp_path):
    with pytest.raises(DeploymentError, match="nothing is up in"):
        read(tmp_path)
