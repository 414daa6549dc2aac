"""A stand-in for scheduler, kubelet and cluster DNS: containers are processes of this machine.

What bears on requests is done as a kubelet does it: a pod is ready by its readiness probe; one that
is deleted gets SIGTERM at once, while its endpoints are being withdrawn, and SIGKILL after
its grace; then it is gone. A container that ends is started again, but in a pod that asks for no
restart: that one has succeeded or failed. ConfigMaps, Secrets and the
service account reach the process as files and environment. There are no images: the first word of
a container's command is found by its image's name.

`CRASHED` on a pod keeps a dead container from being noticed: that is a node's failure, not a pod's.
`UNREADY` fails its probe.
"""

import base64
import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from kube.control_plane import ControlPlane, kubeconfig
from kube.probes import is_ready
from leadsman_bench.processes import dying_with_parent

from . import controllers
from .network import Network

NODE = "node"
CRASHED = "leadsman.test/crashed"
UNREADY = "leadsman.test/unready"
STEP = 0.2
MERGE = "application/merge-patch+json"


@dataclass
class Running:
    """A pod whose container runs."""

    net: str
    ip: str
    folder: Path
    process: "subprocess.Popen[bytes]"
    ready: bool = False
    probed_at: float = 0.0
    failures: int = 0
    terminate_until: float | None = None
    stop_at: float = 0.0
    stopping: bool = False


