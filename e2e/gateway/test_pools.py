from collections import Counter

import pytest

from .conftest import values
from .traffic import failed, until_answered

TO_CHAT = {"chat": 1}
TO_BOTH = {"chat": 1, "other": 1}


@pytest.fixture
def other(cluster):
    """A second pool with one engine; gives its endpoint."""
    cluster.engine("other-1", app="other")
    endpoint = cluster.endpoint("other-1")
    cluster.install(values(cluster, ("other", 1)))
    route(cluster, TO_BOTH)
    yield endpoint
    route(cluster, TO_CHAT)
    cluster.install(values(cluster))
    cluster.delete("Pod", "other-1")


def route(cluster, weights):
    kind = {"group": "inference.networking.k8s.io", "kind": "InferencePool"}
    backends = [kind | {"name": name, "weight": weight} for name, weight in weights.items()]
    cluster.patch("HTTPRoute", "gw", {"spec": {"rules": [{"backendRefs": backends}]}})


async def test_of_two_pools_in_one_rule_a_picker_is_charged_for_what_its_own_pods_served(
    cluster, engines, other
):
    await until_answered(cluster, lambda one: one.served == other)
    await until_answered(cluster, lambda one: one.served in engines)
    before = cluster.counted("chat") + cluster.counted("other")

    answers = [await cluster.ask() for _ in range(40)]

    counted = cluster.counted("chat") + cluster.counted("other") - before
    served = Counter("other" if one.served == other else "chat" for one in answers)
    assert failed(answers) == []
    assert set(served) == {"chat", "other"}
    assert counted["decisions admitted"] == 40
    assert counted["outcomes finished"] == served["other"]
    assert counted["outcomes served_elsewhere"] == served["chat"]
