"""The chart, by the real helm, on the real API server."""

import base64
import json
import re
from itertools import product

import pytest
import yaml
from leadsman_cli.config import PickerConfig
from leadsman_extproc.settings import Settings
from leadsman_operator.manifest import read_manifest
from leadsman_operator.seats import SEATS

from .conftest import everything, kubeconfig_of
from .helm import CHART, Helm

POOL = {"name": "chat", "create": {"matchLabels": {"app": "vllm"}, "targetPorts": [8000, 8001]}}
TOKENIZED = {
    "volume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    "config": {"models": [{"name": "m", "path": "/models/m"}]},
}
HELD = {"config": {"budget": {"hold": 3}, "picker": {"importance": {"chat": 10}}}}
BARE = {"name": "code", "replicas": 1, "config": {"budget": {"max_queue_wait": 30}}}
STANDALONE = {"gateway": {"kind": "standalone"}}
VALUES = {
    "defaults": {},
    "a pool": {"pools": [POOL]},
    "two pools": {"pools": [POOL | {"model": "m"}, BARE]},
    "tokenizers": {"pools": [POOL | TOKENIZED]},
    "namespaced": {"namespaces": ["a", "b"], "pools": [BARE]},
    "plain text": {"pools": [POOL], "pickers": {"tls": "off"}},
    "own certificate": {"pools": [POOL], "pickers": {"tls": "picker-cert"}},
    "a route": {"pools": [POOL | {"route": {"gateway": "front", "hostnames": ["llm.example"]}}]},
    "istio": {"pools": [POOL], "gateway": {"kind": "istio"}},
    "istio, own certificate": {
        "pools": [POOL],
        "gateway": {"kind": "istio"},
        "pickers": {"tls": "picker-cert"},
    },
    "envoy gateway": {
        "pools": [POOL | {"routes": ["r", "s"]}, BARE],
        "gateway": {"kind": "envoy-gateway"},
    },
    "envoy ai gateway": {
        "pools": [POOL | {"route": {"gateway": "front", "gatewayNamespace": "infra"}}],
        "gateway": {"kind": "envoy-ai-gateway"},
    },
    "agentgateway": {"pools": [POOL], "gateway": {"kind": "agentgateway"}},
    "standalone": STANDALONE | {"pools": [POOL | {"model": "m"}, BARE]},
    "standalone, guarded": {
        "pools": [POOL],
        "gateway": {"kind": "standalone", "envoy": {"image": "mine/envoy:1"}},
        "networkPolicy": {"enabled": True, "gatewaySelector": {"app": "client"}},
    },
    "dashboard": {"dashboard": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "redis": {"pools": [POOL], "state": {"backend": "redis", "redis": {"url": "redis://h:1/0"}}},
    "own redis": {
        "pools": [POOL],
        "state": {"backend": "redis", "redis": {"secret": "valkey", "port": 7000}},
        "networkPolicy": {"enabled": True, "egress": True},
    },
    "watched": {
        "pools": [POOL],
        "page": {"enabled": True, "tokenSecret": "watchers"},
        "serviceMonitor": {"enabled": True},
    },
    "traced": {
        "pools": [POOL],
        "tracing": {"endpoint": "http://collector.observability:4318"},
        "networkPolicy": {"enabled": True, "egress": True},
    },
    "held": {"pools": [POOL | HELD]},
    "under test": {"pools": [POOL], "pickers": {"conformance": True, "noticeSeconds": 0}},
    "guarded": {
        "pools": [POOL],
        "networkPolicy": {"enabled": True, "gatewaySelector": {"app": "gateway"}},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "operator": {"replicas": 1, "tolerations": [{"operator": "Exists"}]},
        "podDisruptionBudget": {"enabled": False},
    },
}

EVERY_KIND = {
    "gateway": {"kind": "istio"},
    "networkPolicy": {"enabled": True, "egress": True},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
}
PAGES = ({}, {"enabled": True}, {"enabled": True, "tokenSecret": "watchers"})
TRACES = ({}, {"endpoint": "https://collector.example/otlp"})
TLS = {
    "none": ("auto", "off", "picker-cert"),
    "istio": ("auto", "off", "picker-cert"),
    "envoy-gateway": ("auto", "picker-cert"),
    "envoy-ai-gateway": ("auto", "picker-cert"),
    "agentgateway": ("auto", "picker-cert"),
    "standalone": ("auto",),
}
"""What each gateway can speak to pickers."""
UPGRADED = EVERY_KIND | {"pools": [POOL, BARE], "page": PAGES[-1], "tracing": TRACES[-1]}


def combinations(namespace):
    """Make the values of each combination of what decides which objects there are."""
    yes_and_no = (True, False)
    states = ({}, {"state": {"backend": "redis", "redis": {"url": "redis://h:1/0"}}})
    for kind, few, one, state, page, traces in product(
        TLS, yes_and_no, yes_and_no, states, PAGES, TRACES
    ):
        for tls in TLS[kind]:
            routes = kind not in ("envoy-gateway", "standalone")
            pool = POOL | TOKENIZED | {"model": "m", "replicas": 1 if one else 2}
            pool |= {} if one else {"config": TOKENIZED["config"] | HELD["config"]}
            pool |= {"route": {"gateway": "front"}} if routes else {}
            pool |= {"routes": ["r", "s"]} if kind == "envoy-gateway" else {}
            values = {
                "pools": [pool, BARE],
                "namespaces": [namespace] if few else [],
                "operator": {"replicas": 1 if one else 2},
                "pickers": {"tls": tls},
                "page": page,
                "tracing": traces,
            }
            yield values | state | ({} if one else EVERY_KIND) | {"gateway": {"kind": kind}}


@pytest.fixture
def helm(helm_path, tmp_path):
    return Helm(helm_path, tmp_path)


@pytest.fixture
def cluster(helm_path, tmp_path, plane):
    return Helm(helm_path, tmp_path, kubeconfig_of(plane, tmp_path, plane.token))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_chart_is_sound_with_each_set_of_values(helm, values):
    said = helm.does("lint", "--strict", str(CHART), values=values)

    assert "0 chart(s) failed" in said


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_api_server_would_take_all_that_is_rendered(crowded, helm, namespace, values):
    values = json.loads(json.dumps(values).replace('"a", "b"', f'"{namespace}"'))
    for document in helm.rendered(values):
        assert would_take(crowded, document, namespace)


@pytest.mark.slow
def test_the_api_server_would_take_every_combination(crowded, helm, namespace):
    seen = set()
    for values in combinations(namespace):
        for document in helm.rendered(values | {"secret": "fixed"}):
            written = json.dumps(document, sort_keys=True)
            if written not in seen:
                seen.add(written)
                assert would_take(crowded, document, namespace), values

    assert len(seen) > len(VALUES)


def would_take(plane, document, namespace):
    """Put a document to the API server without leaving it there; fails with what it says."""
    path = path_of(document, namespace)
    document["metadata"].pop("namespace", None)
    status, said = plane.ask("POST", f"{path}?dryRun=All&fieldValidation=Strict", document)
    assert status == 201, (document["kind"], said)
    return True


def path_of(document, namespace):
    version, plural = document["apiVersion"], document["kind"].lower() + "s"
    plural = re.sub("([^aeiou])ys$", r"\1ies", re.sub("sss$", "sses", plural))
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    is_cluster_wide = document["kind"].startswith(("Cluster", "GatewayClass"))
    return f"{base}/{plural}" if is_cluster_wide else f"{base}/namespaces/{namespace}/{plural}"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"pools": [{}]}, "name"),
        ({"pools": [{"name": "Not A Name"}]}, "name"),
        ({"pools": [POOL | {"create": {"matchLabels": {"a": "b"}}}]}, "targetPorts"),
        ({"gateway": {"kind": "nginx"}}, "kind"),
        ({"operator": {"replicas": 0}}, "replicas"),
        ({"operator": {"replicas": 17}}, "replicas"),
        ({"state": {"backend": "redis"}}, "state.redis.url"),
        ({"state": {"backend": "redis", "redis": {"url": "valkey:6379"}}}, "url"),
        ({"picker": {}}, "picker"),
        ({"pools": [{"name": "p" * 40}], "nameOverride": "n" * 40}, "pools[ppp"),
        ({"pools": [BARE | {"routes": ["r"]}]}, "routes"),
        ({"tracing": {"endpoint": "collector:4318"}}, "endpoint"),
        *(
            (STANDALONE | {"pools": [BARE | {"config": {"picker": picker}}]}, "longest_hold")
            for picker in ({"longest_hold": 4}, {"decision_deadline": 1.5})
        ),
        *(
            ({"pools": [BARE | {"route": {"gateway": "g"}}], "gateway": {"kind": kind}}, "route")
            for kind in ("envoy-gateway", "standalone")
        ),
        *(
            ({"pools": [BARE], "pickers": {"tls": tls}, "gateway": {"kind": kind}}, "pickers.tls")
            for kind, tls in (
                ("envoy-gateway", "self-signed"),
                ("envoy-ai-gateway", "off"),
                ("agentgateway", "off"),
                ("standalone", "picker-cert"),
            )
        ),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(helm, values, field):
    done = helm.run("template", "r", str(CHART), values=values)

    assert done.returncode != 0
    assert field in done.stderr


