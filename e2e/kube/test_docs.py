"""What the docs, and helm's notes, say to type is typed on a real API server, page by page.

What a page shows is applied where it stands, as a reader would. What needs more than an API server
is held to what it names: for a port that is forwarded, an object that has it; for `helm test`, a
release that has tests. What is fetched from elsewhere is not run.
"""

import json
import os
import re
import shlex
import subprocess

import pytest
import yaml

from .conftest import OURS, ROOT, budget, create

DOCS = ROOT / "docs"
TYPED = r"(?:kubectl|helm) [^\n`]+"
STEP = re.compile(
    rf"```yaml\n(?P<shown>.*?)```|(?:^| {{2}})(?P<line>{TYPED})$|`(?P<said>{TYPED})`",
    re.MULTILINE | re.DOTALL,
)
FILES = {"EngineProfile": "profile.yaml"}
PLACEHOLDERS = {"NAME": "everyone"}
WITH_A_PAGE = ["helm", "install", "leadsman", "helm/leadsman", "--set", "page.enabled=true"]


def steps(text):
    """Give what a text shows and says to type, in its order: YAML documents, and lists of words."""
    for found in STEP.finditer(text.replace("\\\n", " ")):
        if found["shown"]:
            yield yaml.safe_load(found["shown"])
        elif len(words := shlex.split(found["line"] or found["said"], comments=True)) > 2:
            yield [PLACEHOLDERS.get(word, word) for word in words]


def is_done(step):
    """Whether a step does something, rather than show a part of a file."""
    return isinstance(step, list) or "kind" in step


PAGES = [page for page in sorted(DOCS.rglob("*.md")) if any(map(is_done, steps(page.read_text())))]


class Reader:
    """Does what a page says, in a folder like the repository's; `releases`: those that it made."""

    def __init__(self, programs, folder, config):
        self.programs, self.folder = programs, folder
        self.environment = os.environ | {"KUBECONFIG": str(config), "KUBE_EDITOR": "true"}
        self.releases = []
        for name in ("helm", "crds"):
            (folder / name).symlink_to(ROOT / name)

    def keep(self, shown):
        """Write what is shown to the file that the lines name; gives its name."""
        name = "values.yaml" if "pools" in shown else FILES.get(shown.get("kind"), "shown.yaml")
        (self.folder / name).write_text(json.dumps(shown))
        return name

    def type(self, words):
        """Do what a line says, as far as it can be done here."""
        if any("://" in word for word in words):
            return
        if "port-forward" in words:
            self._has_port(words)
        elif words[0] == "helm" and "test" in words:
            verb = words.index("test")
            hooks = [*words[:verb], "get", "hooks", *words[verb + 1 :]]
            assert "helm.sh/hook: test" in self.run(hooks)
        else:
            said = self.run(words)
            if words[:2] == ["helm", "install"]:
                self.releases.append(_release(words))
                self.follow(said)

    def follow(self, text):
        """Do all that a text says."""
        for step in steps(text):
            if isinstance(step, list):
                self.type(step)
                continue
            name = self.keep(step)
            if "kind" in step:
                self.run(["kubectl", "apply", "-f", name])

    def run(self, words):
        command = [str(self.programs[words[0]]), *words[1:]]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def _has_port(self, words):
        forwarded = words.index("port-forward")
        named, port = words[forwarded + 1 : forwarded + 3]
        spec = json.loads(self.run([*words[:forwarded], "get", named, "-o", "json"]))["spec"]
        pod = spec.get("template", {}).get("spec", {})
        containers = pod.get("containers", []) + pod.get("initContainers", [])
        ports = [one["port"] for one in spec.get("ports", [])]
        ports += [one["containerPort"] for container in containers for one in container["ports"]]
        assert int(port.rpartition(":")[2]) in ports, (words, ports)


def _release(words):
    """Say which release an installation makes: its name, and how to say where it is."""
    where = words.index("--namespace") if "--namespace" in words else len(words)
    return [words[2], *words[where : where + 2]]


@pytest.fixture(scope="module")
def llm(crowded):
    """A namespace, and a budget in it; gives a kubeconfig for which it is the default."""
    name = "llm"
    create(crowded, "/api/v1/namespaces", {"metadata": {"name": name}})
    create(crowded, OURS.format(name, "latencybudgets"), budget(PLACEHOLDERS["NAME"]))
    config = json.loads(crowded.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = name
    return json.dumps(config)


@pytest.fixture
def reader(llm, helm_path, kubectl_path, tmp_path):
    """A reader who has the guide's files at hand."""
    config = tmp_path / "kubeconfig"
    config.write_text(llm)
    reader = Reader({"helm": helm_path, "kubectl": kubectl_path}, tmp_path, config)
    for step in steps((DOCS / "guide.md").read_text()):
        if isinstance(step, dict):
            reader.keep(step)
    yield reader
    for release in reader.releases:
        reader.run(["helm", "uninstall", *release])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(DOCS)) for page in PAGES])
def test_what_a_page_says_to_type_can_be_typed(reader, page):
    text = page.read_text()
    if "helm install leadsman" not in text:
        reader.type([*WITH_A_PAGE, "--values", "values.yaml"])

    reader.follow(text)

    reader.run(["kubectl", "-n", "llm", "get", "inferencepool/chat", "service/leadsman-chat"])
