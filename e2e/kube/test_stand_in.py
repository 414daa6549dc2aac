"""A picker in place of the upstream conformance suite's own: its arguments, its rights, its pods.

The suite's backends only echo, so here nothing at all is at the pods' addresses.
"""

import argparse
import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from leadsman_bench.conformance.command import _channel, main
from leadsman_bench.conformance.script import MODELS, Target, refused, sent_on
from leadsman_bench.processes import free_ports, leadsman
from leadsman_extproc.conformance import SELECTION

from .conftest import PATIENCE, PODS, POOLS, create, kubeconfig_of, pool
from .stage import ACCOUNTS, Stage

ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/{}"
PORTS = (3000, 3002)


@pytest.fixture
def stand_in(plane, namespace, running, tmp_path):
    """Three pods of two ports, one of them not ready, and the picker; gives it and the stage."""
    stage = Stage(plane, namespace, running, tmp_path)
    create(plane, POOLS.format(namespace), pool("chat", {"app": "chat"}, *PORTS))
    for number in (1, 2, 3):
        stage.pod(f"echo-{number}", f"10.0.0.{number}", ready=number < 3)
    picks, health = free_ports(2)
    config = kubeconfig_of(plane, tmp_path, reader_of_pods(plane, namespace))
    arguments = f"--pool-name chat --pool-namespace {namespace} --zap-encoder json"
    ports = f"--grpc-port {picks} --grpc-health-port {health}"
    told = leadsman("extproc", "--conformance", *arguments.split(), *ports.split())
    running.start("picker", ["env", f"KUBECONFIG={config}", *told])
    running.until("picker", lambda: is_serving(health), PATIENCE)
    return f"127.0.0.1:{picks}", stage


def reader_of_pods(plane, namespace):
    """Give a token for what the suite's manifests let a picker do, and no more."""
    name = {"metadata": {"name": "reader"}}
    rules = [
        {"apiGroups": [group], "resources": [plural], "verbs": ["get", "list", "watch"]}
        for group, plural in (("", "pods"), ("inference.networking.k8s.io", "inferencepools"))
    ]
    about = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}
    who = [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}]
    create(plane, ACCOUNTS.format(namespace), name)
    create(plane, ROLES.format(namespace, "roles"), name | {"rules": rules})
    bound = name | {"roleRef": about, "subjects": who}
    create(plane, ROLES.format(namespace, "rolebindings"), bound)
    return plane.token_of(namespace, "reader")


def is_serving(port):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        asked = health_pb2.HealthCheckRequest(service="inference-extension")
        try:
            said = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=5)
        except grpc.RpcError:
            return False
    return said.status == health_pb2.HealthCheckResponse.SERVING


def test_it_passes_the_whole_script(stand_in, capsys):
    address, _ = stand_in

    status = main(["--target", address, "--model", "any", "--insecure", "--patience", "30"])

    assert (status, "FAIL" in capsys.readouterr().out) == (0, False)


async def test_it_picks_whom_the_suites_header_names_while_he_is_ready(stand_in):
    address, stage = stand_in
    options = {"target": address, "insecure": True, "ca": None, "name": None}

    async with _channel(argparse.Namespace(**options)) as channel:
        target = Target(channel=channel, model="any", patience=30.0)
        assert await picked(target, "10.0.0.2:3002") == ["10.0.0.2:3002"]
        assert await picked(target, "10.0.0.1") in (["10.0.0.1:3000"], ["10.0.0.1:3002"])
        refused(await routed(target, "10.0.0.3"), 503)
        refused(await routed(target, "10.0.0.9"), 503)

        stage.be("echo-3")
        assert await until_picked(target, "10.0.0.3:3000")
        stage.delete(f"{PODS.format(stage.namespace)}/echo-3", grace=0)
        assert await until_picked(target, "10.0.0.3:3000", is_so=False)


async def routed(target, named):
    async with target.exchange() as stream:
        await stream.headers({**MODELS, SELECTION: named}, end=True)
        return await stream.routed(until="request_headers")


async def picked(target, named):
    return sent_on(await routed(target, named))


async def until_picked(target, named, *, is_so=True):
    async with asyncio.timeout(PATIENCE):
        while ((await routed(target, named)).endpoints == [named]) != is_so:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return True
