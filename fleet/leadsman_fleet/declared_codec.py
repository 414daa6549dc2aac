"""What is declared of a pool, as a message and back.

A budget that this version does not understand is skipped and counted, like a record: the requests
that it was for fall under the next. A status for a reason that is not known is left out.
"""

from leadsman.budget import Budget, BudgetError
from leadsman.declared import Declared, Scope, ScopedBudget
from leadsman.prediction import Reason

from leadsman_fleet import fleet_pb2 as pb

_BOUNDS = ("max_queue_wait", "ttft", "overload", "hold")
_PLAIN = (
    "name",
    "confidence",
    "should_retry",
    "retry_jitter",
    "mode",
    "session_move_cost",
    "probes",
)
_NEWER = ("policy", "unit", "session_calls", "session_idle")
"""What an older operator does not tell: then it is as it is by default."""
_KINDS = ("models", "tenants", "objectives")


def encode_declared(declared: Declared) -> pb.Declared:
    """Put all that is declared into a message."""
    budgets = [_write(one) for one in declared.budgets]
    return pb.Declared(budgets=budgets, importance=declared.importance)


def decode_declared(message: pb.Declared) -> tuple[Declared, int]:
    """Take it out again; gives how many budgets were skipped too."""
    budgets = []
    for one in message.budgets:
        try:
            budgets.append(ScopedBudget(budget=_read_budget(one.budget), scope=_read(one.scope)))
        except BudgetError:
            continue
    declared = Declared(budgets=tuple(budgets), importance=dict(message.importance))
    return declared, len(message.budgets) - len(budgets)


def _write(one: ScopedBudget) -> pb.ScopedBudget:
    budget, scope = one.budget, one.scope
    named = {kind: getattr(scope, kind) for kind in _KINDS}
    return pb.ScopedBudget(
        budget=pb.Budget(
            statuses={str(reason): status for reason, status in budget.statuses.items()},
            parameters=budget.parameters,
            shares=None if budget.shares is None else pb.Weighted(weights=budget.shares),
            **{name: getattr(budget, name) for name in (*_BOUNDS, *_PLAIN, *_NEWER)},
        ),
        scope=pb.Scope(
            headers=scope.headers,
            **{
                kind: None if words is None else pb.Words(words=sorted(words))
                for kind, words in named.items()
            },
        ),
    )


def _read_budget(message: pb.Budget) -> Budget:
    known = {reason.value for reason in Reason}
    bounds = {name: getattr(message, name) for name in _BOUNDS if message.HasField(name)}
    return Budget(
        statuses={
            Reason(reason): status for reason, status in message.statuses.items() if reason in known
        },
        parameters=dict(message.parameters),
        shares=dict(message.shares.weights) if message.HasField("shares") else None,
        **bounds,
        **{name: getattr(message, name) for name in _PLAIN},
        **{name: told for name in _NEWER if (told := getattr(message, name))},
    )


def _read(message: pb.Scope) -> Scope:
    words = {
        kind: frozenset(getattr(message, kind).words) for kind in _KINDS if message.HasField(kind)
    }
    return Scope(headers=dict(message.headers), **words)
