from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from leadsman.budget import Budget
from leadsman.prediction import Reason
from leadsman_engines.profile import EngineProfile
from leadsman_operator.manifest import (
    EndpointSpec,
    ManifestError,
    read_endpoints,
    read_manifest,
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    endpoints: tuple[EndpointSpec, ...]
    profiles: Mapping[str, EngineProfile] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    folder: Path | None = None


GOOD = """
endpoints:
  - url: http://10.0.0.1:8000/
    profile: large
  - url: http://10.0.0.2:8000
    profile: {max_num_seqs: 4}
    kv_events: tcp://10.0.0.2:5557
    kv_replay: tcp://10.0.0.2:5558
  - url: http://10.0.0.3:8000
profiles:
  large: {max_num_batched_tokens: 8192}
budget:
  max_queue_wait: 30
  statuses: {overloaded: 529}
folder: /var/lib/leadsman
"""


def read(text):
    shape = read_manifest(text, Shape)
    return shape, read_endpoints(shape.endpoints, shape.profiles)


def test_a_manifest_is_read_whole():
    shape, endpoints = read(GOOD)

    assert [endpoint.url[-13:] for endpoint in endpoints] == [
        "10.0.0.1:8000",
        "10.0.0.2:8000",
        "10.0.0.3:8000",
    ]
    assert endpoints[0].profile == EngineProfile(max_num_batched_tokens=8192)
    assert endpoints[1].profile == EngineProfile(
        max_num_seqs=4, kv_events="tcp://10.0.0.2:5557", kv_replay="tcp://10.0.0.2:5558"
    )
    assert endpoints[2].profile == EngineProfile()
    assert shape.budget.max_queue_wait == 30.0
    assert shape.budget.status(Reason.OVERLOADED) == 529
    assert shape.folder == Path("/var/lib/leadsman")


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    [
        ("endpoints: [", "", "this is no YAML"),
        ("- a list", "", "expected keys and values, not list"),
        ("{}", "", "endpoints"),
        ("endpoints: []\nbugdet: {}", "bugdet", "unknown; known are endpoints, profiles"),
        ("endpoints: [{url: 'http://a:1', ulr: b}]", "endpoints[0].ulr", "unknown"),
        ("endpoints: [{url: 'http://a:1'}, {url: 5}]", "endpoints[1].url", "Expected `str`"),
        ("endpoints: [{}]", "endpoints[0]", "url"),
        (
            "endpoints: [{url: x, profile: {max_num_seqs: many}}]",
            "endpoints[0].profile.max_n",
            "int",
        ),
        ("endpoints: [{url: x, profile: {slots: 4}}]", "endpoints[0].profile.slots", "unknown"),
        ("endpoints: []\nprofiles: {large: {slots: 4}}", "profiles.large.slots", "unknown"),
        ("endpoints: []\nprofiles: {large: {policy: lifo}}", "profiles[...].policy", "lifo"),
        ("endpoints: []\nbudget: {confidence: 7}", "budget", "confidence: 7.0 is not in"),
        ("endpoints: []\nbudget: {statuses: {overloded: 529}}", "budget.statuses", "overloded"),
        ("endpoints: []\nfolder: 5", "folder", "Expected a path"),
    ],
)
def test_a_mistake_is_told_with_its_place(text, path, problem):
    with pytest.raises(ManifestError) as error:
        read(text)

    assert error.value.path.startswith(path)
    assert problem in error.value.problem
    assert str(error.value).startswith(path)


@pytest.mark.parametrize(
    ("endpoints", "path", "problem"),
    [
        ([EndpointSpec(url="10.0.0.1:8000")], "endpoints[0].url", "no http://host:port"),
        ([EndpointSpec(url="http://")], "endpoints[0].url", "no http://host:port"),
        ([EndpointSpec(url="http://a:99999")], "endpoints[0].url", "99999"),
        (
            [EndpointSpec(url="http://a:1"), EndpointSpec(url="http://a:1/")],
            "endpoints[1].url",
            "the same as endpoints[0].url",
        ),
        (
            [EndpointSpec(url="http://a:1", profile="small")],
            "endpoints[0].profile",
            "no profile 'small'; there are: large",
        ),
        (
            [EndpointSpec(url="http://a:1", kv_replay="tcp://a:2")],
            "endpoints[0].kv_replay",
            "of no use without kv_events",
        ),
    ],
)
def test_an_endpoint_that_cannot_be_meant_is_told_with_its_place(endpoints, path, problem):
    with pytest.raises(ManifestError) as error:
        read_endpoints(endpoints, {"large": EngineProfile()})

    assert error.value.path == path
    assert problem in error.value.problem
