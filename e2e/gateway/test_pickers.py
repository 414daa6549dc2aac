"""Pickers that come, go, and are not there."""

import contextlib
import ssl

import pytest

from .cluster import NAMESPACE
from .traffic import failed, traffic, until, until_answered

DEPLOYMENT = "leadsman-chat"


def pickers(cluster):
    return cluster.pods_of("picker-chat")


def scaled(cluster, replicas):
    cluster.patch("Deployment", DEPLOYMENT, {"spec": {"replicas": replicas}})


@contextlib.asynccontextmanager
async def failing(cluster, mode):
    """Have the pool fail this way until left; then wait until pickers pick again."""
    cluster.patch("InferencePool", "chat", {"spec": {"endpointPickerRef": {"failureMode": mode}}})
    try:
        yield
    finally:
        scaled(cluster, 2)
        back = {"failureMode": "FailClose"}
        cluster.patch("InferencePool", "chat", {"spec": {"endpointPickerRef": back}})
        await until(lambda: len(pickers(cluster)) == 2)
        await until(lambda: all(cluster.is_ready(pod) for pod in pickers(cluster)), cluster.words)
        await until_answered(cluster, lambda one: one.served is not None)


async def test_pickers_are_rolled_out_without_a_failed_request(cluster):
    old = set(pickers(cluster))
    note = {"metadata": {"annotations": {"leadsman.test/rolled": "yes"}}}

    async with traffic(cluster) as answers:
        cluster.patch("Deployment", DEPLOYMENT, {"spec": {"template": note}})
        await until(lambda: not old & set(pickers(cluster)), cluster.words)

    assert len(pickers(cluster)) == len(old)
    assert failed(answers) == []


@pytest.mark.parametrize(("mode", "status"), [("FailOpen", 200), ("FailClose", 500)])
async def test_where_no_picker_is_ready_the_pool_fails_as_it_says(cluster, mode, status):
    async with failing(cluster, mode):
        scaled(cluster, 0)
        await until(lambda: not pickers(cluster), cluster.words)
        await until_answered(cluster, lambda one: one.status == status and one.served is None)

        answers = [await cluster.ask(body={"user": "x" * size}) for size in (0, 8 << 20) * 5]

    assert [one.status for one in answers] == [status] * 10


@pytest.mark.parametrize(("mode", "without_body"), [("FailOpen", 200), ("FailClose", 500)])
async def test_a_dead_picker_that_kubernetes_still_holds_ready_fails_every_body(
    cluster, mode, without_body
):
    async with failing(cluster, mode):
        await until_answered(cluster, lambda one: one.status == 200)
        for pod in pickers(cluster):
            cluster.kubelet.crash(NAMESPACE, pod)

        await until_answered(
            cluster, lambda one: one.status == without_body, ask=cluster.get_models
        )
        with_body = [await cluster.ask() for _ in range(5)]
        bare = [await cluster.get_models() for _ in range(5)]
        for pod in pickers(cluster):
            cluster.revive(pod)

    assert [one.status for one in with_body] == [500] * 5
    assert [one.status for one in bare] == [without_body] * 5


async def test_istio_speaks_tls_to_pickers_because_the_charts_rule_says_so(cluster):
    [picker, *_] = pickers(cluster)
    rule = cluster.get("DestinationRule", DEPLOYMENT)
    shown = ssl.get_server_certificate((cluster.address(picker), 9002))

    cluster.delete("DestinationRule", DEPLOYMENT)
    without = await until_answered(cluster, lambda one: one.status != 200)
    about = {key: rule["metadata"][key] for key in ("name", "namespace", "labels", "annotations")}
    cluster.create(rule | {"metadata": about})
    await until_answered(cluster, lambda one: one.status == 200)

    assert shown.startswith("-----BEGIN CERTIFICATE-----")
    assert rule["spec"]["trafficPolicy"]["tls"] == {"mode": "SIMPLE", "insecureSkipVerify": True}
    assert without.status == 500
