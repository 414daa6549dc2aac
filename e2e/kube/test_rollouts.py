"""An installed release under a steady load, while all around it changes.

One release for all of these tests but one, and each leaves it as it found it. Whatever happens,
every request is answered whole or refused with a reason, by an engine that is there, and afterwards
no picker believes that anything is in flight. What the engines can do is learned from the load
itself.
"""

import json
import os
import signal
import time
import urllib.request
from contextlib import contextmanager

import pytest
from leadsman_bench.envoy import running_envoy

from .conftest import OURS, PATIENCE, PODS, POOLS, budget, create, within
from .front import Front
from .redis_server import needs_redis
from .release import LABELS, installed
from .traffic import steady

pytestmark = pytest.mark.slow

SPEED = ["--speed", "10"]
AWAY = float(os.environ.get("AWAY", "30"))
"""For how many seconds the API server, or Redis, answers nobody."""

PRE_STOP = 5.0
"""How long an engine's pod serves on after it was deleted, as operations.md asks."""


class Site:
    """The release `r`, its engines, and the gateway in front."""

    def __init__(self, release):
        self.stage = release.stage
        self.release = release
        self.engines = {}
        self.gone = {}
        self.model = None
        self.url = None

    @property
    def pickers(self):
        return self.release.replicas["picker-chat"]

    def grow(self, name):
        """Add a pod whose engine serves; gives the engine's address."""
        ip = self.stage.engine(*SPEED)
        self.stage.pod(name, ip, labels=LABELS)
        self.engines[name] = f"{ip}:{self.stage.port}"
        return self.engines[name]

    def shrink(self, name):
        """Delete a pod as a cluster does: it serves on a moment, then what it has, and is gone."""
        engine = self.engines.pop(name)
        path = f"{PODS.format(self.stage.namespace)}/{name}"
        self.stage.delete(path, grace=30)
        time.sleep(PRE_STOP)
        assert within(PATIENCE, lambda: _is_idle(engine))
        self.stage.running.end(f"engine-{engine.replace(':', '-')}")
        self.stage.delete(path, grace=0)
        self.gone[engine] = time.monotonic()

    @contextmanager
    def under_load(self):
        """Keep up a load, and see to it that nothing was lost and nothing is left over."""
        with steady(self.url, self.model, self.stage.folder) as traffic:
            self.goes_on(traffic)
            yield traffic
            self.goes_on(traffic)
        assert traffic.lost() == []
        gone = [one for one in traffic.sent if one.at > self.gone.get(one.served_by, one.at)]
        assert gone == []
        for name in ("leadsman_in_flight", "leadsman_grants"):
            assert within(PATIENCE, lambda name=name: not self.counted(name)), self.counted(name)

    def counted(self, gauge):
        """Give each picker's count of requests by worker, but for those of none."""
        pages = [(one.name, one.gauges(gauge)) for one in self.pickers]
        return {(name, worker): n for name, page in pages for worker, n in page.items() if n}

    def goes_on(self, traffic, is_so=lambda one: one.is_whole, count=10):
        """Wait until some requests that are sent from now on have come to this."""
        now = time.monotonic()
        so = lambda: [one for one in traffic.so_far() if one.at > now and is_so(one)]
        assert within(PATIENCE, lambda: len(so()) >= count), traffic.so_far()[-3:]

    def takes_part(self, traffic, engine):
        """Wait until every picker knows an engine, and some request was served by it."""
        known = lambda: [one.gauges("leadsman_in_flight").keys() for one in self.pickers]
        assert within(PATIENCE, lambda: all(engine in keys for keys in known())), known()
        self.goes_on(traffic, lambda one: one.served_by == engine, count=1)


