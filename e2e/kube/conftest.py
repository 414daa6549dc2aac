"""A control plane for the session, with the CRDs in it, and what tests do to it."""

import asyncio
import itertools
import json
from pathlib import Path

import pytest
import yaml
from leadsman_bench.processes import children

from .control_plane import control_plane, kubeconfig
from .foreign_crds import foreign_crds
from .go_programs import NotToBeHadError, module_folder
from .helm import helm_program, kubectl_program
from .redis_server import RedisServer

ROOT = Path(__file__).parents[2]
GATEWAY_API = "sigs.k8s.io/gateway-api-inference-extension"
POOL_CRD = ("v1.6.0", "inference.networking.k8s.io_inferencepools.yaml")
ROUTE_CRD = ("sigs.k8s.io/gateway-api", "v1.6.0", "config/crd/standard")
OBJECTIVE_CRD = ("v1.5.0", "inference.networking.x-k8s.io_inferenceobjectives.yaml")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OURS = "/apis/leadsman.dev/v1alpha1/namespaces/{}/{}"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools"
PODS = "/api/v1/namespaces/{}/pods"
PATIENCE = 60.0

_numbers = itertools.count(1)


@pytest.fixture(scope="session", autouse=True)
def no_event_loop_by_accident():
    """Keep asyncio from making a loop that nobody closes."""
    asyncio.set_event_loop(None)


@pytest.fixture
def redis(tmp_path):
    """A Redis server that runs."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def bare_plane(tmp_path_factory):
    """An API server with nothing in it."""
    try:
        with control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
            yield plane
    except NotToBeHadError as error:
        pytest.skip(f"no Kubernetes control plane: {error}")


@pytest.fixture(scope="session")
def plane(bare_plane):
    """An API server with our CRDs and the upstream ones of both groups of objectives."""
    for definition in [*our_crds(), *upstream_crds()]:
        install(bare_plane, definition)
    return bare_plane


@pytest.fixture(scope="session")
def crowded(plane):
    """The API server, where gateways and Prometheus have been too."""
    for definition in foreign_crds():
        install(plane, definition)
    return plane


@pytest.fixture(scope="session")
def helm_path():
    """Where helm is."""
    return _or_skip(helm_program)


@pytest.fixture(scope="session")
def kubectl_path():
    """Where kubectl is."""
    return _or_skip(kubectl_program)


def _or_skip(program):
    try:
        return program()
    except NotToBeHadError as error:
        pytest.skip(str(error))


@pytest.fixture
def namespace(plane):
    """A namespace of the test's own. It stays: nothing finalizes namespaces here."""
    name = f"test-{next(_numbers)}"
    create(plane, "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def running(tmp_path):
    """Child processes that end with the test."""
    with children(tmp_path / "children") as held:
        yield held


def our_crds():
    return [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]


def upstream_crds():
    pools, legacy = (
        yaml.safe_load(
            (module_folder(GATEWAY_API, version) / "config/crd/bases" / name).read_text()
        )
        for version, name in (POOL_CRD, OBJECTIVE_CRD)
    )
    return [pools, legacy, of_group(legacy, "llm-d.ai"), routes()]


def routes():
    module, version, folder = ROUTE_CRD
    name = "gateway.networking.k8s.io_httproutes.yaml"
    return yaml.safe_load((module_folder(module, version) / folder / name).read_text())


def of_group(definition, group):
    """Make the same kind in another group: llm-d's objectives are the legacy ones, moved."""
    moved = json.loads(json.dumps(definition))
    moved["spec"]["group"] = group
    moved["metadata"] = {"name": f"{moved['spec']['names']['plural']}.{group}"}
    return moved


def install(plane, definition):
    """Create a CRD, and wait until its objects can be listed."""
    create(plane, CRDS, definition)
    spec = definition["spec"]
    [version] = [one["name"] for one in spec["versions"] if one["storage"]]
    path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
    assert within(PATIENCE, lambda: plane.ask("GET", path)[0] == 200)


def within(patience, is_so):
    """Ask until it is so, or for as long as is bearable."""
    import time

    until = time.monotonic() + patience
    while time.monotonic() < until:
        if is_so():
            return True
        time.sleep(0.1)
    return False


def create(plane, path, body):
    status, said = plane.ask("POST", path, body)
    assert status == 201, said
    return said


def everything(plane):
    """List all objects that there are, of every kind that can be listed, but Events."""
    groups = plane.ask("GET", "/apis")[1]["groups"]
    found = set()
    for base in ["api/v1", *(f"apis/{one['preferredVersion']['groupVersion']}" for one in groups)]:
        for kind in plane.ask("GET", f"/{base}")[1]["resources"]:
            if "list" in kind["verbs"] and kind["kind"] != "Event":
                items = plane.ask("GET", f"/{base}/{kind['name']}")[1]["items"]
                about = [one["metadata"] for one in items]
                found |= {(kind["kind"], one.get("namespace"), one["name"]) for one in about}
    return found


def budget(name, **spec):
    return {
        "apiVersion": "leadsman.dev/v1alpha1",
        "kind": "LatencyBudget",
        "metadata": {"name": name},
        "spec": spec,
    }


def profile(name, **spec):
    return budget(name, **spec) | {"kind": "EngineProfile"}


def pool(name, labels, *ports):
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "targetPorts": [{"number": port} for port in ports],
        },
    }


def kubeconfig_of(plane, folder, token):
    """Write a kubeconfig for a token."""
    path = folder / "kubeconfig"
    path.write_text(kubeconfig(plane, token))
    return path
