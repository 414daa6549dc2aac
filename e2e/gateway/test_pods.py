import contextlib

from leadsman.records import Ended, Granted, Outcome

from .cluster import NAMESPACE
from .conftest import ENGINES
from .listening import listening
from .traffic import failed, traffic, until, until_answered


async def test_a_pod_is_sent_requests_from_when_it_is_ready_until_it_is_not(cluster):
    cluster.engine("engine-4")
    fourth = cluster.endpoint("engine-4")
    await until_answered(cluster, lambda one: one.served == fourth, to=fourth)

    cluster.hold_unready("engine-4")
    await until_answered(cluster, lambda one: one.status == 503, to=fourth)
    meanwhile = [await cluster.ask() for _ in range(20)]
    cluster.hold_unready("engine-4", None)
    await until_answered(cluster, lambda one: one.served == fourth, to=fourth)
    async with traffic(cluster) as answers:
        cluster.delete("Pod", "engine-4")
        await until(lambda: cluster.plane.ask("GET", cluster.path("Pod", "engine-4"))[0] == 404)
        gone_from = len(answers)
        afterwards = [await cluster.ask() for _ in range(20)]

    assert fourth not in {one.served for one in meanwhile}
    assert fourth not in {one.served for one in [*afterwards, *answers[gone_from + 6 :]]}
    assert failed([*meanwhile, *afterwards]) == []
    assert {one.served for one in failed(answers)} <= {fourth}


async def test_where_the_pick_cannot_be_reached_the_next_of_the_list_serves(cluster, engines):
    dead, next_best, _ = engines
    home = {"x_leadsman_session": "at-home"}
    for _ in range(10):  # so that each of the pickers knows where it lives
        await cluster.ask(to=dead, **home)

    async with (
        listening(cluster.address(operator(cluster)), f"{NAMESPACE}/chat") as records,
        crashed(cluster, ENGINES[0], dead),
    ):
        answers = [await cluster.ask(to=f"{dead},{next_best}", **home) for _ in range(10)]
        await until(lambda: len(moved(records, dead)) > 0, lambda: records)

    assert failed(answers) == []
    assert {one.served for one in answers} == {next_best}
    [request, *_] = moved(records, dead)
    kinds = [(type(one), one.worker) for one in records if one.request == request]
    assert kinds[:3] == [(Granted, dead), (Ended, dead), (Granted, next_best)]
    assert kinds[-1] == (Ended, next_best)


@contextlib.asynccontextmanager
async def crashed(cluster, name, endpoint):
    """Have an engine be dead that Kubernetes holds ready; when left, wait until it serves again."""
    cluster.kubelet.crash(NAMESPACE, name)
    try:
        yield
    finally:
        cluster.revive(name)
        await until_answered(cluster, lambda one: one.served == endpoint, to=endpoint)


def operator(cluster):
    [pod] = cluster.pods_of("operator")
    return pod


def moved(records, worker):
    """Name the requests that were granted to a worker and served elsewhere."""
    left = [
        one.request
        for one in records
        if isinstance(one, Ended) and one.worker == worker and one.outcome is Outcome.ENGINE_GONE
    ]
    again = {one.request for one in records if isinstance(one, Granted) and one.worker != worker}
    over = {one.request for one in records if isinstance(one, Ended) and one.worker != worker}
    return [request for request in left if request in again & over]