def _is_idle(engine):
    """Whether nothing has been running or waiting for a while."""
    for _ in range(10):
        with urllib.request.urlopen(f"http://{engine}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        named = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        if any(float(line.split()[-1]) for line in lines if line.startswith(named)):
            return False
        time.sleep(0.1)
    return True


@pytest.fixture(scope="module")
def site(helm_path, plane, tmp_path_factory):
    """The chart installed, its pods running, three engines, and an Envoy."""
    with standing(helm_path, plane, tmp_path_factory.mktemp("rollouts"), "rollouts") as site:
        yield site


@pytest.fixture
def site_by_redis(helm_path, plane, tmp_path, redis):
    """The same, where a Redis carries fleet state."""
    state = {"backend": "redis", "redis": {"url": redis.url}}
    with standing(helm_path, plane, tmp_path, "rollouts-by-redis", state=state) as site:
        yield site


@contextmanager
def standing(helm_path, plane, folder, namespace, **values):
    with installed(helm_path, plane, folder, namespace, **values) as release:
        site = Site(release)
        for number in range(3):
            site.grow(f"engine-{number}")
        site.model = _model(site.engines["engine-0"])
        for component in ("operator", "picker-chat"):
            release.run(component)
        front = Front(release.service("picker-chat"), release.names.address)
        with running_envoy(front) as envoy:
            site.url = envoy.url
            yield site


def _model(engine):
    with urllib.request.urlopen(f"http://{engine}/v1/models", timeout=10) as page:
        return json.load(page)["data"][0]["id"]


def test_requests_are_spread_over_the_pods(site):
    with site.under_load() as traffic:
        assert within(PATIENCE, lambda: len(traffic.served()) == 3)


def test_pods_come_and_go(site):
    with site.under_load() as traffic:
        fresh = site.grow("more")
        site.takes_part(traffic, fresh)
        site.shrink("more")


def test_all_pods_are_replaced(site):
    with site.under_load() as traffic:
        for name in list(site.engines):
            fresh = site.grow(f"{name}-again")
            site.takes_part(traffic, fresh)
            site.shrink(name)


def test_the_operator_is_rolled_out(site):
    with site.under_load() as traffic:
        site.release.roll("operator")
        fresh = site.grow("after")
        site.takes_part(traffic, fresh)
        site.shrink("after")


def test_pickers_are_rolled_out(site):
    with site.under_load():
        site.release.roll("picker-chat")


def test_the_api_server_is_away(site):
    with site.under_load() as traffic:
        os.kill(site.stage.plane.pid, signal.SIGSTOP)
        try:
            time.sleep(AWAY)
            site.goes_on(traffic)
        finally:
            os.kill(site.stage.plane.pid, signal.SIGCONT)
        fresh = site.grow("late")
        site.takes_part(traffic, fresh)
        site.shrink("late")


@needs_redis
def test_redis_is_away(site_by_redis, redis):
    site = site_by_redis
    with site.under_load() as traffic:
        with redis.away():
            time.sleep(AWAY)
            site.goes_on(traffic)
        fresh = site.grow("late")
        site.takes_part(traffic, fresh)
        site.shrink("late")


def test_a_budget_is_edited_live(site):
    path = OURS.format(site.stage.namespace, "latencybudgets")
    refused = lambda status: lambda one: (one.status, one.reason) == (status, "would_miss_ttft")
    with site.under_load() as traffic:
        create(site.stage.plane, path, budget("hasty", ttft="1ms"))
        site.goes_on(traffic, refused(429))
        own = {"spec": {"statuses": {"wouldMissTtft": 529}}}
        site.stage.patch(f"{path}/hasty", own)
        site.goes_on(traffic, refused(529))
        site.stage.delete(f"{path}/hasty")


def test_a_pool_is_deleted_and_created_again(site):
    path = POOLS.format(site.stage.namespace)
    held = site.stage.get(f"{path}/chat")
    with site.under_load() as traffic:
        site.stage.delete(f"{path}/chat")
        site.goes_on(traffic, lambda one: (one.status, one.reason) == (503, "no_endpoint"))
        create(site.stage.plane, path, anew(held))


def anew(held):
    """Make the body that creates an object again: the release's own, by labels and annotations."""
    kept = ("name", "labels", "annotations")
    about = {key: value for key, value in held["metadata"].items() if key in kept}
    return {key: value for key, value in held.items() if key != "status"} | {"metadata": about}
