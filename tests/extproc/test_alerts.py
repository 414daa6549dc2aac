"""The alerts, held against what pickers export, what Prometheus reads, and their runbooks."""

import re
from pathlib import Path

import promql_parser
import pytest
import yaml
from leadsman_extproc import alerts
from leadsman_extproc.metrics_reference import everything

ROOT = Path(__file__).parents[2]
CARRIED = ROOT / "helm" / "leadsman" / "files" / "rules.yaml"
GROUPS = yaml.safe_load(CARRIED.read_text())["groups"]
RULES = [
    pytest.param(rule, id=rule.get("alert") or rule["record"])
    for group in GROUPS
    for rule in group["rules"]
]


def exported():
    return {sample.name: set(sample.labels) for family in everything() for sample in family.samples}


def test_what_the_chart_carries_is_what_the_definition_makes():
    assert CARRIED.read_text() == alerts.written(), "run `make generate`"


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_one_that_prometheus_takes(rule):
    assert promql_parser.parse(rule["expr"])
    if "record" in rule:
        assert set(rule) == {"record", "expr"}
        assert re.fullmatch(r"[a-z_]+:[a-z_]+:[a-z0-9_]+", rule["record"])
    else:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"].endswith(".")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_reads_what_is_exported_or_recorded(rule):
    recorded = {one.name for one in alerts.RECORDINGS}

    names = re.findall(r"(?:leadsman|llm_d_epp)[_:][a-z0-9_:]+", rule["expr"])

    assert names
    assert set(names) <= recorded | set(exported())


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_chooses_by_labels_and_values_that_there_are(rule):
    labels = exported()

    for name, chosen in re.findall(r"(leadsman_[a-z0-9_]+)\{([^}]+)\}", rule["expr"]):
        assert set(re.findall(r"(\w+)=", chosen)) <= labels[name]


def test_every_alert_has_its_runbook_and_every_runbook_its_alert():
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbooks.md").read_text(), re.MULTILINE)

    assert headings == [one.name for one in alerts.ALERTS]
    told = [rule["annotations"]["runbook"] for rule in GROUPS[1]["rules"]]
    assert told == [f"docs/runbooks.md#{name.lower()}" for name in headings]


PAGE = (ROOT / "docs" / "autoscaling.md").read_text()
SHOWN = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def test_what_autoscalers_are_shown_reads_what_is_recorded():
    scaled, horizontal, adapter = SHOWN
    [rule] = adapter["rules"]["external"]
    [metric] = horizontal["spec"]["metrics"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    asked = rule["metricsQuery"].replace("<<.Series>>{<<.LabelMatchers>>}", rule["seriesQuery"])

    names = [re.findall(r"leadsman:[a-z0-9_:]+", each) for each in (query, asked)]

    assert promql_parser.parse(query)
    assert promql_parser.parse(asked)
    assert names == [["leadsman:predicted_queue_wait_seconds:p90_rate1m"]] * 2
    assert {name for [name] in names} <= {one.name for one in alerts.RECORDINGS}
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
