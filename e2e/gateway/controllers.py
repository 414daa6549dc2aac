"""Stand-ins for two controllers of Kubernetes: Deployments make pods, Services get EndpointSlices.

A Deployment is rolled as with maxSurge 1 and maxUnavailable 0: one new pod more than wanted, and an
old one goes once all wanted are ready without it. A pod that is told to go leaves its Services'
ready endpoints only after it was told, which is the order in which requests get lost.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable

SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
TEMPLATE = "pod-template-hash"
_numbers = itertools.count(1)


def step(ask: Callable[..., dict], pods: list[dict]) -> None:
    """Bring Deployments and EndpointSlices to where they should be, given all pods."""
    for deployment in ask("GET", "/apis/apps/v1/deployments")["items"]:
        _roll(ask, deployment, list(_selected(pods, deployment, deployment["spec"]["selector"])))
    there = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one
        for one in ask("GET", "/apis/discovery.k8s.io/v1/endpointslices")["items"]
    }
    for service in ask("GET", "/api/v1/services")["items"]:
        if "selector" in service["spec"]:
            _publish(ask, service, pods, there)


def is_ready(pod: dict) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _selected(pods: list[dict], owner: dict, selector: dict) -> Iterable[dict]:
    wanted = selector["matchLabels"].items()
    for pod in pods:
        about = pod["metadata"]
        is_near = about["namespace"] == owner["metadata"]["namespace"]
        if is_near and wanted <= about.get("labels", {}).items():
            yield pod


def _roll(ask: Callable[..., dict], deployment: dict, pods: list[dict]) -> None:
    spec, about = deployment["spec"], deployment["metadata"]
    written = json.dumps(spec["template"], sort_keys=True).encode()
    template = hashlib.sha256(written).hexdigest()[:10]
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    current = [pod for pod in alive if pod["metadata"]["labels"].get(TEMPLATE) == template]
    old = [pod for pod in alive if pod not in current]
    path = f"/api/v1/namespaces/{about['namespace']}/pods"
    wanted = spec["replicas"]
    room = wanted + bool(old) - len(alive)
    for _ in range(max(0, min(wanted - len(current), room))):
        ask("POST", path, _pod(deployment, template))
    ready = sum(map(is_ready, alive))
    surplus = [pod for pod in old if not is_ready(pod)] + current[wanted:]
    surplus += [pod for pod in old if is_ready(pod)][: max(0, ready - wanted)]
    for name in {pod["metadata"]["name"] for pod in surplus}:
        ask("DELETE", f"{path}/{name}")


def _pod(deployment: dict, template: str) -> dict:
    about, made = deployment["metadata"], deployment["spec"]["template"]
    labels = made["metadata"]["labels"] | {TEMPLATE: template}
    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": about["name"],
        "uid": about["uid"],
        "controller": True,
    }
    metadata = {"name": f"{about['name']}-{template}-{next(_numbers)}", "labels": labels}
    return {"metadata": metadata | {"ownerReferences": [owner]}, "spec": made["spec"]}


def _publish(
    ask: Callable[..., dict], service: dict, pods: list[dict], there: dict[tuple[str, str], dict]
) -> None:
    about, spec = service["metadata"], service["spec"]
    running = [
        pod
        for pod in _selected(pods, service, {"matchLabels": spec["selector"]})
        if pod.get("status", {}).get("podIP")
    ]
    always = spec.get("publishNotReadyAddresses", False)
    wanted = {
        "addressType": "IPv4",
        "endpoints": [_endpoint(pod, always=always) for pod in running],
        "ports": [_port(port, running) for port in spec["ports"]],
    }
    key = (about["namespace"], about["name"])
    path, held = SLICES.format(about["namespace"]), there.get(key)
    labels = {"kubernetes.io/service-name": about["name"]}
    body = {"metadata": {"name": about["name"], "labels": labels}, **wanted}
    if held is None:
        ask("POST", path, body)
    elif any((held.get(name) or []) != wanted[name] for name in wanted):
        ask("PUT", f"{path}/{about['name']}", body)


def _endpoint(pod: dict, *, always: bool) -> dict:
    about, ready = pod["metadata"], is_ready(pod)
    is_going = "deletionTimestamp" in about
    conditions = {
        "ready": always or (ready and not is_going),
        "serving": ready,
        "terminating": is_going,
    }
    target = {
        "kind": "Pod",
        "name": about["name"],
        "namespace": about["namespace"],
        "uid": about["uid"],
    }
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": conditions,
        "targetRef": target,
    }


def _port(port: dict, pods: list[dict]) -> dict:
    """Say a Service's port as its pods have it."""
    number = port["targetPort"]
    for pod in pods:
        for one in pod["spec"]["containers"][0].get("ports", []):
            if one.get("name") == number:
                number = one["containerPort"]
    said = {"port": number if isinstance(number, int) else port["port"], "protocol": "TCP"}
    named = {key: port[key] for key in ("name", "appProtocol") if port.get(key)}
    return said | named
