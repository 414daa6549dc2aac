"""Writes what the operator has to say into the cluster: statuses, and Events of pods in trouble.

A status is written where it differs from the one that is there; an Event once for each time that
an endpoint gets into trouble. Nothing else in the cluster is written, and of what a user owns
nothing but the status of our own two kinds.
"""

import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from leadsman_operator.crds.parts import Part
from leadsman_operator.endpoint import Endpoint
from leadsman_operator.kube import NO_ANSWER, Api, ApiError
from leadsman_operator.objects import BUDGETS, PROFILES, Key, Kind
from leadsman_operator.status import Views, budget_status, profile_status
from leadsman_operator.views import Trouble
from leadsman_operator.world import World

log = logging.getLogger(__name__)

_COMPONENT: Final = "leadsman-operator"
_LONGEST_MESSAGE: Final = 1024


@dataclass(slots=True, kw_only=True)
class Reporter:
    """Writes by one API server. instance: this process, as Events name it."""

    api: Api
    instance: str
    _in_trouble: set[Endpoint] = field(default_factory=set)

    async def tell(self, world: World, views: Views) -> None:
        """Write what is new."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for key, budget in world.budgets.items():
            await self._put(BUDGETS, key, budget.status, budget_status(budget, world, views, now))
        for key, profile in world.profiles.items():
            await self._put(PROFILES, key, profile.status, profile_status(profile, views, now))
        await self._warn([one for view in views.values() for one in view.troubles()], now)

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

    async def _warn(self, troubles: list[Trouble], now: str) -> None:
        for trouble in troubles:
            if trouble.endpoint not in self._in_trouble:
                await self._post(trouble, now)
        self._in_trouble = {trouble.endpoint for trouble in troubles}

    async def _post(self, trouble: Trouble, now: str) -> None:
        namespace = trouble.pod.metadata.namespace
        try:
            await self.api.create(
                f"/api/v1/namespaces/{namespace}/events", self._event(trouble, now)
            )
        except (ApiError, *NO_ANSWER) as error:
            fields = {"pod": trouble.pod.metadata.name, "error": str(error) or repr(error)}
            log.warning("event not written", extra=fields)

    def _event(self, trouble: Trouble, now: str) -> dict[str, Any]:
        pod = trouble.pod.metadata
        said = f"{trouble.endpoint.address} takes no requests: {trouble.problem}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pod.name[:200]}.", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
            },
            "type": "Warning",
            "reason": "EngineUnreachable",
            "message": said[:_LONGEST_MESSAGE],
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self.instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
