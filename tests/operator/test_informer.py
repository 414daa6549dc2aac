import asyncio
import contextlib
import json

import aiohttp
from hypothesis import given
from hypothesis import strategies as st
from leadsman_operator.informer import Informer, WatchTiming
from leadsman_operator.kube import ApiError
from leadsman_operator.objects import POOLS, Key

QUICK = WatchTiming(watch=2, slack=1.0, retry=0.01, absent=0.01)


def raw(name, version, port=8000):
    return {
        "metadata": {"name": name, "namespace": "n", "resourceVersion": str(version)},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": port}],
        },
    }


class Cluster:
    """An API server of one kind, which keeps its history as far as it is told to.

    A watch ends when it has said all; a script says what happens between two requests.
    """

    def __init__(self, script=(), page=None):
        self.version = 0
        self.objects = {}
        self.history = []
        self.oldest = 0
        self.page = page
        self.script = list(script)
        self.idle = asyncio.Event()
        self.requests = 0

    def put(self, name, port):
        self.version += 1
        self.objects[name] = raw(name, self.version, port)
        self.history.append((self.version, "MODIFIED", self.objects[name]))

    def delete(self, name):
        if name in self.objects:
            self.version += 1
            gone = self.objects.pop(name) | {}
            gone["metadata"] = gone["metadata"] | {"resourceVersion": str(self.version)}
            self.history.append((self.version, "DELETED", gone))

    def forget(self):
        self.oldest = self.version

    def fail(self, error):
        raise error

    async def _next(self):
        """Let happen what comes next; fail where it is a failure. Wait for ever at the end."""
        self.requests += 1
        await asyncio.sleep(0)
        if not self.script:
            self.idle.set()
            await asyncio.sleep(3600)
        for step, *arguments in self.script.pop(0):
            getattr(self, step)(*arguments)

    async def get(self, path, query):
        assert path == "/apis/inference.networking.k8s.io/v1/inferencepools"
        await asyncio.sleep(0)
        items = [self.objects[name] for name in sorted(self.objects)]
        start = int(query.get("continue", "0"))
        end = len(items) if self.page is None else start + self.page
        following = {"continue": str(end)} if end < len(items) else {}
        body = {
            "metadata": {"resourceVersion": str(self.version)} | following,
            "items": items[start:end],
        }
        return json.dumps(body).encode()

    async def watch(self, path, query, *, silence):
        assert path == "/apis/inference.networking.k8s.io/v1/inferencepools"
        assert float(query["timeoutSeconds"]) < silence
        await self._next()
        since = int(query["resourceVersion"])
        if since < self.oldest:
            status = {"code": 410, "message": "too old"}
            yield json.dumps({"type": "ERROR", "object": status}).encode()
            return
        for version, kind, item in self.history:
            if version > since:
                yield json.dumps({"type": kind, "object": item}).encode()
        mark = {"metadata": {"resourceVersion": str(self.version)}}
        yield json.dumps({"type": "BOOKMARK", "object": mark}).encode()


async def followed(cluster, changes=None):
    """Follow until the script is over; gives the informer."""
    heard = [] if changes is None else changes
    informer = Informer(
        api=cluster,
        kind=POOLS,
        namespace=None,
        on_change=lambda: heard.append(None),
        timing=QUICK,
    )
    task = asyncio.create_task(informer.run())
    async with asyncio.timeout(20):
        await cluster.idle.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return informer


def ports(informer):
    return {key.name: item.spec.target_ports[0].number for key, item in informer.items.items()}


def truth(cluster):
    return {
        name: item["spec"]["targetPorts"][0]["number"] for name, item in cluster.objects.items()
    }


names = st.sampled_from("abc")
happenings = st.one_of(
    st.tuples(st.just("put"), names, st.integers(1, 9)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("forget")),
)
failures = st.sampled_from(
    [TimeoutError(), aiohttp.ClientPayloadError(), ConnectionResetError(), ApiError(500, "no")]
).map(lambda error: ("fail", error))
turns = st.lists(happenings, max_size=4) | st.tuples(happenings, failures).map(list)


@given(st.lists(turns, max_size=8), st.sampled_from([None, 1, 2]))
def test_whatever_is_lost_what_is_kept_is_what_there_is(script, page):
    async def follow():
        cluster = Cluster([*script, []], page)
        return cluster, await followed(cluster)

    cluster, informer = asyncio.run(follow())

    assert ports(informer) == truth(cluster)


async def test_what_was_deleted_while_nobody_listened_is_gone():
    cluster = Cluster(
        [
            [("put", "a", 1), ("put", "b", 2)],
            [("delete", "a"), ("forget",), ("fail", ConnectionResetError())],
            [],
            [],
        ]
    )

    informer = await followed(cluster)

    assert ports(informer) == {"b": 2}


async def test_a_kind_that_is_not_there_has_no_objects_and_is_asked_for_again():
    cluster = Cluster()
    attempts = []

    async def absent(path, query):
        attempts.append(path)
        if len(attempts) == 3:
            cluster.idle.set()
        raise ApiError(404, "no such kind")

    cluster.get = absent

    informer = await followed(cluster)

    assert informer.synced.is_set()
    assert informer.items == {}


async def test_an_object_that_cannot_be_understood_does_not_hide_the_others(caplog):
    cluster = Cluster([[]])
    cluster.put("good", 1)
    cluster.objects["odd"] = raw("odd", 2) | {"spec": {"selector": 5}}

    informer = await followed(cluster)

    assert list(informer.items) == [Key("n", "good")]
    [record] = [one for one in caplog.records if one.message == "object not understood"]
    assert record.object == "n/odd"


async def test_a_change_that_means_nothing_is_not_told():
    changes = []
    cluster = Cluster([[("put", "a", 1)], [("put", "a", 1)], []])

    await followed(cluster, changes)

    assert len(changes) == 1


async def test_an_informer_turns_also_while_the_api_server_is_away():
    cluster = Cluster([[("fail", TimeoutError())]] * 3)

    informer = await followed(cluster)

    assert cluster.requests == 4
    assert informer.turned_at > informer.heard_at
