"""What stands between routing's choice and a decision: a policy, shares, sessions, their faults.

A `Gate` holds what one budget's rules remember. The order matters: the policy judges the call, the
shares judge who asks, and a session that is in goes through in spite of both, since it was judged
when it came. What a policy cannot decide (a signal is lost, it raises) falls to its declared
fallback, and is told to `on_fault` every time: whoever counts and logs is no part of the core.

A budget whose rules remember nothing has no gate at all, and costs nothing.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from leadsman.admit import Excess, admit
from leadsman.budget import Budget
from leadsman.candidates import Candidate, Soundings
from leadsman.contexts import Needs
from leadsman.policies import BUILT_IN
from leadsman.policies.plain import PredictedWait
from leadsman.policy import Fallback, Policy, PolicyError, SignalLostError
from leadsman.prediction import Admitted, Reason
from leadsman.records import Ended, Granted, Record
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.sessions import Sessions
from leadsman.shares import Shares, Standing
from leadsman.signals import REPORTED, Signal
from leadsman.units import BlockKey, Seconds, Tokens

RETRY: Final[Seconds] = 2.0
"""When to come back after a policy that fails closed has failed."""

KEPT: Final[Seconds] = 600.0
"""For which rules are remembered that nobody asks: a budget that was edited has other ones."""

MOST_BUDGETS = 1024
"""Budgets whose gate is found without comparing rules; each declaration makes new ones."""

Plan = Callable[[], Callable[[], None]]
Rules: TypeAlias = tuple[object, ...]
Cause = Literal["lost", "raised", "unknown"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A policy could not decide. cause: a signal was lost, it raised, or it could not be made."""

    policy: str
    cause: Cause
    fallback: Fallback
    detail: str


