"""What the status of each custom resource should say, given the world and what was found in it.

A condition keeps the time of its last change for as long as it says the same; so a status is
written only where something else in it is new.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from leadsman.budget import Budget, BudgetError
from leadsman.policies import BUILT_IN
from leadsman.records import WorkerSeen

from leadsman_operator.crds.engine_profile import (
    MOST_WORKERS,
    EngineProfileStatus,
    WorkerStatus,
)
from leadsman_operator.crds.latency_budget import LatencyBudgetStatus, PoolStatus
from leadsman_operator.crds.parts import Condition
from leadsman_operator.objects import EngineProfile, Key, LatencyBudget, Metadata
from leadsman_operator.precedence import applies, read_budget
from leadsman_operator.stores import shared_by
from leadsman_operator.targets import Target
from leadsman_operator.views import PoolView, Trouble
from leadsman_operator.world import World

_NAMED: Final = 3
"""How many pods a message names before it only counts them."""

_ENGINES: Final = {"vllm": "vLLM", "sglang": "SGLang"}
"""How a profile spells the engines."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    type: Literal[
        "Accepted",
        "ResolvedRefs",
        "Effective",
        "EnginesReachable",
        "Discovered",
        "StoreReadable",
    ]
    holds: bool
    reason: str
    message: str


Views = Mapping[Key, PoolView]


def budget_status(one: LatencyBudget, world: World, views: Views, now: str) -> LatencyBudgetStatus:
    """Say what has become of a budget; `now` stamps what is new."""
    key = Key(one.metadata.namespace, one.metadata.name)
    places = [(view, view.place(key)) for _, view in sorted(views.items())]
    applied = [(view, place) for view, place in places if place is not None]
    verdicts = [
        _accepted(one),
        _resolved(one, world),
        _effective(key, [view for view, _ in applied]),
        _reachable([trouble for view, _ in applied for trouble in view.troubles()]),
    ]
    pools = tuple(_pool_status(view, place) for view, place in applied)
    conditions = _settled(one.status.conditions, verdicts, one.metadata, now)
    return LatencyBudgetStatus(conditions=conditions, pools=pools)


def profile_status(one: EngineProfile, views: Views, now: str) -> EngineProfileStatus:
    """Say what was found in the pods that a profile speaks of."""
    ours = [
        (view, endpoint, target)
        for _, view in sorted(views.items())
        for endpoint, target in view.targets.items()
        if _is_about(one, target)
    ]
    workers = {
        worker.worker: (_worker_status(worker, target), _ENGINES[worker.settings.engine])
        for view, endpoint, target in ours
        if endpoint in view.found
        for worker in view.found[endpoint].workers
    }
    pods = {target.pod.metadata.uid for _, _, target in ours}
    troubles = [
        trouble
        for _, view in sorted(views.items())
        for trouble in view.troubles()
        if _is_about(one, view.targets[trouble.endpoint])
    ]
    others = [
        f"{status.pod} runs {runs}"
        for status, runs in sorted(workers.values(), key=lambda pair: pair[0].worker)
        if runs != one.spec.engine
    ]
    verdicts = [_discovered(len(pods), len(workers), troubles, others)]
    if one.spec.shared_store is not None:
        asked = [
            view.stores[store]
            for view, endpoint, target in ours
            if endpoint in view.found
            for store in shared_by(target, view.found[endpoint])
            if store in view.stores
        ]
        verdicts.append(_readable(one.spec.shared_store.url, asked))
    return EngineProfileStatus(
        conditions=_settled(one.status.conditions, verdicts, one.metadata, now),
        pods=len(pods),
        workers=len(workers),
        discovered=tuple(status for _, (status, _) in sorted(workers.items())[:MOST_WORKERS]),
    )


def _accepted(one: LatencyBudget) -> _Verdict:
    read = read_budget(one)
    if isinstance(read, BudgetError):
        return _Verdict("Accepted", False, "Invalid", f"It is not applied: {read}.")
    problem = _of_policy(read.budget)
    if problem is not None:
        message = f"Policy {one.spec.policy}: {problem}; predicted_wait decides in its place."
        return _Verdict("Accepted", False, "InvalidPolicy", message)
    return _Verdict("Accepted", True, "Accepted", "It can be applied.")


def _of_policy(budget: Budget) -> str | None:
    """Say why a budget's policy cannot be made; one that only a picker knows it may know how to."""
    kind = BUILT_IN.get(budget.policy)
    try:
        if kind is not None:
            kind.made(budget.parameters)
    except ValueError as error:
        return str(error)
    return None


