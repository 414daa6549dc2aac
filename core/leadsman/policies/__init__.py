"""The admission policies that are built in, by the names that budgets give."""

from collections.abc import Mapping
from types import MappingProxyType

from leadsman.policies.deadlines import Chronos, Mooncake
from leadsman.policies.dual_gate import DualGate
from leadsman.policies.limits import ConcurrencyCap, KeyRateLimit, KvThreshold, QueueCap
from leadsman.policies.optimizer import FleetOptimizer
from leadsman.policies.plain import NoAdmission, PredictedWait
from leadsman.policy import Policy

BUILT_IN: Mapping[str, type[Policy]] = MappingProxyType(
    {
        kind.name: kind
        for kind in (
            PredictedWait,
            NoAdmission,
            KeyRateLimit,
            ConcurrencyCap,
            KvThreshold,
            QueueCap,
            DualGate,
            FleetOptimizer,
            Chronos,
            Mooncake,
        )
    }
)
