"""Weighted shares of tenants, in tokens of work, that leave nothing idle.

Each tenant's work of the last minute or so is counted, and held against its weight among those who
ask at all: `over` is how many times its share a tenant has had. While nobody waits nobody is
refused, whatever he had. But who is over may fill only a part of the time that those within their
shares can wait: after it, half of it at least is left, a third is filled by who has had twice his
share, an eleventh by who has had ten times. What counts is the queue that its request would leave
behind, its own prefill with it, since that is what the next one within its share would find. So
such a tenant finds the room that the others were kept from filling, and the queue is what shows
that there is a contest at all.

How long those within their shares can wait is the tightest of their last minute: of a bound on the
wait, or of what a TTFT objective leaves beside the request's own prefill. Whose requests may wait
for minutes must not fill a queue in which others may wait for seconds.

Work is a prompt's uncached tokens, when it is sent, and twice the answer's, when it is over; tokens
of the cache are free, since they cost the pool next to nothing.
Source: VTC, OSDI 2024, arXiv 2401.00588 (tokens of service, 1 and 2); the rule is Leadsman's own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from leadsman.admit import Excess, bounds_of, is_idle
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.prediction import Reason
from leadsman.route import Choice
from leadsman.units import RequestId, Seconds, Tokens

HALF_LIFE: Seconds = 30.0
"""In which work counts half: longer than a burst, shorter than anybody's patience. Chosen."""

ACTIVE: Seconds = 60.0
"""For which a tenant who asked counts among those who share."""

PATIENCE: Seconds = 30.0
"""The bound where nobody has any."""

OUTPUT_WEIGHT = 2
NOBODY = ""
"""All requests without a tenant share as one."""


@dataclass(slots=True)
class Account:
    """What one tenant has had lately, and asks for. bound: the tightest of its last minute."""

    work: float = 0.0
    at: Seconds = 0.0
    asked_at: Seconds = 0.0
    bound: Seconds = math.inf
    bound_at: Seconds = 0.0

    def worth(self, now: Seconds) -> float:
        """Work that counts now."""
        return self.work * math.exp2(-max(0.0, now - self.at) / HALF_LIFE)

    def charge(self, tokens: Tokens, now: Seconds) -> None:
        """Add work."""
        self.work, self.at = self.worth(now) + tokens, max(self.at, now)

    def ask(self, bound: Seconds, now: Seconds) -> None:
        """Note that the tenant asks, and how long it would wait."""
        if bound <= self.bound or now - self.bound_at > ACTIVE:
            self.bound, self.bound_at = bound, now
        self.asked_at = now


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A tenant's share and what it has had of all work, both in [0, 1]; tokens of work lately."""

    share: float
    used: float
    tokens: float

    @property
    def over(self) -> float:
        """How many times its share it has had."""
        return self.used / self.share


class Shares:
    """The accounts of one budget's tenants. weights: by tenant; 1 where none is given."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._accounts: dict[str, Account] = {}
        self._open: dict[RequestId, str] = {}

    def admit(
        self, verdict: Choice | Excess, soundings: Soundings, budget: Budget
    ) -> Choice | Excess:
        """Refuse who is over its share in a contest; keep the policy's verdict of all others."""
        request, now = soundings.request, soundings.now
        tenant = request.tenant or NOBODY
        self._forget(now)
        account = self._accounts.setdefault(tenant, Account())
        account.ask(_patience(verdict, soundings, budget), now)
        standing = self.standing(tenant, now)
        if standing.over <= 1:
            return verdict
        if isinstance(verdict, Excess):
            if len(self._accounts) == 1 or verdict.reason is Reason.OVER_SHARE:
                return verdict
            return replace(verdict, reason=Reason.OVER_SHARE, by="shares", read=_told(standing))
        prediction = soundings.sound(verdict.index)
        if prediction.curve == "unmeasured" or is_idle(prediction.price):
            return verdict
        own = prediction.price.own_prefill
        allowed = max(0.0, self._tightest(now) / (1.0 + standing.over) - own)
        if prediction.queue_wait_bound <= allowed:
            return verdict
        return Excess(
            reason=Reason.OVER_SHARE,
            own_prefill=own,
            bound=allowed,
            predicted=prediction.queue_wait_bound,
            by="shares",
            read=_told(standing),
        )

    def standing(self, tenant: str, now: Seconds) -> Standing:
        """Say what share a tenant has among those who ask, and what it has had; any thread may ask.

        One that has asked for nothing lately has its share of those who did, and has had nothing.
        """
        worth = {name: one.worth(now) for name, one in dict(self._accounts).items()}
        total = sum(worth.values())
        weights = sum(self._weights.get(name, 1.0) for name in worth)
        tokens = worth.get(tenant, 0.0)
        return Standing(
            share=self._weights.get(tenant, 1.0) / max(weights, self._weights.get(tenant, 1.0)),
            used=tokens / total if total > 0 else 0.0,
            tokens=tokens,
        )

    def _tightest(self, now: Seconds) -> Seconds:
        """Say how long those who are within their shares can wait.

        Of those who ask through other pickers that is not known: then as long as anybody can.
        """
        worth = {name: one.worth(now) for name, one in self._accounts.items()}
        total = sum(worth.values())
        weights = {name: self._weights.get(name, 1.0) for name in worth}
        whole = sum(weights.values())
        within = [
            one.bound
            for name, one in self._accounts.items()
            if worth[name] * whole <= weights[name] * total
        ]
        tightest = min(within, default=math.inf)
        if math.isinf(tightest):
            tightest = min(one.bound for one in self._accounts.values())
        return PATIENCE if math.isinf(tightest) else tightest

    def standings(self, now: Seconds) -> list[tuple[str, Standing]]:
        """Say how each tenant stands that has a weight of its own; any thread may ask."""
        return [(tenant, self.standing(tenant, now)) for tenant in self._weights]

    def sent(self, request: RequestId, tenant: str | None, uncached: Tokens, now: Seconds) -> None:
        """Charge an admitted request's prompt."""
        name = tenant or NOBODY
        self._open[request] = name
        self._accounts.setdefault(name, Account(asked_at=now)).charge(uncached, now)

    def heard(self, request: RequestId, tenant: str | None, uncached: Tokens, now: Seconds) -> None:
        """Charge what another picker admitted; what was charged here already is not charged again.

        Who asks there asks for a share here.
        """
        if request not in self._open:
            self.sent(request, tenant, uncached, now)
            account = self._accounts[tenant or NOBODY]
            account.asked_at = max(account.asked_at, now)

    def ended(self, request: RequestId, answer: Tokens | None, now: Seconds) -> None:
        """Charge its answer."""
        account = self._accounts.get(self._open.pop(request, "\0"))
        if account is not None and answer:
            account.charge(OUTPUT_WEIGHT * answer, now)

    def _forget(self, now: Seconds) -> None:
        quiet = [n for n, one in self._accounts.items() if now - one.asked_at > ACTIVE]
        for name in quiet:
            del self._accounts[name]


def _patience(verdict: Choice | Excess, soundings: Soundings, budget: Budget) -> Seconds:
    """Say how long a request can wait for an engine to begin; none that nobody could serve."""
    bounds = bounds_of(soundings.request, budget)
    if isinstance(verdict, Excess):
        own = verdict.own_prefill
    else:
        own = soundings.sound(verdict.index).price.own_prefill
    wait = min(bounds.wait, bounds.ttft - own)
    return wait if wait > 0 else math.inf


def _told(standing: Standing) -> dict[str, float]:
    return {
        "tenant_share": standing.share,
        "tenant_used": standing.used,
        "tenant_tokens": standing.tokens,
    }
