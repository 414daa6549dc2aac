import json
import sys

import pytest
from leadsman_bench import command, simulate
from leadsman_bench.scenario import workers
from leadsman_bench.simulate import Length, Progress
from leadsman_bench.simulate import simulate as run


def test_an_unknown_benchmark_is_named_with_those_there_are(capsys):
    status = command.main(["speed"])

    assert status == 2
    assert "simulate, policies, goals, recorded, micro" in capsys.readouterr().out


def test_help_lists_the_benchmarks(capsys):
    status = command.main([])

    assert status == 0
    assert "{simulate,policies,goals,recorded,micro,operator,page,up," in capsys.readouterr().out


def test_micro_benchmarks_are_shown_beside_their_goals(tmp_path, monkeypatch, capsys):
    measured = {"ingest_blocks_per_s": 6e5, "bytes_per_block": 90.0, "spare": 1.0}

    class Part:
        measure = staticmethod(lambda: measured)

    monkeypatch.setattr(command, "benchmarks", lambda: ["cache"])
    monkeypatch.setitem(sys.modules, "leadsman_bench.micro.cache", Part)
    status = command.main(["micro", "--json", str(tmp_path / "micro.json")])

    said = capsys.readouterr().out
    assert status == 0
    assert json.loads((tmp_path / "micro.json").read_text()) == measured
    assert "≥ 500000" in said
    assert said.count("✓") == said.count("✗") == 1


def test_an_unknown_micro_benchmark_is_an_error(monkeypatch):
    monkeypatch.setattr(command, "benchmarks", lambda: ["cache"])

    with pytest.raises(SystemExit):
        command.main(["micro", "sound"])


def test_a_simulation_writes_its_figures_rows_and_picture(tmp_path, capsys):
    options = ["--requests", "60", "--worst", "3", "--json", str(tmp_path / "figures.json")]
    options += ["--rows", str(tmp_path / "rows.jsonl"), "--picture", str(tmp_path / "pictures")]

    status = command.main(["simulate", *options])

    figures = json.loads((tmp_path / "figures.json").read_text())
    rows = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert status == 0
    assert (figures["requests"], figures["workers"]) == (60, 16)
    assert len(rows) == figures["graded"]
    assert (tmp_path / "pictures" / "simulate.png").exists()
    assert "The 3 worst" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_grades():
    first, second, other = (
        run(Length(requests=80), seed=seed, specs=workers()[:4]) for seed in (1, 1, 2)
    )

    assert first.graded == second.graded
    assert first.graded != other.graded


def test_hours_bound_a_run():
    found = run(Length(requests=None, hours=0.02), seed=1, specs=workers()[:4])

    assert found.graded
    assert max(one.at for one in found.graded) < 72


def test_progress_is_silent_where_nobody_watches(capsys):
    progress = Progress(simulate.sys.stdout, Length())

    progress.say(1, 1.0)
    progress.end()

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "held", "said"),
    [
        ("nothing.json", None, "No such file"),
        ("broken.json", b"{", "line 1"),
        ("packed.json.gz", b"not packed", "gzip"),
        ("list.json", b"[]", "'engine' should be there, as an object"),
        ("calibration.json", b'{"engine": "vLLM", "decode": []}', "'engine'"),
        ("half.json", b'{"engine": {}, "requests": {}}', "'requests' should be there, as a list"),
    ],
)
def test_what_is_no_recording_is_said_with_its_name(tmp_path, capsys, name, held, said):
    path = tmp_path / name
    if held is not None:
        path.write_bytes(held)

    status = command.main(["recorded", str(path)])

    told = capsys.readouterr().err
    assert status == 2
    assert str(path) in told
    assert said in told
