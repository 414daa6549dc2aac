import re
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from leadsman_operator.crds.engine_profile import EngineProfileSpec
from leadsman_operator.crds.latency_budget import LatencyBudgetSpec
from leadsman_operator.crds.manifests import RESOURCES, written
from leadsman_operator.crds.parts import seconds

FOLDER = Path(__file__).parents[2] / "crds"
SPECS = {"LatencyBudget": LatencyBudgetSpec, "EngineProfile": EngineProfileSpec}
EXAMPLES = [
    pytest.param(document, id=document["metadata"]["name"])
    for path in sorted((FOLDER / "examples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
GUIDE = (FOLDER.parent / "docs" / "guide.md").read_text()
SHOWN = [
    pytest.param(document, id=f"guide-{document['metadata']['name']}")
    for block in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    for document in [yaml.safe_load(block)]
    if document.get("kind") in SPECS
]


def nodes(node):
    yield node
    inner = list(node.get("properties", {}).values())
    inner += [node[key] for key in ("items", "additionalProperties") if key in node]
    for child in inner:
        yield from nodes(child)


def schema(resource):
    [version] = resource.definition()["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.kind)
def test_what_is_checked_in_is_what_the_definition_makes(resource):
    checked_in = (FOLDER / resource.file).read_text()

    assert checked_in == written(resource), "run `make crds`"


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.kind)
def test_every_node_of_a_schema_has_a_type_and_nothing_that_openapi_3_lacks(resource):
    found = list(nodes(schema(resource)))

    assert all("type" in node for node in found)
    assert not {"$ref", "anyOf", "title", "const"} & {key for node in found for key in node}
    assert not [node for node in found if "default" in node and node["default"] is None]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.kind)
def test_every_field_of_a_spec_is_explained(resource):
    spec = schema(resource)["properties"]["spec"]

    mute = [
        name
        for node in nodes(spec)
        for name, field in node.get("properties", {}).items()
        if not field.get("description")
    ]

    assert mute == []


@pytest.mark.parametrize("document", EXAMPLES + SHOWN)
def test_an_example_names_only_fields_that_there_are(document):
    spec = msgspec.convert(document["spec"], SPECS[document["kind"]])

    assert document["spec"].items() <= msgspec.json.decode(msgspec.json.encode(spec)).items()


PIECES = st.lists(
    st.tuples(st.integers(0, 99_999), st.sampled_from(["h", "m", "s", "ms"])),
    min_size=1,
    max_size=4,
)


@given(PIECES)
def test_a_duration_is_the_sum_of_its_pieces(pieces):
    worth = {"h": 3600, "m": 60, "s": 1, "ms": 0.001}

    read = seconds("".join(f"{number}{unit}" for number, unit in pieces))

    assert read == pytest.approx(sum(number * worth[unit] for number, unit in pieces))


def test_every_message_says_what_is_allowed():
    rules = [
        rule
        for resource in RESOURCES
        for node in nodes(schema(resource))
        for rule in node.get("x-kubernetes-validations", [])
    ]

    advice = re.compile(r"must|write it|drop|state both|needs")

    assert rules
    assert [rule for rule in rules if not advice.search(rule["message"])] == []
