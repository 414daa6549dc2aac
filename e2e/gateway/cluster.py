"""A cluster with Istio's gateway and Leadsman installed by its chart, as a user would have it."""

import contextlib
import io
import json
import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from kube.conftest import our_crds, within
from kube.control_plane import ControlPlane, control_plane
from kube.helm import CHART, Helm
from leadsman_bench.processes import Children, children, leadsman

from .controllers import is_ready
from .istio import PORT, objects, start_pilot
from .kubelet import CRASHED, MERGE, UNREADY, Kubelet
from .network import NODE, Network

NAMESPACE = "llm"
RELEASE = "leadsman"
PATIENCE = 60.0
COUNT = re.compile(r'^leadsman_(\w+)_total\{\w+="(\w+)"\} (\S+)$', re.MULTILINE)
SELECTION, SERVED = "test-epp-endpoint-selection", "x-conformance-test-served-endpoint"
COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "Service": "/api/v1/namespaces/{}/services",
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "Gateway": "/apis/gateway.networking.k8s.io/v1/namespaces/{}/gateways",
    "HTTPRoute": "/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes",
    "InferencePool": "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools",
    "DestinationRule": "/apis/networking.istio.io/v1/namespaces/{}/destinationrules",
    "LatencyBudget": "/apis/leadsman.dev/v1alpha1/namespaces/{}/latencybudgets",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client got. served: where the gateway says that the request went.

    is_cut: the connection ended before the body did.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    is_cut: bool

    @property
    def served(self) -> str | None:
        return self.headers.get(SERVED)


