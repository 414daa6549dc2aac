"""All objects that the operator looks at, at one moment, and how they belong together.

Everything that is decided is decided from this alone: nothing depends on which event came first,
or on whether one was missed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from leadsman_operator.objects import (
    EngineProfile,
    InferenceObjective,
    InferencePool,
    Key,
    LatencyBudget,
    Pod,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The objects. objectives: those that there are, of either API group."""

    pools: Mapping[Key, InferencePool] = field(default_factory=dict)
    pods: Mapping[Key, Pod] = field(default_factory=dict)
    budgets: Mapping[Key, LatencyBudget] = field(default_factory=dict)
    profiles: Mapping[Key, EngineProfile] = field(default_factory=dict)
    objectives: Mapping[Key, InferenceObjective] = field(default_factory=dict)

    def pods_of(self, pool: InferencePool) -> list[Pod]:
        """List a pool's pods that have an address and are not over, in the order of their names."""
        return [
            pod
            for _, pod in sorted(self.pods.items())
            if pod.metadata.namespace == pool.metadata.namespace
            and pod.status.phase == "Running"
            and pod.status.pod_ip is not None
            and has(pod, pool.spec.selector.match_labels)
        ]

    def profile_of(self, pod: Pod) -> EngineProfile | None:
        """Give the profile that speaks of a pod: the one with most labels, then the oldest."""
        speaking = [profile for profile in self.profiles.values() if speaks(profile, pod)]
        return min(speaking, key=_profile_order, default=None)


def has(pod: Pod, labels: Mapping[str, str]) -> bool:
    """Say whether a pod carries all of these labels."""
    return labels.items() <= pod.metadata.labels.items()


def speaks(profile: EngineProfile, pod: Pod) -> bool:
    """Say whether a profile's selector takes a pod in."""
    same = profile.metadata.namespace == pod.metadata.namespace
    return same and has(pod, profile.spec.selector.match_labels)


def _profile_order(profile: EngineProfile) -> tuple[int, str, str]:
    about = profile.metadata
    return -len(profile.spec.selector.match_labels), about.creation_timestamp, about.name
