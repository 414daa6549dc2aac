"""The reference pages: as they would be made today, and with nothing left out."""

import json
import re
from pathlib import Path

import pytest
import yaml
from leadsman_operator.crds import reference
from leadsman_operator.crds.manifests import RESOURCES

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "leadsman"
PAGES = reference.pages(CHART)


@pytest.mark.parametrize("file", PAGES)
def test_what_is_checked_in_is_what_the_schemas_say(file):
    checked_in = (ROOT / "docs" / "reference" / file).read_text()

    assert checked_in == PAGES[file], "run `make generate`"


def names(node):
    """Give every field's own name, by a walk of its own."""
    if isinstance(node, dict):
        properties = node.get("properties", {})
        yield from properties if isinstance(properties, dict) else ()
        for value in node.values():
            yield from names(value)


def told(page):
    """Give each row's path, with what is allowed, the default, and the meaning."""
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    return [(path.strip("`"), *rest) for path, *rest in cells]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.kind)
def test_every_field_of_a_resource_is_told(resource):
    [version] = resource.definition()["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    page = PAGES["resources.md"].partition(f"## {resource.kind}\n")[2].partition("\n## ")[0]

    expected = [*names(properties["spec"]), *names(properties["status"])]

    assert sorted(path.rpartition(".")[2] for path, *_ in told(page)) == sorted(expected)


def leaves(values, path=""):
    for name, value in values.items():
        if isinstance(value, dict) and value and f"{path}{name}" in PARENTS:
            yield from leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


VALUES = told(PAGES["values.md"])
PARENTS = {path.rpartition(".")[0].removesuffix("[]") for path, *_ in VALUES}


def test_every_value_is_told_with_its_default():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    defaults = {path: default for path, _, default, _ in VALUES}

    expected = {
        path: f"`{json.dumps(value)}`" if value not in ("", [], {}) else ""
        for path, value in leaves(values)
    }

    assert {path: defaults[path] for path in expected} == expected


def test_every_value_is_explained():
    mute = [path for path, *_, text in VALUES if not text and path not in PARENTS]

    assert VALUES
    assert mute == []