@dataclass
class Kubelet:
    """Runs every pod of a cluster. images: what to run for an image, by its name without a tag."""

    plane: ControlPlane
    network: Network
    folder: Path
    images: dict[str, list[str]]
    pods: dict[str, Running] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)
    problem: Exception | None = None

    def run(self) -> None:
        """Work until stopped; then kill what runs."""
        try:
            self._post("/api/v1/nodes", {"metadata": {"name": NODE}})
            while not self._stopped.wait(STEP):
                self._step()
        except Exception as problem:
            self.problem = problem
            raise
        finally:
            for one in self.pods.values():
                one.process.kill()
                one.process.wait()

    def stop(self) -> None:
        self._stopped.set()

    def crash(self, namespace: str, name: str) -> None:
        """Kill a pod's container, and let nobody notice."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        said = self._patch(path, {"metadata": {"annotations": {CRASHED: "true"}}})
        running = self.pods[said["metadata"]["uid"]]
        running.process.kill()
        running.process.wait()

    def log(self, namespace: str, name: str) -> str:
        """Return what a pod's container has written."""
        return (self.folder / f"{namespace}.{name}" / "log").read_text(errors="replace")

    # -- pods ----------------------------------------------------------------------------------

    def _step(self) -> None:
        pods = self._get("/api/v1/pods")["items"]
        here = {pod["metadata"]["uid"] for pod in pods}
        for uid in [uid for uid in self.pods if uid not in here]:
            self._end(uid)
        for pod in pods:
            self._pod(pod)
        controllers.step(self.ask, pods)
        self._tell_names()

    def _pod(self, pod: dict) -> None:
        about, uid = pod["metadata"], pod["metadata"]["uid"]
        running = self.pods.get(uid)
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        if "deletionTimestamp" in about:
            self._terminate(pod, path, running)
        elif "nodeName" not in pod["spec"]:
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            self._post(f"{path}/binding", {"metadata": {"name": about["name"]}, "target": target})
        elif running is None:
            self.pods[uid] = self._start(pod)
            self._tell(path, self.pods[uid])
        elif CRASHED not in about.get("annotations", {}) and _may_run(pod):
            self._watch(pod, path, running)

    def _start(self, pod: dict) -> Running:
        about = pod["metadata"]
        net, ip = self.network.join()
        folder = self.folder / f"{about['namespace']}.{about['name']}"
        folder.mkdir(parents=True, exist_ok=True)
        return Running(net, ip, folder, self._container(pod, net, ip, folder))

    def _container(self, pod: dict, net: str, ip: str, folder: Path) -> "subprocess.Popen[bytes]":
        [container] = pod["spec"]["containers"]
        image = container["image"].partition(":")[0]
        arguments = [one.replace("$(POD_IP)", ip) for one in container.get("args", [])]
        for mount in self._mounts(pod, container, folder):
            arguments = [one.replace(*mount) for one in arguments]
        command = self.network.inside(net, [*self.images[image], *arguments])
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                dying_with_parent(command),
                env=os.environ | self._environment(pod, container, folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _mounts(self, pod: dict, container: dict, folder: Path) -> list[tuple[str, str]]:
        """Write volumes to files; give where they are to be and where they are."""
        volumes = {one["name"]: one for one in pod["spec"].get("volumes", [])}
        mounts = []
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            place = folder / mount["name"]
            place.mkdir(exist_ok=True)
            if "configMap" in volume:
                for name, text in self._data(pod, "configmaps", volume["configMap"]["name"]):
                    (place / name).write_text(text)
                mounts.append((mount["mountPath"], str(place)))
        return mounts

    def _environment(self, pod: dict, container: dict, folder: Path) -> dict[str, str]:
        made = {}
        for one in container.get("env", []):
            wanted = one["valueFrom"]["secretKeyRef"]
            held = dict(self._data(pod, "secrets", wanted["name"]))
            made[one["name"]] = base64.b64decode(held[wanted["key"]]).decode()
        spec = pod["spec"]
        if spec.get("automountServiceAccountToken", True) and "serviceAccountName" in spec:
            made["KUBECONFIG"] = str(self._account(pod, folder))
        return made

    def _account(self, pod: dict, folder: Path) -> Path:
        namespace, name = pod["metadata"]["namespace"], pod["spec"]["serviceAccountName"]
        path = folder / "kubeconfig"
        path.write_text(kubeconfig(self.plane, self.plane.token_of(namespace, name)))
        return path

    def _data(self, pod: dict, kind: str, name: str) -> list[tuple[str, str]]:
        namespace = pod["metadata"]["namespace"]
        return list(self._get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")["data"].items())

    def _watch(self, pod: dict, path: str, running: Running) -> None:
        status = running.process.poll()
        if status is not None:
            if pod["spec"].get("restartPolicy") == "Never":
                self._tell(path, running, "Failed" if status else "Succeeded")
                return
            running.process = self._container(pod, running.net, running.ip, running.folder)
            running.ready = False
            self._tell(path, running)
            return
        [container] = pod["spec"]["containers"]
        probe = container.get("readinessProbe", {})
        now = time.monotonic()
        if running.ready and now < running.probed_at + probe.get("periodSeconds", 10):
            return
        running.probed_at = now
        is_held = UNREADY in pod["metadata"].get("annotations", {})
        works = not is_held and is_ready(container, running.ip)
        running.failures = 0 if works else running.failures + 1
        ready = works or (running.ready and running.failures < probe.get("failureThreshold", 3))
        if ready != running.ready:
            running.ready = ready
            self._tell(path, running)

    def _terminate(self, pod: dict, path: str, running: Running | None) -> None:
        if running is not None and running.process.poll() is None:
            now = time.monotonic()
            if running.terminate_until is None:
                grace = pod["metadata"].get("deletionGracePeriodSeconds", 30)
                running.terminate_until = now + grace
                running.stop_at = now + _pre_stop(pod)
            if now > running.terminate_until:
                running.process.kill()
            elif not running.stopping and now >= running.stop_at:
                running.stopping = True
                running.process.send_signal(signal.SIGTERM)
            return
        self.plane.ask("DELETE", path, {"gracePeriodSeconds": 0})
        if running is not None:
            self._end(pod["metadata"]["uid"])

    def _end(self, uid: str) -> None:
        gone = self.pods.pop(uid)
        gone.process.kill()
        gone.process.wait()
        self.network.leave(gone.net)

    def _tell(self, path: str, running: Running, phase: str = "Running") -> None:
        said = {
            "phase": phase,
            "podIP": running.ip,
            "podIPs": [{"ip": running.ip}],
            "conditions": [
                {"type": kind, "status": str(running.ready)}
                for kind in ("Ready", "ContainersReady")
            ],
        }
        self._patch(f"{path}/status", {"status": said})

    # -- names ---------------------------------------------------------------------------------

    def _tell_names(self) -> None:
        """Let every Service's name resolve to the addresses of its ready pods."""
        names: dict[str, list[str]] = {}
        for piece in self._get("/apis/discovery.k8s.io/v1/endpointslices")["items"]:
            service = piece["metadata"].get("labels", {}).get("kubernetes.io/service-name")
            ready = [one for one in piece["endpoints"] or [] if one["conditions"].get("ready")]
            for end in ("svc", "svc.cluster.local"):
                name = f"{service}.{piece['metadata']['namespace']}.{end}"
                names.setdefault(name, []).extend(ip for one in ready for ip in one["addresses"])
        self.network.say(names)

    # -- the API server ------------------------------------------------------------------------

    def _get(self, path: str) -> dict:
        return self.ask("GET", path)

    def _post(self, path: str, body: dict) -> dict:
        return self.ask("POST", path, body)

    def _patch(self, path: str, body: dict) -> dict:
        return self.ask("PATCH", path, body, kind=MERGE)

    def ask(self, method: str, path: str, body: dict | None = None, **more: str) -> dict:
        """Ask; what is gone or changed meanwhile is seen in the next step."""
        status, said = self.plane.ask(method, path, body, **more)
        assert status < 300 or status in (404, 409), (method, path, status, said)
        return said


def _may_run(pod: dict) -> bool:
    return pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")


def _pre_stop(pod: dict) -> float:
    """How long a pod serves on after it was deleted: its container's preStop sleep, in seconds."""
    hook = pod["spec"]["containers"][0].get("lifecycle", {}).get("preStop", {})
    return float(hook.get("sleep", {}).get("seconds", 0))
