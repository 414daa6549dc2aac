"""One cluster for all tests: a gateway, a pool with three engines, and two pickers of it."""

import asyncio
import json
import os

import aiohttp
import pytest
from kube.conftest import within
from leadsman.curve import fingerprint
from leadsman.records import Learned
from leadsman_engines.discovery import discover
from leadsman_engines.profile import EMPTY_PROFILE
from leadsman_operator.lessons import Lessons

from .cluster import NAMESPACE, PATIENCE, RELEASE, running_cluster, with_gateway
from .run import FOUND

ENGINES = ("engine-1", "engine-2", "engine-3")


@pytest.fixture(scope="session", autouse=True)
def no_event_loop_by_accident():
    """Keep asyncio from making a loop that nobody closes."""
    asyncio.set_event_loop(None)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if FOUND not in os.environ:
        pytest.skip("run these by `make e2e-gateway`: they need namespaces of their own")
    found = json.loads(os.environ[FOUND])
    with running_cluster(found, tmp_path_factory.mktemp("cluster")) as one:
        for name in ENGINES:
            one.engine(name)
        one.model = remember(one, one.endpoint(ENGINES[0]))
        with_gateway(one, {"chat": 1})
        one.install(values(one))
        assert within(PATIENCE, lambda: asyncio.run(one.ask()).status == 200), one.words()
        yield one


def values(one, *more_pools, **pickers):
    """Make the chart's values: a pool `chat`, and what a test adds."""
    config = {"models": [{"name": one.model}]}
    pools = [
        {
            "name": name,
            "replicas": replicas,
            "create": {"matchLabels": {"app": name}, "targetPorts": [8000]},
            "config": config,
            "model": one.model,
        }
        for name, replicas in [("chat", 2), *more_pools]
    ]
    return {
        "pools": pools,
        "operator": {"replicas": 1},
        "gateway": {"kind": "istio"},
        "pickers": {"conformance": True, **pickers},
    }


def remember(one, endpoint):
    """Have it known beforehand how fast the engines are, so that requests can be refused.

    Gives the model's name.
    """
    settings = asyncio.run(_settings(endpoint))
    samples = tuple((tokens, tokens / 1000) for tokens in range(100, 6000, 100))
    lessons = Lessons()
    lessons.take([Learned(worker="gone", fingerprint=fingerprint(settings), samples=samples)])
    helms = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    about = {
        "name": f"{RELEASE}-operator-lessons",
        "namespace": NAMESPACE,
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": helms,
    }
    held = {"lessons.json": lessons.written()}
    one.create({"kind": "ConfigMap", "metadata": about, "data": held})
    return settings.model


async def _settings(endpoint):
    async with aiohttp.ClientSession() as http:
        [rank] = (await discover(http, f"http://{endpoint}", EMPTY_PROFILE)).ranks
        return rank.settings


@pytest.fixture
def engines(cluster):
    """The endpoints of the three engines."""
    return [cluster.endpoint(name) for name in ENGINES]


@pytest.fixture(autouse=True)
def the_kubelet_works(cluster):
    yield
    assert cluster.kubelet.problem is None
