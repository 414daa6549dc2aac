"""Which budgets a pool has, and which goes before which.

A request takes the first budget that it matches, whole. The more is said of whom a budget is for,
the sooner it comes, and what says more of the caller goes before what says more of the place:

1. one that names tenants, 2. objectives, 3. headers (more of them first), 4. models, 5. the pool;
6. then the older one, and 7. of two of one second the one whose name comes first.

So an exception for a tenant needs no change of anybody else's budget, and a budget that is added
later takes nothing from one that says as much.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leadsman.budget import Budget, BudgetError, Mode, Unit
from leadsman.declared import Declared, Scope, ScopedBudget
from leadsman.prediction import Reason

from leadsman_operator.crds.latency_budget import LatencyBudgetSpec, Match, Statuses
from leadsman_operator.crds.parts import seconds
from leadsman_operator.objects import InferencePool, Key, LatencyBudget
from leadsman_operator.world import World

_MODES: Final[dict[str, Mode]] = {"Enforce": "enforce", "Shadow": "shadow", "Off": "off"}
_UNITS: Final[dict[str, Unit]] = {"Request": "request", "Session": "session", "Tenant": "tenant"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One budget of a pool. overridden_by: an earlier one that takes all of its requests."""

    key: Key
    scoped: ScopedBudget
    overridden_by: Key | None


def ranked(world: World, pool: InferencePool) -> tuple[Ranked, ...]:
    """Order a pool's budgets; those that cannot be meant are left out."""
    found: list[Ranked] = []
    applying = [one for one in world.budgets.values() if applies(one, pool)]
    for one in sorted(applying, key=_order):
        scoped = read_budget(one)
        if isinstance(scoped, BudgetError):
            continue
        covering = (other.key for other in found if other.scoped.scope.covers(scoped.scope))
        key = Key(one.metadata.namespace, one.metadata.name)
        found.append(Ranked(key=key, scoped=scoped, overridden_by=next(covering, None)))
    return tuple(found)


def declared(budgets: tuple[Ranked, ...], importance: Mapping[str, int]) -> Declared:
    """Say what pickers are told. importance: of the pool's objectives."""
    return Declared(budgets=tuple(one.scoped for one in budgets), importance=importance)


def importance_of(world: World, pool: InferencePool) -> dict[str, int]:
    """Give the priority of each objective of a pool's namespace that is for this pool."""
    namespace, name = pool.metadata.namespace, pool.metadata.name
    return {
        key.name: one.spec.priority
        for key, one in world.objectives.items()
        if key.namespace == namespace and one.spec.pool_ref.name in {None, name}
    }


def applies(budget: LatencyBudget, pool: InferencePool) -> bool:
    """Say whether a budget is for a pool."""
    ref = budget.spec.pool_ref
    same = budget.metadata.namespace == pool.metadata.namespace
    return same and (ref is None or ref.name == pool.metadata.name)


def read_budget(one: LatencyBudget) -> ScopedBudget | BudgetError:
    """Make the core's budget of an object; BudgetError where it cannot be meant."""
    spec = one.spec
    try:
        budget = Budget(
            name=one.metadata.name,
            max_queue_wait=_seconds(spec.max_queue_wait),
            ttft=_seconds(spec.ttft),
            overload=_seconds(spec.overload),
            confidence=spec.confidence,
            statuses=_statuses(spec.statuses or Statuses()),
            should_retry=spec.should_retry,
            retry_jitter=spec.retry_jitter,
            session_move_cost=seconds(spec.session_move_cost),
            probes=spec.probes,
            mode=_MODES[spec.mode],
            policy=spec.policy,
            parameters=spec.parameters or {},
            unit=_UNITS[spec.unit],
            shares=spec.shares,
            session_calls=spec.session_calls,
            session_idle=seconds(spec.session_idle),
            hold=_seconds(spec.hold),
        )
    except BudgetError as error:
        return error
    return ScopedBudget(budget=budget, scope=_scope(spec.match or Match()))


def _seconds(text: str | None) -> float | None:
    return None if text is None else seconds(text)


def _statuses(stated: Statuses) -> dict[Reason, int]:
    kept = {reason: getattr(stated, reason.value, None) for reason in Reason}
    return {reason: status for reason, status in kept.items() if status is not None} | {
        Reason.NO_ENDPOINT: 503
    }


def _scope(match: Match) -> Scope:
    return Scope(
        models=_set(match.models),
        tenants=_set(match.tenants),
        objectives=_set(match.objectives),
        headers={header.name: header.value for header in match.headers or ()},
    )


def _set(words: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if words is None else frozenset(words)


def _order(one: LatencyBudget) -> tuple[bool, bool, int, bool, bool, str, str]:
    spec: LatencyBudgetSpec = one.spec
    match = spec.match or Match()
    return (
        match.tenants is None,
        match.objectives is None,
        -len(match.headers or ()),
        match.models is None,
        spec.pool_ref is None,
        one.metadata.creation_timestamp,
        one.metadata.name,
    )