class Gate:
    """The rules of one budget and all that they remember."""

    def __init__(self, policy: Policy, budget: Budget, on_fault: Callable[[Fault], None]) -> None:
        self.policy = policy
        self.name = budget.name
        self.idle = max(KEPT, budget.session_idle)
        self.asked_at: Seconds = -math.inf
        self.shares = None
        if budget.shares is not None or budget.unit == "tenant":
            self.shares = Shares(budget.shares or {})
        self.sessions = None
        if "session" in (budget.unit, policy.unit):
            self.sessions = Sessions(budget.session_calls, budget.session_idle)
        self._on_fault = on_fault

    def admit(
        self, family: BlockKey | None, soundings: Soundings, choice: Choice, budget: Budget
    ) -> Choice | Excess:
        """Judge one request. family: names the conversation that its prompt goes on from."""
        self.asked_at = soundings.now
        verdict = self._judge(soundings, choice, budget)
        if self.shares is not None:
            verdict = self.shares.admit(verdict, soundings, budget)
        session = session_of(soundings.request, family)
        if self.sessions is None or session is None:
            return verdict
        candidates = soundings.candidates
        needs = Needs(
            tokens=soundings.request.prompt_tokens,
            cached=int(candidates.cached[choice.index]),
            room=lambda: _room(candidates.workers, soundings.now),
        )
        return self.sessions.admit(
            session,
            verdict,
            choice,
            now=soundings.now,
            workers=len(candidates.workers),
            needs=needs,
        )

    def _judge(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        try:
            verdict = self.policy.admit(soundings, choice, budget)
        except SignalLostError as error:
            return self._fall_back("lost", str(error), soundings, choice, budget)
        except Exception as error:  # noqa: BLE001  # a plugin's, whatever it is: told, never hidden
            return self._fall_back("raised", repr(error), soundings, choice, budget)
        return replace(verdict, by=self.policy.name) if isinstance(verdict, Excess) else verdict

    def _fall_back(
        self, cause: Cause, detail: str, soundings: Soundings, choice: Choice, budget: Budget
    ) -> Choice | Excess:
        name, fallback = self.policy.name, self.policy.fallback
        self._on_fault(Fault(name, cause, fallback, detail))
        match fallback:
            case "admit":
                return choice
            case "refuse":
                own = float(soundings.candidates.own_floors[choice.index])
                return Excess(reason=Reason.OVERLOADED, own_prefill=own, later=RETRY, by=name)
            case "predicted_wait":
                return admit(soundings, choice, budget)

    def sent(
        self, request: Request, family: BlockKey | None, admitted: Admitted, now: Seconds
    ) -> None:
        """Learn that a request was admitted, by these rules or in spite of them."""
        self.policy.sent(request, admitted.worker, now)
        if self.shares is not None:
            cached = admitted.prediction.price.cached_tokens if admitted.prediction else 0
            self.shares.sent(request.id, request.tenant, request.prompt_tokens - cached, now)
        session = session_of(request, family)
        if self.sessions is not None and session is not None:
            self.sessions.sent(session, request.id)

    def saw(self, record: Record, now: Seconds) -> None:
        """Take in a record of the fleet."""
        if self.policy.watches:
            self.policy.saw(record, now)
        if isinstance(record, Granted) and record.budget == self.name:
            self._heard(record, now)
        if isinstance(record, Ended):
            if self.shares is not None:
                self.shares.ended(record.request, record.completion_tokens, now)
            if self.sessions is not None:
                self.sessions.ended(record.request, now)

    def _heard(self, granted: Granted, now: Seconds) -> None:
        """Count what another picker let in by this budget."""
        if self.shares is not None:
            uncached = granted.prompt_tokens - (granted.cached_tokens or 0)
            self.shares.heard(granted.request, granted.tenant, uncached, now)
        if self.sessions is not None and granted.session is not None:
            self.sessions.heard(granted.session, granted.request, now)


def _room(workers: Iterable[Candidate], now: Seconds) -> Tokens | None:
    """Add up what the workers' caches can keep; None where one of them does not tell."""
    kept = [worker.read(Signal.KV_TOKENS, now) for worker in workers]
    known = [one for one in kept if one is not None]
    return int(sum(known)) if len(known) == len(kept) else None


def session_of(request: Request, family: BlockKey | None) -> str | None:
    """Name a request's session: as it was told, else by the conversation that it goes on from."""
    if request.session is not None:
        return request.session
    return None if family is None else f"lineage:{family:016x}"


class Gates:
    """The gates of all budgets, each made when its first request comes.

    kinds: the policies that there are, by name. A budget that is declared again with the same rules
    keeps its gate, and with it what was learned; one that nobody has asked for long is forgotten.
    """

    def __init__(
        self,
        kinds: Mapping[str, type[Policy]] = BUILT_IN,
        on_fault: Callable[[Fault], None] = lambda _fault: None,
    ) -> None:
        self._kinds = kinds
        self._on_fault = on_fault
        self._gates: dict[Rules, Gate | None] = {}
        self._of: dict[int, tuple[Budget, Gate | None]] = {}
        self._swept_at: Seconds = 0.0

    def __len__(self) -> int:
        return len(self._gates)

    def policy(self, budget: Budget) -> Policy:
        """Make a budget's policy. Raises PolicyError where it cannot be made."""
        kind = self._kinds.get(budget.policy)
        if kind is None:
            known = ", ".join(sorted(self._kinds))
            raise PolicyError(f"no policy {budget.policy!r}; there are {known}")
        try:
            return kind.made(budget.parameters)
        except ValueError as error:
            raise PolicyError(f"policy {budget.policy}: {error}") from error

    def of(self, budget: Budget) -> Gate | None:
        """Give a budget's gate; None where its rules remember nothing."""
        known = self._of.get(id(budget))
        if known is not None:
            return known[1]
        rules = _rules(budget)
        if rules not in self._gates:
            makes = budget.remembers
            made = Gate(self._made(budget), budget, self._on_fault) if makes else None
            self._gates[rules] = made
        if len(self._of) >= MOST_BUDGETS:
            self._of.clear()
        self._of[id(budget)] = budget, self._gates[rules]
        return self._gates[rules]

    def _made(self, budget: Budget) -> Policy:
        try:
            return self.policy(budget)
        except PolicyError as error:
            self._on_fault(Fault(budget.policy, "unknown", "predicted_wait", str(error)))
            return PredictedWait()

    def saw(self, record: Record, now: Seconds) -> None:
        """Take in a record of the fleet."""
        for gate in self._gates.values():
            if gate is not None:
                gate.saw(record, now)
        if now - self._swept_at > KEPT / 10:
            self._sweep(now)

    def _sweep(self, now: Seconds) -> None:
        """Forget the gates that nobody has asked for long; one not asked yet is new."""
        self._swept_at = now
        quiet = [
            rules
            for rules, gate in self._gates.items()
            if gate is not None and -math.inf < gate.asked_at < now - gate.idle
        ]
        for rules in quiet:
            del self._gates[rules]
        if quiet:
            self._of.clear()

    def standings(self, now: Seconds) -> list[tuple[str, str, Standing]]:
        """Say of each budget how the tenants stand that it gives a weight; any thread may ask."""
        return [
            (gate.name, tenant, standing)
            for gate in list(self._gates.values())
            if gate is not None and gate.shares is not None
            for tenant, standing in gate.shares.standings(now)
        ]

    def plans(self, now: Seconds) -> Sequence[Plan]:
        """List the work that is due and too long for a decision: see `Policy.plan`."""
        gates = [gate for gate in self._gates.values() if gate is not None]
        due = (gate.policy.plan(now) for gate in gates)
        return [plan for plan in due if plan is not None]


def lacking(policy: Policy, workers: Iterable[Candidate], now: Seconds) -> frozenset[Signal]:
    """Say which declared signals no worker tells now, of those that engines may keep to themselves.

    A hit rate is told by answers, so it can only be missed once there are some.
    """
    asked = (policy.needs & REPORTED) - {Signal.HIT_RATE}
    had = {one for one in asked for worker in workers if worker.read(one, now) is not None}
    return frozenset(asked - had)


def _rules(budget: Budget) -> Rules:
    return (
        budget.name,
        budget.policy,
        tuple(sorted(budget.parameters.items())),
        budget.unit,
        None if budget.shares is None else tuple(sorted(budget.shares.items())),
        budget.session_calls,
        budget.session_idle,
    )