@pytest.mark.parametrize(("kind", "fallbacks"), [("none", None), ("istio", 2)])
def test_fallbacks_are_named_where_the_gateway_is_known_to_try_them(helm, kind, fallbacks):
    values = {"pools": [POOL], "gateway": {"kind": kind}}

    [text] = picker_files(helm.rendered(values))

    assert yaml.safe_load(text)["picker"].get("fallbacks") == fallbacks


def test_page_and_metrics_ask_for_the_token_that_is_named(helm):
    page = {"enabled": True, "tokenSecret": "watchers"}
    more = {"serviceMonitor": {"enabled": True}, "networkPolicy": {"enabled": True}}

    found = helm.rendered({"pools": [POOL], "page": page} | more)

    [file] = picker_files(found)
    config = yaml.safe_load(file)
    assert config["picker"]["page"].endswith(":9091")
    assert config["picker"]["token"] == "/token/token"
    [monitor] = named(found, "ServiceMonitor", "r-leadsman-chat")
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "watchers", "key": "token"}}
    for pod in (one for one in found if one["kind"] == "Deployment"):
        volumes = pod["spec"]["template"]["spec"]["volumes"]
        assert {"name": "token", "secret": {"secretName": "watchers"}} in volumes
    for policy in (one for one in found if one["kind"] == "NetworkPolicy"):
        ports = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
        assert 9091 in ports


