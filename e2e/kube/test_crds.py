import pytest
import yaml
from leadsman_operator.crds.latency_budget import LatencyBudgetSpec
from leadsman_operator.crds.manifests import RESOURCES

from .conftest import CRDS, OURS, PODS, POOLS, ROOT, budget, create, pool, profile

PLURALS = {"LatencyBudget": "latencybudgets", "EngineProfile": "engineprofiles"}
EXAMPLES = [
    pytest.param(document, id=document["metadata"]["name"])
    for path in sorted((ROOT / "crds" / "examples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]
SELECTOR = {"matchLabels": {"app": "chat"}}


def holds(whole, part):
    """Whether everything that is written is in what came of it."""
    if isinstance(part, dict):
        return all(name in whole and holds(whole[name], value) for name, value in part.items())
    return whole == part


def path_of(namespace, body):
    return OURS.format(namespace, PLURALS[body["kind"]])


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda one: one.kind)
def test_the_api_server_takes_each_definition_as_structural(plane, resource):
    _, said = plane.ask("GET", f"{CRDS}/{resource.plural}.leadsman.dev")

    conditions = {one["type"]: one["status"] for one in said["status"]["conditions"]}
    assert conditions["NamesAccepted"] == conditions["Established"] == "True"
    assert conditions.get("NonStructuralSchema", "False") == "False"


@pytest.mark.parametrize("document", EXAMPLES)
def test_an_example_can_be_applied(plane, namespace, document):
    said = create(plane, path_of(namespace, document), document)

    assert holds(said["spec"], document["spec"])


def test_what_is_left_out_is_filled_in_as_the_code_has_it(plane, namespace):
    said = create(plane, OURS.format(namespace, "latencybudgets"), budget("b"))

    spec = LatencyBudgetSpec()
    assert said["spec"] == {
        "confidence": spec.confidence,
        "shouldRetry": spec.should_retry,
        "retryJitter": spec.retry_jitter,
        "sessionMoveCost": spec.session_move_cost,
        "probes": spec.probes,
        "mode": spec.mode,
        "policy": spec.policy,
        "unit": spec.unit,
        "sessionCalls": spec.session_calls,
        "sessionIdle": spec.session_idle,
    }


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (
            budget("b", maxQueueWait="30"),
            "spec.maxQueueWait",
            'Invalid value: "30": must be a duration above 0, written like 30s, 1m30s or 250ms',
        ),
        (budget("b", ttft="0s"), "spec.ttft", '"0s": must be a duration above 0'),
        (budget("b", overload="-5s"), "spec.overload", '"-5s": must be a duration above 0'),
        (
            budget("b", sessionMoveCost="cheap"),
            "spec.sessionMoveCost",
            '"cheap": must be a duration, written like 0s, 250ms or 1m30s',
        ),
        (
            budget("b", confidence=1),
            "spec.confidence",
            "Invalid value: 1: must be at least 0.5 and below 1",
        ),
        (
            budget("b", probes=1.5),
            "spec.probes",
            "Invalid value: 1.5: must be a share between 0 and 1",
        ),
        (
            budget("b", mode="Shadow", probes=0.1),
            "spec",
            "probes must be 0 in modes Shadow and Off, where nobody is refused: set mode to",
        ),
        (
            budget("b", mode="Never"),
            "spec.mode",
            'supported values: "Enforce", "Off", "Shadow"',
        ),
        (
            budget("b", statuses={"overloaded": 200}),
            "spec.statuses.overloaded",
            "should be greater than or equal to 400",
        ),
        (
            budget("b", poolRef={"name": "p", "kind": "Service"}),
            "spec.poolRef.kind",
            'supported values: "InferencePool"',
        ),
        (
            budget("b", match={"headers": [{"name": "X-Tier", "value": "gold"}]}),
            "spec.match.headers[0].name",
            '"X-Tier": must be a header\'s name in lower case, like x-tier',
        ),
        (budget("b", match={"tenants": []}), "spec.match.tenants", "at least 1 items"),
        (
            profile("p", selector=SELECTOR, settings={"maxNumBatchedTokens": 8, "maxNumSeqs": 16}),
            "spec.settings",
            "maxNumBatchedTokens must be at least maxNumSeqs: vLLM needs a token a sequence",
        ),
        (
            profile("p", selector=SELECTOR, kvEvents={"replayPort": 5558}),
            "spec.kvEvents",
            "replayPort is of no use without port: state both",
        ),
        (
            profile("p", selector=SELECTOR, kvEvents={"published": False, "port": 5557}),
            "spec.kvEvents",
            "with published false, drop port and replayPort; or set published to true",
        ),
        (
            profile("p", selector=SELECTOR, sharedStore={"lmcache": "coordinator:9300"}),
            "spec.sharedStore.lmcache",
            "must be a URL",
        ),
        (
            profile("p", selector=SELECTOR, sharedStore={"storedAs": "m"}),
            "spec.sharedStore",
            "must name one of lmcache and mooncake",
        ),
        (profile("p"), "spec.selector", "Required value"),
        (profile("p", selector={"matchLabels": {}}), "spec.selector.matchLabels", "at least 1"),
        (
            profile("p", selector=SELECTOR, engine="TGI"),
            "spec.engine",
            'supported values: "SGLang", "vLLM"',
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_is_wrong_and_what_is_allowed(
    plane, namespace, body, field, message
):
    status, said = plane.ask("POST", path_of(namespace, body), body)

    assert status == 422
    assert field in {cause["field"] for cause in said["details"]["causes"]}
    assert message in said["message"]


def test_a_list_shows_what_matters(plane, namespace):
    path = OURS.format(namespace, "latencybudgets")
    create(plane, path, budget("b", poolRef={"name": "chat"}, maxQueueWait="30s"))

    _, said = plane.ask("GET", path, table=True)

    names = [column["name"] for column in said["columnDefinitions"]]
    assert names == ["Name", "Pool", "Max-Wait", "TTFT", "Mode", "Effective", "Age"]
    [row] = said["rows"]
    assert row["cells"][:5] == ["b", "chat", "30s", None, "Enforce"]


def test_the_kinds_have_short_names_and_a_category(plane):
    _, said = plane.ask("GET", "/apis/leadsman.dev/v1alpha1")

    kinds = {one["name"]: one for one in said["resources"]}
    assert kinds["latencybudgets"]["shortNames"] == ["latbud"]
    assert kinds["engineprofiles"]["shortNames"] == ["engprof"]
    assert {*kinds["latencybudgets"]["categories"]} == {"leadsman"}
    assert "latencybudgets/status" in kinds


def test_upstream_pools_are_there(plane, namespace):
    said = create(plane, POOLS.format(namespace), pool("chat", {"app": "chat"}, 8000))

    assert said["spec"]["targetPorts"] == [{"number": 8000}]
    assert plane.ask("GET", PODS.format(namespace))[1]["items"] == []
