"""The chart's recording rules and alerts, read by Prometheus' own code, as promtool does."""

import subprocess

import pytest
import yaml

from .go_programs import NotToBeHadError, built
from .helm import CHART

HERE = CHART.parents[1] / "e2e" / "kube"
RULES = CHART / "files" / "rules.yaml"


@pytest.fixture(scope="session")
def rule_check():
    try:
        return built("rulecheck", HERE / "rulecheck")
    except NotToBeHadError as error:
        pytest.skip(str(error))


def checked(program, path):
    return subprocess.run([program, path], capture_output=True, text=True, check=False)


def test_prometheus_takes_every_rule(rule_check):
    done = checked(rule_check, RULES)

    assert (done.returncode, done.stdout) == (0, "")


def test_a_rule_that_is_none_would_be_found(rule_check, tmp_path):
    rules = yaml.safe_load(RULES.read_text())
    rules["groups"][1]["rules"][0]["expr"] += " )"
    broken = tmp_path / "rules.yaml"
    broken.write_text(yaml.safe_dump(rules))

    done = checked(rule_check, broken)

    assert done.returncode == 1
    assert "LeadsmanStateStale" in done.stdout