@pytest.mark.parametrize(
    ("endpoint", "port"),
    [
        ("http://collector.observability:4318", 4318),
        ("https://collector.example/otlp:1", 443),
        ("http://[2001:db8::1]", 80),
        ("http://[2001:db8::1]:4318", 4318),
        ("", None),
    ],
)
def test_pickers_are_let_out_to_the_port_that_takes_their_spans(helm, endpoint, port):
    values = {"networkPolicy": {"enabled": True, "egress": True}, "pools": [POOL]}

    found = helm.rendered(values | {"tracing": {"endpoint": endpoint}})

    [policy] = named(found, "NetworkPolicy", "r-leadsman-chat")
    open_to_all = [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule]
    spans = [one for [one, *_] in open_to_all if one["port"] != 53]
    assert spans == ([] if port is None else [{"port": port, "protocol": "TCP"}])


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_picker_understands_the_file_that_the_chart_gives_it(helm, values):
    files = picker_files(helm.rendered(values))

    assert len(files) == len(values.get("pools", []))
    for file in files:
        read_manifest(file, PickerConfig)


@pytest.mark.parametrize("kind", ["none", "standalone"])
def test_every_pod_is_held_to_what_a_restricted_namespace_asks_for(helm, kind):
    pods = [
        one["spec"].get("template", one)["spec"]
        for one in helm.rendered({"pools": [POOL | {"model": "m"}], "gateway": {"kind": kind}})
        if one["kind"] in {"Deployment", "Pod"}
    ]

    assert len(pods) == 3
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"] + pod.get("initContainers", []):
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_a_standalone_envoy_stands_beside_a_picker_that_outlives_it(helm):
    rendered = helm.rendered(VALUES["standalone"])
    [deployment] = named(rendered, "Deployment", "r-leadsman-chat")
    [service] = named(rendered, "Service", "r-leadsman-chat")
    [config] = named(rendered, "ConfigMap", "r-leadsman-chat")

    pod = deployment["spec"]["template"]["spec"]
    [picker], [envoy] = pod["initContainers"], pod["containers"]
    picker_file = yaml.safe_load(config["data"]["picker.yaml"])["picker"]

    assert (picker["name"], picker["restartPolicy"]) == ("picker", "Always")
    assert envoy["lifecycle"]["preStop"]
    assert {one["name"] for one in service["spec"]["ports"]} >= {"http", "grpc-ext-proc"}
    assert config["data"]["envoy.yaml"] == (CHART / "files" / "envoy.yaml").read_text()
    assert picker_file["ends_early"] is True
    assert "tls" not in picker_file


