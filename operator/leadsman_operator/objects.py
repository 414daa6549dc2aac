"""The Kubernetes objects that the operator looks at, reduced to the fields that it needs.

What is not named here is not even decoded. An object is a value: two that are equal here mean the
same to the operator, whatever else of them changed.

Source: Kubernetes API: core/v1 Pod; inference.networking.k8s.io/v1 InferencePool;
InferenceObjective of llm-d.ai and of inference.networking.x-k8s.io, v1alpha2.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct, field

from leadsman_operator.crds.engine_profile import EngineProfileSpec, EngineProfileStatus
from leadsman_operator.crds.latency_budget import LatencyBudgetSpec, LatencyBudgetStatus


class Key(NamedTuple):
    """Names one object of a kind."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Metadata(Struct, frozen=True, kw_only=True, rename="camel"):
    """What every object has. deletion_timestamp: set from when it is to go."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


class PodCondition(Struct, frozen=True, kw_only=True):
    """One condition of a pod."""

    type: str
    status: str


class PodStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the pod is and how it is."""

    phase: str = ""
    pod_ip: str | None = field(default=None, name="podIP")
    conditions: tuple[PodCondition, ...] = ()


class Pod(Struct, frozen=True, kw_only=True):
    """A pod."""

    metadata: Metadata
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        """Whether its readiness probes pass."""
        return any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)


class PoolSelector(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which pods are the pool's."""

    match_labels: dict[str, str]


class TargetPort(Struct, frozen=True, kw_only=True):
    """One port; each is an endpoint of its own."""

    number: int


class InferencePoolSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a pool is."""

    selector: PoolSelector
    target_ports: tuple[TargetPort, ...]


class InferencePool(Struct, frozen=True, kw_only=True):
    """A pool. Never written: its status is the gateway's."""

    metadata: Metadata
    spec: InferencePoolSpec


class ObjectivePoolRef(Struct, frozen=True, kw_only=True):
    """The pool that an objective is for; None: an old object names none."""

    name: str | None = None


class InferenceObjectiveSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    """priority: the higher, the more important; may be negative."""

    priority: int = 0
    pool_ref: ObjectivePoolRef = ObjectivePoolRef()


class InferenceObjective(Struct, frozen=True, kw_only=True):
    """A named objective, which requests name in a header."""

    metadata: Metadata
    spec: InferenceObjectiveSpec = InferenceObjectiveSpec()


class LatencyBudget(Struct, frozen=True, kw_only=True):
    """See its CRD."""

    metadata: Metadata
    spec: LatencyBudgetSpec
    status: LatencyBudgetStatus = LatencyBudgetStatus()


class EngineProfile(Struct, frozen=True, kw_only=True):
    """See its CRD."""

    metadata: Metadata
    spec: EngineProfileSpec
    status: EngineProfileStatus = EngineProfileStatus()


Object: TypeAlias = Pod | InferencePool | InferenceObjective | LatencyBudget | EngineProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Where the objects of one kind are, and what they become. group "": the core's."""

    group: str
    version: str
    plural: str
    shape: type[Object]

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """Give the path of one object, or of all in a namespace, or of all."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        parts += ["namespaces", namespace] if namespace else []
        return "/" + "/".join([*parts, self.plural, *([name] if name else [])])


PODS: Final = Kind(group="", version="v1", plural="pods", shape=Pod)
POOLS: Final = Kind(
    group="inference.networking.k8s.io",
    version="v1",
    plural="inferencepools",
    shape=InferencePool,
)
BUDGETS: Final = Kind(
    group="leadsman.dev", version="v1alpha1", plural="latencybudgets", shape=LatencyBudget
)
PROFILES: Final = Kind(
    group="leadsman.dev", version="v1alpha1", plural="engineprofiles", shape=EngineProfile
)
OBJECTIVES: Final = tuple(
    Kind(group=group, version="v1alpha2", plural="inferenceobjectives", shape=InferenceObjective)
    for group in ("llm-d.ai", "inference.networking.x-k8s.io")
)
KINDS: Final = (POOLS, PODS, BUDGETS, PROFILES, *OBJECTIVES)
