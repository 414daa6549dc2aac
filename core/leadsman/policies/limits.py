"""Rules that compare one number with one limit: a key's rate, or what one worker holds.

They are fast, need nothing to be learned, and see nothing of what a request costs: a lookup and a
long plan take one slot each. A worker below the limit takes the request wherever routing's choice
is above it, so that a rule is not blamed for a choice that it did not make.
"""

from abc import abstractmethod
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import ClassVar

from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Candidate, Soundings
from leadsman.policy import Policy, Unit, first_fitting, parameter, positive, read
from leadsman.prediction import Reason
from leadsman.route import Choice
from leadsman.signals import Signal
from leadsman.units import Seconds

MOST_KEYS = 100_000
"""Tenants whose bucket is kept; the one asked longest ago is full again, and forgotten first."""

RETRY: Seconds = 2.0
"""When a refused caller comes back: what AdmitPerf's example gateway says by default. A limit on a
count projects nothing."""


@dataclass(kw_only=True)
class KeyRateLimit(Policy):
    """So many requests a minute for each tenant, by a token bucket; those without share one."""

    name: ClassVar[str] = "key_rate_limit"
    source: ClassVar[str] = "API gateways: a token bucket a key, fixed while load changes"
    unit: ClassVar[Unit] = "tenant"

    per_minute: float = parameter(60.0, source="default: one a second, chosen")
    burst: float = parameter(10.0, source="default: ten seconds' worth, chosen")
    _buckets: OrderedDict[str | None, tuple[float, Seconds]] = field(
        default_factory=OrderedDict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        positive(per_minute=self.per_minute)
        if self.burst < 1:
            raise ValueError(f"burst must be at least 1, not {self.burst}")

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Take a token of the tenant's bucket, or say when there will be one."""
        del budget
        tenant, now, per_s = soundings.request.tenant, soundings.now, self.per_minute / 60
        level, at = self._buckets.pop(tenant, (self.burst, now))
        level = min(self.burst, level + max(0.0, now - at) * per_s)
        allowed = level >= 1
        self._buckets[tenant] = (level - 1 if allowed else level, now)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        if allowed:
            return choice
        return Excess(
            reason=Reason.OVER_SHARE,
            own_prefill=float(soundings.candidates.own_floors[choice.index]),
            later=(1 - level) / per_s,
            read={"per_minute": self.per_minute, "burst": self.burst},
        )


@dataclass(kw_only=True)
class _Limit(Policy):
    """Refuses where every worker's signal has reached a limit."""

    signal: ClassVar[Signal]
    retry: Seconds = parameter(RETRY, source="borrowed: AdmitPerf 0.0.2, infra/gateway")

    @abstractmethod
    def _limit(self, worker: Candidate, now: Seconds) -> float:
        """Say from which value on a worker takes no more."""

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Take the first worker below its limit."""
        del budget

        def missed(worker: Candidate, index: int) -> Excess | None:
            value = read(worker, self.signal, soundings.now)
            limit = self._limit(worker, soundings.now)
            if value < limit:
                return None
            return Excess(
                reason=Reason.OVERLOADED,
                own_prefill=float(soundings.candidates.own_floors[index]),
                later=self.retry,
                read={self.signal.value: value, "limit": limit},
            )

        return first_fitting(soundings, choice, missed)


@dataclass(kw_only=True)
class ConcurrencyCap(_Limit):
    """So many requests in flight on each worker."""

    name: ClassVar[str] = "concurrency_cap"
    source: ClassVar[str] = "proxies and gateways: a cap on what is in flight per replica"
    signal: ClassVar[Signal] = Signal.IN_FLIGHT
    needs: ClassVar[frozenset[Signal]] = frozenset({Signal.IN_FLIGHT, Signal.SLOTS})

    limit: int | None = parameter(None, source="default: as many as the worker has slots")

    def __post_init__(self) -> None:
        positive(limit=self.limit)

    def _limit(self, worker: Candidate, now: Seconds) -> float:
        return read(worker, Signal.SLOTS, now) if self.limit is None else self.limit


@dataclass(kw_only=True)
class KvThreshold(_Limit):
    """A limit on the share of a worker's KV blocks that are in use."""

    name: ClassVar[str] = "kv_threshold"
    source: ClassVar[str] = "AdmitPerf 0.0.2, policies/kv_threshold.py; the single threshold"
    signal: ClassVar[Signal] = Signal.KV_USAGE
    needs: ClassVar[frozenset[Signal]] = frozenset({Signal.KV_USAGE})

    limit: float = parameter(
        0.8, source="borrowed: utilization-detector of the Gateway API's endpoint picker"
    )

    def __post_init__(self) -> None:
        if not 0 < self.limit <= 1:
            raise ValueError(f"limit must be a share above 0 and at most 1, not {self.limit}")

    def _limit(self, worker: Candidate, now: Seconds) -> float:
        del worker, now
        return self.limit


@dataclass(kw_only=True)
class QueueCap(_Limit):
    """At most so many requests waiting at each worker."""

    name: ClassVar[str] = "queue_cap"
    source: ClassVar[str] = "AdmitPerf 0.0.2, policies/queue_depth.py"
    signal: ClassVar[Signal] = Signal.WAITING
    needs: ClassVar[frozenset[Signal]] = frozenset({Signal.WAITING})

    limit: int = parameter(4, source="borrowed: the reproduction of Chronos on an A10G")

    def __post_init__(self) -> None:
        positive(limit=self.limit)

    def _limit(self, worker: Candidate, now: Seconds) -> float:
        del worker, now
        return self.limit
