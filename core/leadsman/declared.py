"""What a pool's owner has declared: which budget a request falls under, and how important it is.

Budgets stand in order, and a request takes the first whose scope it is in, whole: nothing is
merged from a later one, so what applies to a request can be read off one object. Who orders them
decides what goes before what; the core only walks the order.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from leadsman.budget import Budget
from leadsman.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which requests: those that fit every condition. None: no condition of that kind.

    headers: all of these, name in lower case → whole value.
    """

    models: frozenset[str] | None = None
    tenants: frozenset[str] | None = None
    objectives: frozenset[str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def holds(self, request: Request, headers: Mapping[str, str]) -> bool:
        """Say whether a request is in it."""
        return (
            (self.models is None or request.model in self.models)
            and (self.tenants is None or request.tenant in self.tenants)
            and (self.objectives is None or request.objective in self.objectives)
            and all(headers.get(name) == value for name, value in self.headers.items())
        )

    def covers(self, other: "Scope") -> bool:
        """Say whether every request of another scope is in this one too."""
        return (
            _covers(self.models, other.models)
            and _covers(self.tenants, other.tenants)
            and _covers(self.objectives, other.objectives)
            and self.headers.items() <= other.headers.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopedBudget:
    """A budget, and whose it is."""

    budget: Budget
    scope: Scope = field(default_factory=Scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """All that is declared of one pool. `budgets` are in order of precedence.

    importance: of objectives, by name; of those that are not there it is 0.
    """

    budgets: tuple[ScopedBudget, ...] = ()
    importance: Mapping[str, int] = field(default_factory=dict)

    def budget_for(self, request: Request, headers: Mapping[str, str], otherwise: Budget) -> Budget:
        """Give the first budget whose scope the request is in. O(budgets)."""
        holding = (one.budget for one in self.budgets if one.scope.holds(request, headers))
        return next(holding, otherwise)


def _covers(more: frozenset[str] | None, less: frozenset[str] | None) -> bool:
    return more is None or (less is not None and less <= more)
