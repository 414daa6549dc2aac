"""Makes Kubernetes objects as the API server would send them, and strategies of whole worlds."""

import msgspec
from hypothesis import strategies as st
from leadsman_operator.objects import (
    BUDGETS,
    OBJECTIVES,
    PODS,
    POOLS,
    PROFILES,
    Key,
)
from leadsman_operator.world import World

NAMESPACE = "serving"
LABELS = {"app": "chat"}


def made(kind, name, *, spec=None, status=None, **metadata):
    about = {"name": name, "namespace": NAMESPACE, "uid": f"uid of {name}", "generation": 1}
    raw = {"metadata": about | metadata}
    raw |= {"spec": spec} if spec is not None else {}
    raw |= {"status": status} if status is not None else {}
    return msgspec.convert(raw, kind.shape)


def pod(name, ip="10.0.0.1", *, ready=True, phase="Running", labels=None, **metadata):
    condition = {"type": "Ready", "status": str(ready)}
    status = {"phase": phase, "conditions": [condition]} | ({"podIP": ip} if ip else {})
    return made(PODS, name, status=status, labels=LABELS if labels is None else labels, **metadata)


def pool(name="chat", *, ports=(8000,), labels=None, **metadata):
    spec = {
        "selector": {"matchLabels": LABELS if labels is None else labels},
        "targetPorts": [{"number": port} for port in ports],
    }
    return made(POOLS, name, spec=spec, **metadata)


def budget(name, *, created="2026-01-01T00:00:00Z", status=None, **spec):
    return made(BUDGETS, name, spec=spec, status=status, creationTimestamp=created)


def profile(name, *, labels=None, created="2026-01-01T00:00:00Z", status=None, **spec):
    spec["selector"] = {"matchLabels": LABELS if labels is None else labels}
    return made(PROFILES, name, spec=spec, status=status, creationTimestamp=created)


def objective(name, **spec):
    return made(OBJECTIVES[0], name, spec=spec)


def keyed(objects):
    return {Key(one.metadata.namespace, one.metadata.name): one for one in objects}


def world(*, pools=(), pods=(), budgets=(), profiles=(), objectives=()):
    return World(
        pools=keyed(pools),
        pods=keyed(pods),
        budgets=keyed(budgets),
        profiles=keyed(profiles),
        objectives={Key(NAMESPACE, name): objective(name) for name in objectives},
    )


NAMES = st.sampled_from(["a", "b", "c", "d"])
SOME_LABELS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from("12"), max_size=3)
pods = st.builds(
    pod,
    NAMES,
    st.none() | st.integers(1, 9).map(lambda n: f"10.0.0.{n}"),
    ready=st.booleans(),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
    labels=SOME_LABELS,
    namespace=st.sampled_from([NAMESPACE, "elsewhere"]),
    deletionTimestamp=st.none() | st.just("2026-01-01T00:00:00Z"),
)
pools = st.builds(
    pool,
    ports=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True),
    labels=SOME_LABELS.filter(len),
)
words = st.none() | st.lists(NAMES, min_size=1, max_size=2, unique=True)
matches = st.none() | st.fixed_dictionaries(
    {
        "models": words,
        "tenants": words,
        "objectives": words,
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"name": NAMES, "value": NAMES}),
            min_size=1,
            max_size=2,
            unique_by=lambda header: header["name"],
        ),
    }
)
budgets = st.builds(
    budget,
    NAMES,
    created=st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
    poolRef=st.none() | st.sampled_from([{"name": "chat"}, {"name": "other"}]),
    match=matches,
)
