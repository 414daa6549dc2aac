"""The dashboard, held against what a picker exports and what Grafana needs."""

import itertools
import json
import re
from pathlib import Path

import promql_parser
import pytest
from leadsman_extproc import dashboard
from leadsman_extproc.metrics_reference import everything

CARRIED = Path(__file__).parents[2] / "helm" / "leadsman" / "files" / "dashboard.json"
BOARD = json.loads(CARRIED.read_text())
PANELS = [pytest.param(panel, id=panel["title"]) for panel in BOARD["panels"]]


def exported():
    """Give each name of ours that a picker exports, with its labels, once all has been counted."""
    return {
        sample.name: set(sample.labels)
        for family in everything()
        for sample in family.samples
        if family.name.startswith("leadsman_")
        and (family.type != "histogram" or sample.name.endswith("_bucket"))
    }


def expressions(panel):
    return [target["expr"] for target in panel["targets"]]


def test_what_the_chart_carries_is_what_the_definition_makes():
    assert CARRIED.read_text() == dashboard.written(), "run `make generate`"


def test_the_dashboard_shows_what_pickers_export_all_of_it_and_nothing_else():
    text = CARRIED.read_text()

    shown = set(re.findall(r"leadsman_\w+", text))

    assert shown == set(exported())


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_divides_by_labels_that_its_metric_has(panel):
    labels = exported()

    for expression in expressions(panel):
        [found] = {frozenset(labels[name]) for name in re.findall(r"leadsman_\w+", expression)[:1]}
        divided = set(re.findall(r"by \((\w+)\)", expression))
        legend = set(re.findall(r"{{(\w+)}}", panel["targets"][0]["legendFormat"]))
        assert legend <= divided <= found


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows_and_in_which_unit_from_the_source_that_was_chosen(panel):
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert {one["datasource"]["uid"] for one in [panel, *panel["targets"]]} == {"${datasource}"}
    for expression in expressions(panel):
        assert promql_parser.parse(expression.replace("$__rate_interval", "5m"))
        assert expression.count("rate(") == expression.count("[$__rate_interval]")
        assert expression.count("leadsman_") == expression.count('job=~"$job"')


def test_no_panel_lies_on_another():
    areas = [panel["gridPos"] for panel in BOARD["panels"]]
    ids = [panel["id"] for panel in BOARD["panels"]]

    overlapping = [
        (one, other)
        for one, other in itertools.combinations(areas, 2)
        if one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    ]

    assert overlapping == []
    assert len(set(ids)) == len(ids)
    assert max(area["x"] + area["w"] for area in areas) <= 24


def test_every_variable_that_is_used_is_defined():
    text = CARRIED.read_text()

    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}

    assert used == {one["name"] for one in BOARD["templating"]["list"]}
