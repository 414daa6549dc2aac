"""CONCUR's dual gate: how many sessions are in is moved by two signals that must agree.

A full cache alone may be doing valuable work by being reused; a low hit rate alone may be new
conversations. Only where both say that the cache is being lost (usage high, hits low) the number of
sessions is cut; where usage leaves room it grows. How a window of sessions grows, is cut, and lets
calls of a session through that is in, is `sessions`: this policy only says what it hears.

Source: CONCUR, arXiv 2601.22705: additive increase, multiplicative decrease of active agents.
"""

from dataclasses import dataclass
from typing import ClassVar

from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.policy import Policy, SignalLostError, Unit, parameter
from leadsman.prediction import Reason
from leadsman.route import Choice
from leadsman.signals import Signal


@dataclass(kw_only=True)
class DualGate(Policy):
    """Refuses while the cache is full and few of its blocks are found again, on all workers."""

    name: ClassVar[str] = "dual_gate"
    source: ClassVar[str] = "CONCUR, arXiv 2601.22705"
    unit: ClassVar[Unit] = "session"
    needs: ClassVar[frozenset[Signal]] = frozenset({Signal.KV_USAGE, Signal.HIT_RATE})

    usage: float = parameter(0.8, source="default: as kv_threshold; the paper's is its hardware's")
    hit_rate: float = parameter(0.5, source="default: half, chosen; the paper's is its workload's")
    retry: float = parameter(2.0, source="borrowed: AdmitPerf 0.0.2, infra/gateway")

    def __post_init__(self) -> None:
        for name in ("usage", "hit_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share above 0 and at most 1")

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Say whether the pool's caches, all together, have room."""
        del budget
        workers, now = soundings.candidates.workers, soundings.now
        usages = [value for one in workers if (value := one.read(Signal.KV_USAGE, now)) is not None]
        rates = [value for one in workers if (value := one.read(Signal.HIT_RATE, now)) is not None]
        if not usages:
            raise SignalLostError(frozenset({Signal.KV_USAGE}))
        usage = sum(usages) / len(usages)
        if usage < self.usage:
            return choice
        if not rates:
            raise SignalLostError(frozenset({Signal.HIT_RATE}))
        found = sum(rates) / len(rates)
        if found >= self.hit_rate:
            return choice
        return Excess(
            reason=Reason.BURST_DEFERRED,
            own_prefill=float(soundings.candidates.own_floors[choice.index]),
            later=self.retry,
            read={"kv_usage": usage, "hit_rate": found, "limit": self.usage},
        )
