"""Writes what the operator has to say into the cluster: statuses, and Events of what is in trouble.

A status is written where it differs from the one that is there. A pod whose engine cannot be used
and a budget that cannot be applied as it is written get an Event for each cause, once for each time
of trouble. Nothing else in the cluster is written, and of what a user owns nothing but the status
of our own two kinds.
"""

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from leadsman_operator.crds.parts import Condition, Part
from leadsman_operator.kube import NO_ANSWER, Api, ApiError
from leadsman_operator.objects import BUDGETS, PROFILES, Key, Kind, LatencyBudget, Metadata
from leadsman_operator.status import Views, budget_status, profile_status
from leadsman_operator.views import Trouble
from leadsman_operator.world import World

log = logging.getLogger(__name__)

_COMPONENT: Final = "leadsman-operator"
_LONGEST_MESSAGE: Final = 1024
_MOST_CAUSES: Final = 3
"""Events in one time of trouble: causes that differ in a number only would never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warning:
    """What an Event says. subject: what is in trouble; about: the object that it is told of."""

    subject: Hashable
    about: Mapping[str, str]
    reason: str
    cause: str


@dataclass(slots=True, kw_only=True)
class Reporter:
    """Writes by one API server. instance: this process, as Events name it."""

    api: Api
    instance: str
    _told: dict[Hashable, frozenset[str]] = field(default_factory=dict)

    async def tell(self, world: World, views: Views) -> None:
        """Write what is new."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        warnings = [_of_pod(one) for view in views.values() for one in view.troubles()]
        for key, budget in world.budgets.items():
            status = budget_status(budget, world, views, now)
            warnings += _of_budget(budget, status.conditions)
            await self._put(BUDGETS, key, budget.status, status)
        for key, profile in world.profiles.items():
            await self._put(PROFILES, key, profile.status, profile_status(profile, views, now))
        await self._warn(warnings, now)

    async def _put(self, kind: Kind, key: Key, before: Part, after: Part) -> None:
        if before == after:
            return
        status = {
            field.encode_name: msgspec.to_builtins(getattr(after, field.name))
            for field in msgspec.structs.fields(after)
        }
        path = kind.path(key.namespace, key.name) + "/status"
        try:
            await self.api.merge(path, {"status": status})
        except (ApiError, *NO_ANSWER) as error:
            fields = {"object": f"{kind.plural} {key}", "error": str(error) or repr(error)}
            log.warning("status not written", extra=fields)

    async def _warn(self, warnings: Iterable[_Warning], now: str) -> None:
        told: dict[Hashable, frozenset[str]] = {}
        for one in warnings:
            causes = told.get(one.subject, self._told.get(one.subject, frozenset()))
            is_new = one.cause not in causes and len(causes) < _MOST_CAUSES
            if is_new and await self._post(one, now):
                causes |= {one.cause}
            told[one.subject] = causes
        self._told = told

    async def _post(self, warning: _Warning, now: str) -> bool:
        """Post an Event; False where it could not be."""
        path = f"/api/v1/namespaces/{warning.about['namespace']}/events"
        try:
            await self.api.create(path, self._event(warning, now))
        except (ApiError, *NO_ANSWER) as error:
            fields = {"object": warning.about["name"], "error": str(error) or repr(error)}
            log.warning("event not written", extra=fields)
            return False
        return True

    def _event(self, warning: _Warning, now: str) -> dict[str, Any]:
        about = warning.about
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "generateName": f"{about['name'][:200]}.",
                "namespace": about["namespace"],
            },
            "involvedObject": about,
            "type": "Warning",
            "reason": warning.reason,
            "message": warning.cause[:_LONGEST_MESSAGE],
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self.instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _of_pod(trouble: Trouble) -> _Warning:
    return _Warning(
        subject=trouble.endpoint,
        about=_reference("v1", "Pod", trouble.pod.metadata),
        reason="EngineUnreachable",
        cause=f"{trouble.endpoint.address} takes no requests: {trouble.problem}",
    )


def _of_budget(budget: LatencyBudget, conditions: Iterable[Condition]) -> Iterator[_Warning]:
    """Give what keeps a budget from being applied as it is written."""
    about = budget.metadata
    for one in conditions:
        if one.type == "Accepted" and one.status == "False":
            yield _Warning(
                subject=about.uid,
                about=_reference(f"{BUDGETS.group}/{BUDGETS.version}", "LatencyBudget", about),
                reason=one.reason,
                cause=one.message,
            )


def _reference(version: str, kind: str, about: Metadata) -> dict[str, str]:
    return {
        "apiVersion": version,
        "kind": kind,
        "name": about.name,
        "namespace": about.namespace,
        "uid": about.uid,
    }
