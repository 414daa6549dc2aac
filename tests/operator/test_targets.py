import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman_engines.profile import EngineProfile
from leadsman_operator.targets import targets_of

from .objects import LABELS, pod, pods, pool, pools, profile, world


def targets(one, **objects):
    return targets_of(world(pools=[one], **objects), one)


def accepting(found):
    return {endpoint.address for endpoint, target in found.items() if target.accepts}


@given(pools, st.lists(pods, max_size=6))
def test_every_port_of_every_running_pod_of_the_pool_is_an_endpoint_and_nothing_else_is(one, some):
    there = world(pools=[one], pods=some)

    found = targets_of(there, one)

    expected = {
        (each.metadata.uid, f"{each.status.pod_ip}:{port.number}")
        for each in there.pods.values()
        for port in one.spec.target_ports
        if each.status.phase == "Running"
        and each.status.pod_ip
        and each.metadata.namespace == one.metadata.namespace
        and one.spec.selector.match_labels.items() <= each.metadata.labels.items()
    }
    assert {(endpoint.pod, endpoint.address) for endpoint in found} == expected


@given(pools, st.lists(pods, max_size=6))
def test_only_pods_that_are_ready_and_stay_take_requests(one, some):
    found = targets(one, pods=some)

    for target in found.values():
        stays = target.pod.metadata.deletion_timestamp is None
        assert target.accepts == (target.pod.is_ready and stays)


def test_a_pod_that_goes_keeps_its_endpoint_until_it_is_gone():
    going = pod("a", deletionTimestamp="2026-01-01T00:00:00Z")

    [(endpoint, target)] = targets(pool(), pods=[going]).items()

    assert endpoint.address == "10.0.0.1:8000"
    assert not target.accepts


def test_another_pod_at_the_same_address_is_another_endpoint():
    [before] = targets(pool(), pods=[pod("a", uid="1")])
    [after] = targets(pool(), pods=[pod("a", uid="2")])

    assert before.address == after.address
    assert before != after


def test_an_ipv6_address_is_put_in_brackets():
    [endpoint] = targets(pool(), pods=[pod("a", "fd00::1")])

    assert endpoint.url == "http://[fd00::1]:8000"
    assert endpoint.address == "[fd00::1]:8000"


def test_what_a_profile_states_holds_for_each_port_with_event_ports_counted_up():
    stated = profile(
        "p",
        settings={"maxNumSeqs": 4, "hardware": "H200"},
        kvEvents={"port": 5557, "replayPort": 6557},
    )

    found = targets(pool(ports=(8000, 8001)), pods=[pod("a")], profiles=[stated])

    assert [endpoint.profile for endpoint in found] == [
        EngineProfile(
            max_num_seqs=4,
            hardware="H200",
            kv_events=f"tcp://*:{5557 + place}",
            kv_replay=f"tcp://*:{6557 + place}",
        )
        for place in (0, 1)
    ]


def test_events_that_are_not_published_are_not_looked_for():
    quiet = profile("p", kvEvents={"published": False})

    [endpoint] = targets(pool(), pods=[pod("a")], profiles=[quiet])

    assert endpoint.profile == EngineProfile(kv_events="off")


@pytest.mark.parametrize(
    ("profiles", "chosen"),
    [
        ([profile("wide"), profile("narrow", labels=LABELS | {"gpu": "h200"})], "narrow"),
        ([profile("new", created="2026-01-02T00:00:00Z"), profile("old")], "old"),
        ([profile("b"), profile("a")], "a"),
        ([profile("a", labels={"app": "other"})], None),
        ([], None),
    ],
)
def test_the_profile_that_says_most_of_a_pod_is_taken_then_the_oldest(profiles, chosen):
    one = pod("a", labels=LABELS | {"gpu": "h200"})

    [target] = targets(pool(), pods=[one], profiles=profiles).values()

    assert (target.profile and target.profile.metadata.name) == chosen
