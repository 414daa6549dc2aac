import json

import pytest
from leadsman_operator.kube import ApiError
from leadsman_operator.reporter import Reporter

from .objects import budget, pod, pool, profile, world
from .test_status import views_of

ENGINE = "10.0.0.1:8000"


class Cluster:
    """Keeps what is written; fails where it is told to."""

    def __init__(self):
        self.statuses = {}
        self.writes = []
        self.events = []
        self.error = None

    async def merge(self, path, body):
        self.writes.append(path)
        if self.error:
            raise self.error
        self.statuses[path] = json.loads(json.dumps(body["status"]))

    async def create(self, path, body):
        assert path == "/api/v1/namespaces/serving/events"
        if self.error:
            raise self.error
        self.events.append(body)


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def reporter(cluster):
    return Reporter(api=cluster, instance="test")


def path(plural, name):
    return f"/apis/leadsman.dev/v1alpha1/namespaces/serving/{plural}/{name}/status"


def with_statuses(cluster):
    status = cluster.statuses
    return world(
        pools=[pool()],
        pods=[pod("a")],
        budgets=[budget("b", status=status.get(path("latencybudgets", "b")))],
        profiles=[profile("p", status=status.get(path("engineprofiles", "p")))],
    )


async def test_a_status_is_written_whole_and_then_only_when_it_changes(cluster, reporter):
    for _ in range(3):
        there = with_statuses(cluster)
        await reporter.tell(there, views_of(there))
    first = list(cluster.writes)

    there = with_statuses(cluster)
    await reporter.tell(there, views_of(there, {ENGINE: "gone"}))

    both = {path("latencybudgets", "b"), path("engineprofiles", "p")}
    assert set(first) == both
    assert len(first) == 2
    assert set(cluster.writes[2:]) == both
    assert cluster.statuses[path("engineprofiles", "p")]["workers"] == 1


async def test_what_is_empty_is_written_too_so_that_nothing_old_stays(cluster, reporter):
    there = with_statuses(cluster)
    await reporter.tell(there, views_of(there))
    there = with_statuses(cluster)
    alone = world(budgets=there.budgets.values())

    await reporter.tell(alone, {})

    assert cluster.statuses[path("latencybudgets", "b")]["pools"] == []


async def test_an_event_is_posted_for_each_cause_once_for_each_time_of_trouble(cluster, reporter):
    there = with_statuses(cluster)
    for problem in ("gone", "mute", "gone", None, "gone"):
        await reporter.tell(there, views_of(there, {ENGINE: problem} if problem else {}))

    said = [(event["involvedObject"]["name"], event["message"]) for event in cluster.events]
    assert said == [
        ("a", f"{ENGINE} takes no requests: gone"),
        ("a", f"{ENGINE} takes no requests: mute"),
        ("a", f"{ENGINE} takes no requests: gone"),
    ]


async def test_causes_without_end_get_an_end_of_events(cluster, reporter):
    there = with_statuses(cluster)
    for number in range(20):
        await reporter.tell(there, views_of(there, {ENGINE: f"gone {number}"}))

    assert len(cluster.events) < 5


async def test_an_event_that_could_not_be_posted_is_posted_later(cluster, reporter):
    there = with_statuses(cluster)
    cluster.error = ApiError(503, "not now")
    await reporter.tell(there, views_of(there, {ENGINE: "gone"}))
    cluster.error = None
    await reporter.tell(there, views_of(there, {ENGINE: "gone"}))

    assert [event["involvedObject"]["name"] for event in cluster.events] == ["a"]


async def test_a_budget_that_cannot_be_applied_is_told_in_an_event_of_its_own(cluster, reporter):
    wrong = {"confidence": 1.0}
    there = world(pools=[pool()], budgets=[budget("wrong", **wrong), budget("right")])
    for _ in range(2):
        await reporter.tell(there, views_of(there))

    [event] = cluster.events
    status = cluster.statuses[path("latencybudgets", "wrong")]
    [accepted] = [one for one in status["conditions"] if one["type"] == "Accepted"]
    assert event["involvedObject"]["kind"] == "LatencyBudget"
    assert event["involvedObject"]["name"] == "wrong"
    assert event["reason"] == accepted["reason"]
    assert accepted["message"] in event["message"]


async def test_where_the_api_server_will_not_the_rest_is_still_tried(cluster, reporter, caplog):
    cluster.error = ApiError(403, "no")
    there = with_statuses(cluster)

    await reporter.tell(there, views_of(there, {ENGINE: "gone"}))

    assert len(cluster.writes) == 2
    assert [one.message for one in caplog.records] == [
        "status not written",
        "status not written",
        "event not written",
    ]
