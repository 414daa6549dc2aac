"""Which endpoints a pool has: one for each port of each of its pods.

A pod that is not ready, or is to go, keeps its endpoints and takes no new requests: what its cache
holds and what runs on it is still true. Only when it is over, or gone, do they leave the fleet.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from leadsman_engines.profile import EMPTY_PROFILE
from leadsman_engines.profile import EngineProfile as Statements

from leadsman_operator.endpoint import Endpoint
from leadsman_operator.objects import EngineProfile, InferencePool, Pod
from leadsman_operator.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whose endpoint it is. accepts: whether new requests may go there."""

    pod: Pod
    profile: EngineProfile | None
    accepts: bool


def targets_of(world: World, pool: InferencePool) -> Mapping[Endpoint, Target]:
    """Say which endpoints a pool has, and of each whose it is."""
    targets = {}
    for pod in world.pods_of(pool):
        profile = world.profile_of(pod)
        accepts = pod.is_ready and pod.metadata.deletion_timestamp is None
        for place, port in enumerate(pool.spec.target_ports):
            endpoint = Endpoint(
                url=f"http://{_host(pod)}:{port.number}",
                profile=statements(profile, place),
                pod=pod.metadata.uid,
                keeps_names=_is_in_mooncake(profile),
            )
            targets[endpoint] = Target(pod=pod, profile=profile, accepts=accepts)
    return targets


def statements(profile: EngineProfile | None, place: int) -> Statements:
    """Say what a profile states of the engine behind the place-th of its pod's ports."""
    if profile is None:
        return EMPTY_PROFILE
    stated, events = profile.spec.settings, profile.spec.kv_events
    settings = {} if stated is None else msgspec.structs.asdict(stated)
    if events is None:
        return Statements(**settings)
    return Statements(
        **settings,
        kv_events=_socket(events.port, place) if events.published else "off",
        kv_replay=_socket(events.replay_port, place),
    )


def _is_in_mooncake(profile: EngineProfile | None) -> bool:
    shared = profile.spec.shared_store if profile else None
    return shared is not None and shared.mooncake is not None


def _socket(port: int | None, place: int) -> str | None:
    return None if port is None else f"tcp://*:{port + place}"


def _host(pod: Pod) -> str:
    ip = pod.status.pod_ip or ""
    return f"[{ip}]" if ":" in ip else ip
