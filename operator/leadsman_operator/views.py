"""What has become of one pool: its targets, its budgets, and what its collectors and the readers of
its stores found.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from leadsman.records import WorkerSeen
from leadsman_engines.profile import SharedStore

from leadsman_operator.collectors import Found
from leadsman_operator.endpoint import Endpoint
from leadsman_operator.objects import InferencePool, Key, Pod
from leadsman_operator.precedence import Ranked
from leadsman_operator.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An endpoint of a ready pod that cannot be used, and why."""

    pod: Pod
    endpoint: Endpoint
    problem: str

    def __str__(self) -> str:
        return f"pod {self.pod.metadata.name}, {self.endpoint.address}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """One pool, seen whole. stores: those that were asked, and why they cannot be read; None: they
    can. importance: of the objectives that are for it, by name.
    """

    pool: InferencePool
    targets: Mapping[Endpoint, Target]
    budgets: tuple[Ranked, ...]
    found: Mapping[Endpoint, Found]
    importance: Mapping[str, int] = field(default_factory=dict)
    stores: Mapping[SharedStore, str | None] = field(default_factory=dict)

    def _accepting(self) -> list[Endpoint]:
        return [endpoint for endpoint, target in self.targets.items() if target.accepts]

    @property
    def is_settled(self) -> bool:
        """Whether every endpoint that may take requests has been asked once."""
        return all(
            found is not None and (found.workers or found.problem)
            for found in map(self.found.get, self._accepting())
        )

    def closed(self) -> set[Endpoint]:
        """Give the endpoints that new requests may not go to."""
        return {endpoint for endpoint, target in self.targets.items() if not target.accepts}

    def workers(self) -> list[WorkerSeen]:
        """List the workers of all endpoints."""
        return [worker for found in self.found.values() for worker in found.workers]

    def place(self, budget: Key) -> int | None:
        """Say at which place a budget is asked, from 1 on; None where it is not."""
        keys = [one.key for one in self.budgets]
        return keys.index(budget) + 1 if budget in keys else None

    def troubles(self) -> Iterator[Trouble]:
        """Say which endpoints should take requests and cannot."""
        for endpoint, target in self.targets.items():
            found = self.found.get(endpoint)
            if target.accepts and found is not None and found.problem is not None:
                yield Trouble(pod=target.pod, endpoint=endpoint, problem=found.problem)
