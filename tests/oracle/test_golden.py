import pytest
from oracle.golden import FOLDER, read
from oracle.play import Play
from oracle.scenarios import MODES

FILES = sorted(FOLDER.glob("*.json.gz"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_the_replay_does_what_the_engine_did(path):
    for run in read(path):
        play = Play(run.told, run.version)

        assert play.against(run.cycles) is None


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_was_recorded_of_every_version(mode):
    versions = {path.name.split("-")[1] for path in FILES}

    recorded = {path.name.split("-")[1] for path in FILES if path.name.endswith(f"{mode}.json.gz")}

    assert len(versions) > 1
    assert recorded == versions


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".json.gz"))
@pytest.mark.parametrize(
    "edit",
    [
        lambda cycle: cycle["tokens"].append(["nobody", 1]),
        lambda cycle: cycle["preempted"].append("nobody"),
        lambda cycle: cycle["cached"].update(nobody=16),
        lambda cycle: cycle["events"].append([True, 0, []]),
        lambda cycle: cycle.update(free=cycle["free"] + 1),
    ],
    ids=["tokens", "preempted", "cached", "events", "free"],
)
def test_a_run_that_was_otherwise_is_noticed(path, edit):
    run = next(read(path))
    cycle = next(c for c in reversed(run.cycles) if c["tokens"] is not None)
    edit(cycle)

    found = Play(run.told, run.version).against(run.cycles)

    assert found is not None
    assert found.cycle == cycle["cycle"]
