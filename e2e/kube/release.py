"""A release of the chart whose pods run: each is a process that does what its Deployment says.

There is no kubelet, so this is one: arguments, configuration, secret and account are read from the
API server as helm put them there, probes are asked as the Deployment states them, and a pod that is
to go gets its time. What a pod's own network would give is given otherwise: a process binds to an
address of its own in place of to all, and the names of Services are answered by `names`.
"""

import base64
import json
import os
import signal
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import yaml
from leadsman_bench.processes import children, free_ports, leadsman

from .conftest import PATIENCE, create, everything, kubeconfig_of
from .helm import CHART, Helm
from .names import names
from .probes import is_ready
from .stage import Stage, next_address

DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
CORE = "/api/v1/namespaces/{}/{}/{}"
LABELS = {"app": "chat"}


@dataclass(frozen=True)
class Replica:
    """One running pod of a Deployment. metrics: where it serves them, where it does."""

    name: str
    ip: str
    metrics: str | None

    def gauges(self, name):
        """Read a gauge: label's value → its own."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        pairs = [line.split() for line in lines if line.startswith(name + "{")]
        return {labels.split('"')[1]: float(value) for labels, value in pairs}


class Release:
    """The Deployments of a release in one namespace, by component."""

    def __init__(self, stage, names, name):
        self.stage = stage
        self.names = names
        self.name = name
        self.replicas = {}
        self._numbers = count(1)
        path = DEPLOYMENTS.format(stage.namespace)
        selector = f"?labelSelector=app.kubernetes.io/instance%3D{name}"
        self.deployments = {
            one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: one
            for one in stage.get(path + selector)["items"]
        }

    def service(self, component):
        """Give the name of a component's Service."""
        about = self.deployments[component]["metadata"]
        return f"{about['name']}.{about['namespace']}.svc"

    def run(self, component):
        """Start as many replicas as the Deployment asks for, and wait until they are ready."""
        self.start(component, self.deployments[component]["spec"]["replicas"])

    def start(self, component, count):
        """Start so many replicas, and wait until they are ready."""
        self.replicas[component] = []
        for _ in range(count):
            self._add(component)

    def roll(self, component):
        """Replace every replica, one after another, each new one before its old one goes."""
        for old in list(self.replicas[component]):
            self._add(component)
            self.end(component, old)

    def end(self, component, replica, how=signal.SIGTERM):
        """Take a replica out of its Service and tell it to end; wait until it has."""
        self.replicas[component].remove(replica)
        self._publish(component)
        pid = self.stage.running.pid(replica.name)
        os.kill(pid, how)
        grace = self._spec(component).get("terminationGracePeriodSeconds", 30)
        assert self.stage.running.ended(replica.name, within=grace) is not None, replica

    def _add(self, component):
        name = f"{component}-{next(self._numbers)}"
        replica = self._start(component, name, next_address())
        [container] = self._spec(component)["containers"]
        self.stage.running.until(name, lambda: is_ready(container, replica.ip), PATIENCE)
        self.replicas[component].append(replica)
        self._publish(component)

    def _publish(self, component):
        """Let the Service's name stand for the replicas that there are."""
        addresses = [one.ip for one in self.replicas[component]]
        self.names.known[self.service(component)] = addresses

    def _spec(self, component):
        return self.deployments[component]["spec"]["template"]["spec"]

    def _start(self, component, name, ip):
        [container] = self._spec(component)["containers"]
        arguments = [
            one.replace("dns:///", f"dns://{self.names.address}/") for one in container["args"]
        ]
        environment = [f"{one['name']}={self._secret(one)}" for one in container["env"]]
        metrics = None
        if component == "operator":
            config = self.stage.folder / f"{name}.kubeconfig"
            config.write_text(
                kubeconfig_of(
                    self.stage.plane, self.stage.folder, self._token(component)
                ).read_text()
            )
            arguments += [f"--listen={ip}:9100", f"--health={ip}:8081", f"--kubeconfig={config}"]
        else:
            path, metrics = self._configured(component, name, ip)
            arguments.append(f"--config={path}")
        self.stage.running.start(name, ["env", *environment, *leadsman(*arguments)])
        return Replica(name, ip, metrics)

    def _configured(self, component, name, ip):
        """Write a picker's file from its ConfigMap, on the addresses of this pod."""
        [volume] = [one for one in self._spec(component)["volumes"] if one["name"] == "config"]
        held = self._get("configmaps", volume["configMap"]["name"])["data"]["picker.yaml"]
        config = yaml.safe_load(held)
        picker = config["picker"]
        [port] = free_ports(1)
        picker["metrics_port"] = port
        picker["journal"] = str(self.stage.folder / f"{name}.journal")
        for key in ("listen", "health"):
            picker[key] = picker[key].replace("0.0.0.0", ip)
        path = self.stage.folder / f"{name}.yaml"
        path.write_text(json.dumps(config))
        return path, f"127.0.0.1:{port}"

    def _secret(self, variable):
        source = variable["valueFrom"]["secretKeyRef"]
        held = self._get("secrets", source["name"])["data"][source["key"]]
        return base64.b64decode(held).decode()

    def _token(self, component):
        account = self._spec(component)["serviceAccountName"]
        return self.stage.plane.token_of(self.stage.namespace, account)

    def _get(self, plural, name):
        return self.stage.get(CORE.format(self.stage.namespace, plural, name))


@contextmanager
def installed(helm_path, plane, folder, namespace, **values):
    """Install the chart in a new namespace with a pool `chat`; gives the release, without pods.

    Where all went well, it is stopped and uninstalled in the end, and of all that ran nothing may
    be left. An operator that still runs could make its Lease anew before its rights go.
    """
    create(plane, "/api/v1/namespaces", {"metadata": {"name": namespace}})
    before = _outside_of_others(plane, namespace)
    helm = Helm(helm_path, folder, plane.kubeconfig)
    with children(folder / "children") as running, names() as known:
        stage = Stage(plane, namespace, running, folder)
        made = {"matchLabels": LABELS, "targetPorts": [stage.port]}
        values |= {"pools": [{"name": "chat", "create": made}], "namespaces": [namespace]}
        helm.does("install", "r", str(CHART), "--namespace", namespace, values=values)
        yield Release(stage, known, "r")
        running.stop()
        helm.does("uninstall", "r", "--namespace", namespace)
        odd = _outside_of_others(plane, namespace) ^ before
        assert not odd, f"uninstalling {namespace} left or took along: {sorted(map(str, odd))}"


def _outside_of_others(plane, namespace):
    """List all objects of a namespace but its pods, which are engines, and those of none."""
    of_none = {one for one in everything(plane) if one[1] is None and one[0] != "Namespace"}
    here = {one for one in everything(plane) if one[1] == namespace and one[0] != "Pod"}
    return of_none | here
