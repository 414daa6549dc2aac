"""What the repository promises about itself."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from leadsman_bench import recorded
from leadsman_bench.envoy_config import EnvoyConfig
from leadsman_cli.main import main

ROOT = Path(__file__).parent.parent
LAYERS = ("core", "engines", "fleet", "operator", "extproc", "bench", "cli")
MODULES = sorted(
    path
    for layer in LAYERS
    for path in (ROOT / layer).rglob("*.py")
    if not re.search(r"_pb2(_grpc)?\.py$", path.name)
)
TEXTS = sorted(
    path
    for folder in (*LAYERS, "docs", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md", ".yaml", ".lua", ".proto", ".json", ".jinja"}
)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def named(path):
    return str(path.relative_to(ROOT))


def test_the_operators_folder_does_not_hide_the_standard_library():
    listing = sorted(path.name for path in (ROOT / "operator").iterdir())

    found = subprocess.run(
        [sys.executable, "-c", "import operator, collections; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "__init__.py" not in listing
    assert not found.stdout.startswith(str(ROOT / "operator"))


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_every_module_says_what_it_is_for(path):
    tree = ast.parse(path.read_text())

    said = ast.get_docstring(tree)

    assert said


def test_no_file_knows_where_it_was_written():
    places = re.compile(r"/(?:home|root|Users|work)/\w|file://")

    knowing = [named(path) for path in TEXTS if places.search(path.read_text())]

    assert knowing == [named(Path(__file__))]


def test_every_command_of_the_readme_is_there(capsys):
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert main(["--help"]) == 0

    usage = capsys.readouterr().out
    targets = set(re.findall(r"\bmake ([a-z0-9-]+)", readme))
    commands = set(re.findall(r"(?:`|^ {4})leadsman ([a-z-]+)", readme, re.MULTILINE))

    assert {"demo", "test"} <= targets <= set(re.findall(r"^([a-z0-9-]+):", makefile, re.MULTILINE))
    assert {"demo", "serve", "bench", "simulate-engine"} <= commands
    assert commands <= set(re.findall(r"^  ([a-z-]+) ", usage, re.MULTILINE))


def test_the_changelog_begins_with_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text()

    versions = re.findall(r"^## (\S+)", changelog, re.MULTILINE)

    assert versions[0] == PROJECT["version"]


def test_the_lock_names_exact_versions_from_no_place_of_its_own():
    lines = (ROOT / "requirements.lock").read_text().splitlines()

    odd = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)]

    assert odd == []


def test_the_lock_holds_every_dependency():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    extras = PROJECT["optional-dependencies"].values()
    asked = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]

    locked = {plain(line.partition("==")[0]) for line in lines}

    assert {plain(re.split(r"[=<>~ ]", line)[0]) for line in asked} <= locked


def plain(name):
    return re.sub(r"[._-]+", "-", name).lower()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    dead = [link for link in links if not (page.parent / link).exists()]

    assert dead == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_test_that_a_page_names_is_there(page):
    pointers = re.findall(r"((?:tests|e2e)/[\w/]+\.py)::(\w+)", page.read_text())

    missing = [
        f"{file}::{name}"
        for file, name in pointers
        if not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]

    assert missing == []


def test_every_page_is_reached_from_the_sites_list():
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    [_, *sections] = site["nav"]

    listed = {page for [pages] in map(dict.values, sections) for [page] in map(dict.values, pages)}
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}

    assert listed == {page for page in written if not page.startswith("adr/0")} - {"index.md"}


def test_the_license_is_the_whole_of_apache_2():
    text = (ROOT / "LICENSE").read_text()

    sections = re.findall(r"^ {3}(\d)\. ", text, re.MULTILINE)

    assert sections == list("123456789")
    assert "APPENDIX: How to apply the Apache License to your work." in text
    assert PROJECT["license"] == "Apache-2.0"


def test_the_example_of_an_envoy_is_what_the_demo_runs():
    engines = [f"10.0.0.{number}:8000" for number in (1, 2, 3)]
    ours = EnvoyConfig(engines=engines, picker="127.0.0.1:9002", port=8080).bootstrap()

    shown = yaml.safe_load((ROOT / "docs" / "envoy.example.yaml").read_text())

    assert without_places(shown) == without_places(ours)


def without_places(bootstrap):
    """Leave out where Envoy's own console is, and where the script is kept."""
    [listener] = bootstrap["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    [script] = [one for one in manager["http_filters"] if one["name"].endswith(".lua")]
    del script["typed_config"]["default_source_code"]
    return bootstrap["static_resources"]


def test_the_example_of_a_recording_can_be_played():
    page = (ROOT / "docs" / "recordings.md").read_text()
    [example] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)

    played = recorded.Replayed(json.loads(example), None, true_lengths=False)
    figures = played.play().figures()

    assert figures["requests"] == 0


LOGS = {"debug", "info", "warning", "error", "exception", "critical"}


def is_logging(call):
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in LOGS:
        return False
    owner = ast.unparse(function.value).split(".")[-1]
    return owner.lower() in {"log", "logger", "logging", "_log"}


@pytest.mark.parametrize("path", MODULES, ids=named)
def test_a_log_message_is_constant_and_what_differs_is_a_field(path):
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]

    loose = [
        ast.unparse(call)
        for call in filter(is_logging, calls)
        if len(call.args) != 1
        or not isinstance(call.args[0], ast.Constant)
        or "%" in str(call.args[0].value)
    ]

    assert loose == []


def test_that_log_messages_are_looked_at_is_no_accident():
    calls = [
        node
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and is_logging(node)
    ]

    assert len(calls) >= sum("getLogger" in path.read_text() for path in MODULES)