def _resolved(one: LatencyBudget, world: World) -> _Verdict:
    """Say whether all that it names is there."""
    pools = [pool for pool in world.pools.values() if applies(one, pool)]
    if not pools and one.spec.pool_ref is not None:
        name = one.spec.pool_ref.name
        message = f"There is no InferencePool {name!r} in namespace {one.metadata.namespace}."
        return _Verdict("ResolvedRefs", False, "PoolNotFound", message)
    named = (one.spec.match and one.spec.match.objectives) or ()
    missing = [n for n in named if Key(one.metadata.namespace, n) not in world.objectives]
    if missing:
        message = f"There is no InferenceObjective {', '.join(missing)} in its namespace."
        return _Verdict("ResolvedRefs", False, "ObjectiveNotFound", message)
    return _Verdict("ResolvedRefs", True, "ResolvedRefs", "All that it names is there.")


def _effective(key: Key, views: Iterable[PoolView]) -> _Verdict:
    """Say whether some request can fall under it."""
    ranks = [(view, one) for view in views for one in view.budgets if one.key == key]
    if not ranks:
        return _Verdict("Effective", False, "NoPool", "It applies to no pool.")
    if all(one.overridden_by for _, one in ranks):
        whose = "; ".join(
            f"in pool {view.pool.metadata.name}, {one.overridden_by.name} goes before it and takes"
            " every request that it matches"
            for view, one in ranks
            if one.overridden_by
        )
        return _Verdict("Effective", False, "Overridden", f"No request falls under it: {whose}.")
    return _Verdict("Effective", True, "Effective", "Requests that it matches fall under it.")


def _reachable(troubles: list[Trouble]) -> _Verdict:
    if troubles:
        return _Verdict("EnginesReachable", False, "EngineUnreachable", _named(troubles))
    return _Verdict("EnginesReachable", True, "AllReachable", "No ready pod is in trouble.")


def _discovered(pods: int, workers: int, troubles: list[Trouble], others: list[str]) -> _Verdict:
    if troubles:
        return _Verdict("Discovered", False, "EngineUnreachable", _named(troubles))
    if not pods:
        message = "No running pod of any pool is described by it."
        return _Verdict("Discovered", False, "NoPods", message)
    if not workers:
        return _Verdict("Discovered", False, "Pending", "No engine has answered yet.")
    if others:
        message = f"They are followed as what they are, but {_listed(others)}."
        return _Verdict("Discovered", False, "AnotherEngine", message)
    return _Verdict("Discovered", True, "Discovered", "Every ready pod's engine is followed.")


def _readable(url: str, problems: list[str | None]) -> _Verdict:
    if not problems:
        message = f"{url} has not been asked yet: no engine that shares it was found."
        return _Verdict("StoreReadable", False, "Pending", message)
    problem = next(filter(None, problems), None)
    if problem is not None:
        return _Verdict("StoreReadable", False, "DirectoryUnreadable", f"{url}: {problem}")
    return _Verdict("StoreReadable", True, "Readable", "What the engines share is known.")


def _named(troubles: list[Trouble]) -> str:
    return _listed([str(trouble) for trouble in troubles])


def _listed(words: list[str]) -> str:
    first, more = "; ".join(words[:_NAMED]), len(words) - _NAMED
    return f"{first}; and {more} more" if more > 0 else first


def _is_about(one: EngineProfile, target: Target) -> bool:
    return target.profile is not None and target.profile.metadata.uid == one.metadata.uid


def _pool_status(view: PoolView, place: int) -> PoolStatus:
    workers = view.workers()
    return PoolStatus(
        name=view.pool.metadata.name,
        precedence=place,
        budgets=len(view.budgets),
        workers=len(workers),
        ready_workers=sum(worker.ready for worker in workers),
    )


def _worker_status(worker: WorkerSeen, target: Target) -> WorkerStatus:
    settings = worker.settings
    return WorkerStatus(
        worker=worker.worker,
        pod=target.pod.metadata.name,
        ready=worker.ready,
        model=settings.model,
        version=settings.version,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        max_model_len=settings.max_model_len,
        block_size=settings.block_size,
        num_blocks=settings.num_blocks,
    )


def _settled(
    before: tuple[Condition, ...], verdicts: Iterable[_Verdict], about: Metadata, now: str
) -> tuple[Condition, ...]:
    """Make conditions of verdicts; one that says what it said keeps its time."""
    were = {one.type: one for one in before}
    made = []
    for verdict in verdicts:
        status: Literal["True", "False"] = "True" if verdict.holds else "False"
        was = were.get(verdict.type)
        since = was.last_transition_time if was and was.status == status else now
        made.append(
            Condition(
                type=verdict.type,
                status=status,
                reason=verdict.reason,
                message=verdict.message,
                last_transition_time=since,
                observed_generation=about.generation,
            )
        )
    return tuple(made)
