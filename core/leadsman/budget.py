"""What a set of requests may take, and what a refusal of one of them looks like: declared, frozen.

A bound on the queue wait covers waiting behind other work only; a TTFT objective bounds the whole.
Both are kept at `confidence`: a request is admitted where the chance to keep them is at least that.
Which rule decides, and whether it lets in requests, sessions or tenants, is the budget's too.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from leadsman.prediction import Reason
from leadsman.units import Seconds

Mode = Literal["enforce", "shadow", "off"]
Unit = Literal["request", "session", "tenant"]

LONGEST_RETRY_AFTER: Seconds = 120.0
"""Beyond this both SDK families stop honouring Retry-After, so callers are told to fall back.
Source: openai 3.57 and anthropic 2.14, _base_client.py."""

STATUSES: Mapping[Reason, int] = MappingProxyType(
    {
        Reason.WOULD_WAIT_TOO_LONG: 429,
        Reason.WOULD_MISS_TTFT: 429,
        Reason.OVER_SHARE: 429,
        Reason.OVERLOADED: 429,
        Reason.BURST_DEFERRED: 503,
        Reason.NO_ENDPOINT: 503,
    }
)
"""The HTTP status of each reason where a budget does not say otherwise."""


class BudgetError(ValueError):
    """A budget's field that cannot be meant: `field` names it, `problem` says what is wrong."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The wishes of one set of requests. Raises BudgetError, which names the field.

    max_queue_wait, ttft: bounds of requests that bring none of their own; None: unbounded.
    overload: predicted queue wait above which even unbounded requests are refused; None: never.
    should_retry: False tells refused callers to fall back at once.
    retry_jitter: share of the projected wait over which returns are spread, at least one second.
    session_move_cost: how much cheaper another worker must be before a session leaves its home.
        Chosen, not measured: the price has this turn's prefill in it already, so what is left is
        the cache that a second copy of the conversation pushes out.
    probes: share of refusals that are admitted at random, to see what became of them.
    mode: shadow decides and records, and refuses nobody; off does not even ask: the kill switch.
    policy, parameters: the admission rule, by its name, and what is stated of its parameters.
    unit: what is let in. session: a session that is in gets its calls through, up to
        `session_calls` and until it idles for `session_idle`; tenant: shares are kept.
    shares: weights of tenants, 1 for all others; None: none are kept, unless the unit is tenant.
    hold: how long a request may be held until a worker is nearly free, rather than stand in an
        engine's queue; None: not at all. Held are requests of budgets that enforce.
    """

    name: str = "default"
    max_queue_wait: Seconds | None = None
    ttft: Seconds | None = None
    confidence: float = 0.9
    overload: Seconds | None = None
    statuses: Mapping[Reason, int] = field(default_factory=lambda: STATUSES)
    should_retry: bool = True
    retry_jitter: float = 0.1
    mode: Mode = "enforce"
    session_move_cost: Seconds = 0.25
    probes: float = 0.0
    policy: str = "predicted_wait"
    parameters: Mapping[str, float] = field(default_factory=dict)
    unit: Unit = "request"
    shares: Mapping[str, float] | None = None
    session_calls: int = 100
    session_idle: Seconds = 60.0
    hold: Seconds | None = None

    def __post_init__(self) -> None:
        for name in ("max_queue_wait", "ttft", "overload", "session_idle", "hold"):
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
                raise BudgetError(name, f"{seconds} is not a positive number of seconds")
        if not 0.5 <= self.confidence < 1:
            raise BudgetError("confidence", f"{self.confidence} is not in [0.5, 1)")
        for name in ("retry_jitter", "probes"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise BudgetError(name, f"{share} is not a share between 0 and 1")
        if not (math.isfinite(self.session_move_cost) and self.session_move_cost >= 0):
            raise BudgetError("session_move_cost", f"{self.session_move_cost} s is negative")
        if self.mode not in get_args(Mode):
            raise BudgetError("mode", f"{self.mode!r} is none of {', '.join(get_args(Mode))}")
        self._check_unit()
        self._check_statuses()

    @property
    def is_bounded(self) -> bool:
        """Whether it bounds requests that bring no bound of their own."""
        return not (self.max_queue_wait is None and self.ttft is None and self.overload is None)

    @property
    def remembers(self) -> bool:
        """Whether its rules remember whom they let in: other pickers are told."""
        return self.unit != "request" or self.shares is not None or self.policy != "predicted_wait"

    def status(self, reason: Reason) -> int:
        """HTTP status of a refusal for this reason."""
        return self.statuses.get(reason, STATUSES[reason])

    def _check_unit(self) -> None:
        if self.unit not in get_args(Unit):
            raise BudgetError("unit", f"{self.unit!r} is none of {', '.join(get_args(Unit))}")
        if self.session_calls < 1:
            raise BudgetError("session_calls", f"{self.session_calls} is less than one call")
        for tenant, weight in (self.shares or {}).items():
            if not (math.isfinite(weight) and weight > 0):
                raise BudgetError("shares", f"{tenant}: {weight} is no weight above 0")

    def _check_statuses(self) -> None:
        for reason, status in self.statuses.items():
            if not 400 <= status <= 599:
                raise BudgetError("statuses", f"{reason}: {status} is no HTTP error status")
        if self.status(Reason.NO_ENDPOINT) != 503:
            raise BudgetError("statuses", "no_endpoint: the endpoint picker protocol demands 503")