@dataclass(kw_only=True)
class Cluster:
    """What tests do to it, as a user."""

    plane: ControlPlane
    kubelet: Kubelet
    running: Children
    helm: Path
    folder: Path
    model: str = ""
    url: str = ""

    # -- objects -------------------------------------------------------------------------------

    def path(self, kind: str, name: str = "") -> str:
        path = COLLECTIONS[kind].format(NAMESPACE)
        return f"{path}/{name}" if name else path

    def create(self, body: dict) -> None:
        status, said = self.plane.ask("POST", self.path(body["kind"]), body)
        assert status == 201, said

    def get(self, kind: str, name: str) -> dict:
        status, said = self.plane.ask("GET", self.path(kind, name))
        assert status == 200, said
        return said

    def patch(self, kind: str, name: str, body: dict) -> dict:
        status, said = self.plane.ask("PATCH", self.path(kind, name), body, kind=MERGE)
        assert status == 200, said
        return said

    def delete(self, kind: str, name: str) -> None:
        status, said = self.plane.ask("DELETE", self.path(kind, name))
        assert status in (200, 202), said

    def install(self, values: dict) -> None:
        """Install the chart, or upgrade it to these values."""
        self._helm("upgrade", "--install", RELEASE, str(CHART), values=values)

    def put_to_the_test(self) -> str:
        """Run `helm test`, as the chart's notes say; gives what it says. Fails where a pod does."""
        return self._helm("test", RELEASE, "--timeout=240s")

    def _helm(self, *arguments: str, **more) -> str:
        helm = Helm(self.helm, self.folder, self.plane.kubeconfig)
        return helm.does(*arguments, "--namespace", NAMESPACE, **more)

    # -- pods ----------------------------------------------------------------------------------

    def engine(self, name: str, *, app: str = "chat") -> None:
        """Create an engine's pod."""
        place = ["--host", "$(POD_IP)", "--port", "8000", "--speed", "10"]
        probe = {"httpGet": {"path": "/health", "port": 8000}}
        container = {
            "name": "engine",
            "image": "engine",
            "args": [*place, "--events-port", "5557", "--replay-port", "5558"],
            "readinessProbe": probe | {"periodSeconds": 1, "failureThreshold": 1},
            # What a picker chose a moment before is still on its way (docs/operations.md).
            "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
        }
        self.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": {"app": app}},
                "spec": {"containers": [container]},
            }
        )

    def endpoint(self, name: str) -> str:
        """Give an engine's endpoint, once it is ready."""
        assert within(PATIENCE, lambda: self.is_ready(name)), self.words()
        return f"{self.address(name)}:8000"

    def is_ready(self, name: str) -> bool:
        return is_ready(self.get("Pod", name))

    def hold_unready(self, name: str, value: str | None = "true") -> None:
        """Have a pod's probe fail; None: let it be as it is."""
        self.patch("Pod", name, {"metadata": {"annotations": {UNREADY: value}}})

    def revive(self, name: str) -> None:
        """Have a crashed container be noticed and started again."""
        self.patch("Pod", name, {"metadata": {"annotations": {CRASHED: None}}})

    def pods_of(self, component: str) -> list[str]:
        selector = f"?labelSelector=app.kubernetes.io/component%3D{component}"
        _, said = self.plane.ask("GET", self.path("Pod") + selector)
        return [one["metadata"]["name"] for one in said["items"]]

    def address(self, name: str) -> str:
        """Give a pod's IP address."""
        return self.get("Pod", name)["status"]["podIP"]

    def counted(self, pool: str) -> Counter[str]:
        """Add up what a pool's pickers have counted, by name and label: `outcomes finished`."""
        counted: Counter[str] = Counter()
        for pod in self.pods_of(f"picker-{pool}"):
            page = f"http://{self.address(pod)}:9090/metrics"
            with urllib.request.urlopen(page, timeout=5) as answer:
                for name, label, value in COUNT.findall(answer.read().decode()):
                    counted[f"{name} {label}"] += int(float(value))
        return counted

    def words(self) -> str:
        """Say what every pod of ours wrote last."""
        logs = sorted(self.kubelet.folder.glob(f"{NAMESPACE}.*/log"))
        return "\n".join(f"{log.parent.name}: {log.read_text()[-600:]}" for log in logs)

    # -- requests ------------------------------------------------------------------------------

    async def get_models(self) -> Answer:
        """Send a request without a body."""
        return await self._send("GET", "/v1/models", None, {})

    async def ask(self, *, to: str | None = None, body: dict | None = None, **headers) -> Answer:
        """Send a short completion. to: the endpoints that are eligible."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if to is not None:
            named[SELECTION] = to
        wanted = {"model": self.model, "prompt": "Sound the depth.", "max_tokens": 2}
        return await self._send("POST", "/v1/completions", wanted | (body or {}), named)

    async def _send(self, method: str, path: str, body: dict | None, headers: dict) -> Answer:
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        headers = headers | ({} if body is None else {"content-type": "application/json"})
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session,
            session.request(method, self.url + path, data=data, headers=headers) as answer,
        ):
            said = {name.lower(): value for name, value in answer.headers.items()}
            body, is_cut = b"", False
            try:
                async for part in answer.content.iter_any():
                    body += part
            except aiohttp.ClientPayloadError:
                is_cut = True
            return Answer(status=answer.status, headers=said, body=body, is_cut=is_cut)


@contextlib.contextmanager
def running_cluster(found: dict, folder: Path) -> Iterator[Cluster]:
    """Run a control plane, its kubelet and pilot until left, with nothing of a user's in it.

    found: the programs, as gateway.run found them.
    """
    network = Network(folder)
    images = {"leadsman/leadsman": leadsman(), "engine": leadsman("simulate-engine")}
    with contextlib.ExitStack() as stack:
        state = folder / "plane"
        state.mkdir()
        plane = stack.enter_context(control_plane(state, address=NODE))
        kubelet = Kubelet(plane, network, folder / "pods", images | {"envoy": [found["envoy"]]})
        thread = threading.Thread(target=kubelet.run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(kubelet.stop)
        cluster = Cluster(
            plane=plane,
            kubelet=kubelet,
            running=stack.enter_context(children(folder / "children")),
            helm=Path(found["helm"]),
            folder=folder,
        )
        _define(cluster, [Path(path) for path in found["definitions"]])
        for name in ("istio-system", NAMESPACE):
            cluster.create({"kind": "Namespace", "metadata": {"name": name}})
        start_pilot(cluster.running, Path(found["pilot"]), plane, folder)
        yield cluster


def _define(cluster: Cluster, files: list[Path]) -> None:
    """Create the kinds, and wait until all are served."""
    documents = [one for path in files for one in yaml.safe_load_all(path.read_text()) if one]
    documents += our_crds()
    kinds = [one for one in documents if one.get("kind") == "CustomResourceDefinition"]
    for kind in kinds:
        cluster.create(kind)
    for kind in kinds:
        assert within(PATIENCE, lambda kind=kind: _is_served(cluster, kind)), kind["metadata"]


def _is_served(cluster: Cluster, kind: dict) -> bool:
    said = cluster.get("CustomResourceDefinition", kind["metadata"]["name"])
    conditions = said.get("status", {}).get("conditions", [])
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)


def with_gateway(cluster: Cluster, pools: dict[str, int]) -> None:
    """Create a gateway whose requests all go to these pools, by weight."""
    for one in objects(NAMESPACE, "gw", pools):
        cluster.create(one)
    assert within(PATIENCE, lambda: cluster.is_ready("gw")), cluster.kubelet.log(NAMESPACE, "gw")
    cluster.url = f"http://{cluster.address('gw')}:{PORT}"