def test_a_standalone_envoy_waits_longer_than_its_picker_takes(helm):
    waits = re.search(r"message_timeout: (\d+)s", (CHART / "files" / "envoy.yaml").read_text())
    longer = BARE | {"config": {"picker": {"longest_hold": 10}}}

    refused = helm.run("template", "r", str(CHART), values={"pools": [longer]} | STANDALONE)

    assert Settings().decision_deadline + Settings().longest_hold < int(waits[1])
    assert f"are {Settings().decision_deadline + 10:g} s" in refused.stderr
    assert f"waits {waits[1]} s" in refused.stderr


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_a_gateway_finds_the_pickers_of_a_pool_that_the_chart_makes(helm, values):
    rendered = helm.rendered(values)
    ports = {
        (one["metadata"]["name"], port["port"])
        for one in rendered
        if one["kind"] == "Service"
        for port in one["spec"]["ports"]
    }
    pools = [one for one in rendered if one["kind"] == "InferencePool"]
    named_by_routes = [
        backend["name"]
        for one in rendered
        if one["kind"] == "HTTPRoute"
        for rule in one["spec"]["rules"]
        for backend in rule["backendRefs"]
    ]

    refs = [pool["spec"]["endpointPickerRef"] for pool in pools]

    assert {(ref["name"], ref["port"]["number"]) for ref in refs} <= ports
    assert set(named_by_routes) <= {pool["metadata"]["name"] for pool in pools}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_notes_tell_the_next_step_of_each_pool(helm, values):
    said = helm.does("install", "r", str(CHART), "--dry-run=client", values=values)

    notes = said.partition("NOTES:")[2]
    pools = [f"/{pool['name']}" for pool in values.get("pools", [])]
    assert [name for name in pools or ["helm upgrade"] if name not in notes] == []
    assert "%!" not in notes


def picker_files(rendered):
    """Give the file of each pool's pickers."""
    held = [one.get("data", {}) for one in rendered if one["kind"] == "ConfigMap"]
    return [data["picker.yaml"] for data in held if "picker.yaml" in data]


def named(rendered, kind, name):
    return [one for one in rendered if (one["kind"], one["metadata"]["name"]) == (kind, name)]


SEATS_OF_REDIS = [f"r-leadsman-operator-{seat}" for seat in range(SEATS)]


@pytest.mark.parametrize(
    ("values", "leases"),
    [({}, ["r-leadsman-operator"]), (VALUES["redis"], SEATS_OF_REDIS)],
    ids=["grpc", "redis"],
)
def test_the_operator_may_write_nothing_that_it_does_not_own(helm, values, leases):
    rules = [
        (resource, set(rule["verbs"]), rule.get("resourceNames"))
        for one in helm.rendered(values)
        if one["kind"] in {"Role", "ClusterRole"}
        for rule in one["rules"]
        for resource in rule["resources"]
    ]

    writes = {
        resource: names
        for resource, verbs, names in rules
        if verbs - {"get", "list", "watch", "create"}
    }
    assert set(writes) == {
        "latencybudgets/status",
        "engineprofiles/status",
        "leases",
        "configmaps",
    }
    assert writes["leases"] == leases
    assert writes["configmaps"] == ["r-leadsman-operator-lessons"]


def test_where_redis_is_stays_in_a_secret(helm):
    values = {"state": {"backend": "redis", "redis": {"url": "redis://:word@valkey:6379/0"}}}
    documents = helm.rendered(values | {"pools": [POOL]})

    [secret] = [one for one in documents if one["kind"] == "Secret"]
    told = base64.b64decode(secret["data"]["redis-url"]).decode()
    containers = [
        one["spec"]["template"]["spec"]["containers"][0]
        for one in documents
        if one["kind"] == "Deployment"
    ]
    places = [env["valueFrom"]["secretKeyRef"] for one in containers for env in one["env"]]
    assert told == values["state"]["redis"]["url"]
    assert places.count({"name": secret["metadata"]["name"], "key": "redis-url"}) == 2
    assert "word" not in str([one for one in documents if one["kind"] != "Secret"])
    assert not any("--fleet" in str(one["args"]) for one in containers)


def test_a_release_lives_through_upgrade_and_rollback_and_leaves_nothing(
    cluster, crowded, namespace
):
    release, here = f"r-{namespace}", ["--namespace", namespace]
    before = everything(crowded)
    cluster.does("install", release, str(CHART), *here, values={"pools": [POOL]})
    installed = everything(crowded) - before
    secret = _secret(crowded, release)

    cluster.does("upgrade", release, str(CHART), *here, values=UPGRADED)
    upgraded = everything(crowded) - before
    kept = _secret(crowded, release)
    cluster.does("rollback", release, "1", *here)
    back = everything(crowded) - before
    cluster.does("uninstall", release, *here)

    assert ("InferencePool", namespace, "chat") in installed
    assert {kind for kind, _, _ in upgraded} > {kind for kind, _, _ in installed}
    assert kept == secret
    assert _but_records(back) == _but_records(installed)
    assert everything(crowded) == before


def _but_records(objects):
    """Leave out helm's own records, one of each revision."""
    return {one for one in objects if not one[2].startswith("sh.helm.release.")}


def _secret(plane, release):
    _, said = plane.ask(
        "GET", f"/api/v1/secrets?labelSelector=app.kubernetes.io/instance%3D{release}"
    )
    return {one["data"]["secret"] for one in said["items"]}
