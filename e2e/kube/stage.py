"""A namespace with pods whose engines are simulated, and an operator that follows them.

There is no kubelet: a pod is what a test says of it, and its engine a process at its address.
"""

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import yaml
from leadsman.curve import fingerprint
from leadsman.records import KvEvents, Learned, Stored, WorkerGone, WorkerSeen
from leadsman_bench.processes import answers, free_ports, leadsman
from leadsman_fleet.client import ClientTiming, FleetClient, Target
from leadsman_fleet.state import FleetState
from leadsman_operator.lessons import Lessons

from .conftest import PATIENCE, PODS, create, kubeconfig_of

RBAC = Path(__file__).parent / "rbac.yaml"
ACCOUNTS = "/api/v1/namespaces/{}/serviceaccounts"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
MERGE = "application/merge-patch+json"

_addresses = (
    f"127.{(os.getpid() >> 8) % 200 + 20}.{os.getpid() % 256}.{n}" for n in itertools.count(2)
)


def next_address():
    """Give a loopback address that no other pod has."""
    return next(_addresses)


class Stage:
    """One namespace of one test."""

    def __init__(self, plane, namespace, running, folder):
        self.plane = plane
        self.namespace = namespace
        self.running = running
        self.folder = folder
        [self.port] = free_ports(1)

    # -- pods and engines ----------------------------------------------------------------------

    def address(self):
        """Give an address that nobody has yet."""
        return next(_addresses)

    def engine(self, *options, ports=None, ip=None):
        """Start an engine at an address of its own; gives the address."""
        ip = ip or self.address()
        for port in ports or [self.port]:
            name = f"engine-{ip}-{port}"
            place = ["--host", ip, "--port", str(port)]
            self.running.start(name, leadsman("simulate-engine", *place, *options))
            self.running.until(
                name, lambda port=port: answers(f"http://{ip}:{port}/health"), PATIENCE
            )
        return ip

    def pod(self, name, ip, *, ready=True, labels=None):
        """Create a running pod at an address."""
        about = {"name": name, "labels": labels or {"app": "chat"}}
        containers = [{"name": "engine", "image": "vllm"}]
        spec = {"nodeName": "none", "containers": containers}
        create(
            self.plane,
            PODS.format(self.namespace),
            {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec},
        )
        self.be(name, ip=ip, ready=ready)

    def be(self, name, *, ip=None, ready=True, phase="Running"):
        """Say how a pod is."""
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]}
        if ip is not None:
            status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
        self.patch(f"{PODS.format(self.namespace)}/{name}/status", {"status": status})

    def delete(self, path, *, grace=None):
        """Delete an object; a pod stays, to go, until its grace is taken from it."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1"}
        options |= {} if grace is None else {"gracePeriodSeconds": grace}
        status, said = self.plane.ask("DELETE", path, options)
        assert status in (200, 202), said

    def patch(self, path, body):
        status, said = self.plane.ask("PATCH", path, body, kind=MERGE)
        assert status == 200, said
        return said

    def get(self, path):
        status, said = self.plane.ask("GET", path)
        assert status == 200, said
        return said

    # -- the operator --------------------------------------------------------------------------

    def operator(self, name="operator", *options):
        """Start an operator under an account that may do what it needs; gives its address."""
        fleet, health = free_ports(2)
        config = kubeconfig_of(self.plane, self.folder, self._token())
        addresses = ["--listen", f"127.0.0.1:{fleet}", "--health", f"127.0.0.1:{health}"]
        where = ["--kubeconfig", str(config), "--namespace", self.namespace]
        self.running.start(name, leadsman("operator", *addresses, *where, *options))
        ready = f"http://127.0.0.1:{health}/readyz"
        self.running.until(name, lambda: answers(ready), PATIENCE)
        return f"127.0.0.1:{fleet}"

    def picker(self, fleet, name, model):
        """Start a picker of a pool; gives its address."""
        port, metrics = free_ports(2)
        config = self.folder / "picker.yaml"
        settings = {"listen": f"127.0.0.1:{port}", "metrics_port": metrics, "drain": 0.0}
        config.write_text(yaml.safe_dump({"models": [{"name": model}], "picker": settings}))
        where = ["--fleet", fleet, "--pool", f"{self.namespace}/{name}", "--config", str(config)]
        self.running.start("picker", leadsman("extproc", *where))
        ready = f"http://127.0.0.1:{metrics}/metrics"
        self.running.until("picker", lambda: answers(ready), PATIENCE)
        return f"127.0.0.1:{port}"

    def remember(self, settings):
        """Keep a lesson of engines with these settings: a millisecond a token."""
        lessons = Lessons()
        samples = tuple((tokens, tokens / 1000) for tokens in range(100, 6000, 100))
        named = fingerprint(settings)
        lessons.take([Learned(worker="gone", fingerprint=named, samples=samples)])
        create(
            self.plane,
            f"/api/v1/namespaces/{self.namespace}/configmaps",
            {"metadata": {"name": "lessons"}, "data": {"lessons.json": lessons.written()}},
        )

    def _token(self):
        account = {"metadata": {"name": "leadsman-operator"}}
        role = yaml.safe_load(RBAC.read_text())
        subject = {
            "kind": "ServiceAccount",
            "name": "leadsman-operator",
            "namespace": self.namespace,
        }
        binding = {
            "metadata": {"name": f"leadsman-operator-{self.namespace}"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "leadsman-operator",
            },
            "subjects": [subject],
        }
        accounts = ACCOUNTS.format(self.namespace)
        for path, body in [(accounts, account), (ROLES, role), (BINDINGS, binding)]:
            status, said = self.plane.ask("POST", path, body)
            assert status in (201, 409), said
        return self.plane.token_of(self.namespace, "leadsman-operator")


class Follower:
    """What one picker hears of a pool."""

    def __init__(self, address, pool, name):
        self.workers = {}
        self.lessons = {}
        self.gone = []
        self.state = FleetState()
        target = Target(address=address, replica=name, pool=pool)
        timing = ClientTiming(linger=0.0, retry=0.2)
        self.client = FleetClient(target, self._hear, timing=timing)

    def _hear(self, record):
        self.state.apply(record)
        match record:
            case WorkerSeen():
                self.workers[record.worker] = record
            case WorkerGone():
                self.gone.append(record.worker)
                del self.workers[record.worker]
            case Learned():
                self.lessons[record.worker] = record

    @property
    def budgets(self):
        """The declared budgets' names, in order."""
        declared = self.client.declared
        return None if declared is None else [one.budget.name for one in declared.budgets]

    def endpoints(self):
        """Which endpoints there are."""
        return set(self.readiness())

    def readiness(self):
        """Which endpoints there are, and whether each takes requests."""
        return {worker.endpoint: worker.ready for worker in self.workers.values()}


@contextlib.asynccontextmanager
async def following(address, pool, name="test") -> AsyncIterator[Follower]:
    """Follow a pool by its stream, until left."""
    follower = Follower(address, pool, name)
    task = asyncio.create_task(follower.client.run())
    try:
        yield follower
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def blocks(state):
    """Say what each worker holds, as often as it holds it."""
    held = {}
    for record in state.snapshot():
        if isinstance(record, KvEvents):
            stored = [one for one in record.events if isinstance(one, Stored)]
            held[record.worker] = sorted(int(key) for one in stored for key in one.keys)
    return held


async def until(is_so, say=lambda: None):
    """Wait until it is so; say: what to tell where it is not in time."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(say()) from None
