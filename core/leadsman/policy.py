"""What an admission policy is: unit × signal × rule × action, as a small typed class.

The unit is what is let in: a request, a session, a tenant. The signals are what the rule reads, and
are declared, so that one that nobody has stops a picker at its start instead of reading as zero.
The rule is `admit`: routing's choice kept, another worker taken, or an `Excess`. The action is the
excess's reason: status, Retry-After and words follow from it and the budget, as for all policies.

A policy's parameters are its fields. Each says where its value comes from, since a threshold that
was borrowed from a paper's hardware is another claim than one that was tuned here.

What a policy does when a signal is lost, or when it raises, it declares as `fallback`. It is taken,
counted and told (`gate`): nothing is refused by accident, and nothing admitted silently.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args, get_type_hints

from leadsman.admit import Excess
from leadsman.budget import Budget
from leadsman.candidates import Candidate, Soundings
from leadsman.records import Record
from leadsman.request import Request
from leadsman.route import Choice
from leadsman.signals import Signal
from leadsman.units import Seconds, WorkerId

Unit = Literal["request", "session", "tenant"]
Fallback = Literal["admit", "refuse", "predicted_wait"]
"""What is decided where a policy cannot: admit, refuse as overloaded, or as Leadsman would."""


class PolicyError(ValueError):
    """A policy that cannot be made: its name, a parameter, or a signal that nobody has."""


class SignalLostError(Exception):
    """A declared signal was not there when a decision needed it."""

    def __init__(self, signals: frozenset[Signal]) -> None:
        super().__init__(f"no worker tells {', '.join(sorted(signals))}")
        self.signals = signals


@dataclass(kw_only=True)
class Policy(ABC):
    """One rule, and what it remembers. One instance decides for one budget of one picker.

    source: where the rule was published. unit: of a session's, the gate bounds how many are in,
    whatever the budget's unit. watches: whether `saw` wants the fleet's records.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    unit: ClassVar[Unit] = "request"
    needs: ClassVar[frozenset[Signal]] = frozenset()
    fallback: ClassVar[Fallback] = "predicted_wait"
    watches: ClassVar[bool] = False

    @classmethod
    def made(cls, stated: Mapping[str, float]) -> "Policy":
        """Make one with these parameters. Raises PolicyError, which names the wrong one."""
        return cls(**_checked(cls, stated))

    @abstractmethod
    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Keep routing's choice, take another worker, or say by what the request is too much.

        Raises SignalLostError where what it needs is not there. Must not change the soundings'
        candidates; may remember that it was asked.
        """

    def sent(self, request: Request, worker: WorkerId, now: Seconds) -> None:
        """Learn that a request was admitted to a worker, by this policy or in spite of it."""
        del request, worker, now

    def saw(self, record: Record, now: Seconds) -> None:
        """Take in a record of the fleet; called only where the policy `watches`."""
        del record, now

    def plan(self, now: Seconds) -> "Callable[[], Callable[[], None]] | None":
        """Give work that is due and too long for a decision; None where there is none.

        What is given may run in another thread and must touch nothing of the policy; what that
        gives in turn installs its result, and is called where decisions are made.
        """
        del now
        return None


def read(worker: Candidate, signal: Signal, now: Seconds) -> float:
    """Read a signal of one worker. Raises SignalLostError."""
    value = worker.read(signal, now)
    if value is None:
        raise SignalLostError(frozenset({signal}))
    return value


def by_floor(soundings: Soundings, choice: Choice) -> Iterator[int]:
    """Walk routing's choice, then all others from the least floor of their TTFT."""
    yield choice.index
    yield from (i for i in soundings.by_floor().tolist() if i != choice.index)


def first_fitting(
    soundings: Soundings, choice: Choice, missed: Callable[[Candidate, int], Excess | None]
) -> Choice | Excess:
    """Keep routing's choice if nothing is `missed` there, else take the first worker where it fits.

    Workers whose signal is lost are left out; where only they are left, it is lost. The excess is
    the least of all.
    """
    least: Excess | None = None
    lost: frozenset[Signal] = frozenset()
    for index in by_floor(soundings, choice):
        try:
            excess = missed(soundings.candidates.workers[index], index)
        except SignalLostError as error:
            lost |= error.signals
            continue
        if excess is None:
            return choice if index == choice.index else Choice(index=index, because="cheapest")
        if least is None or excess.rank < least.rank:
            least = excess
    if lost or least is None:
        raise SignalLostError(lost)
    return least


def parameter(default: Any, *, source: str) -> Any:  # a field is of its default's type
    """Declare a parameter with the provenance of its default."""
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter as a policy has it. provenance: its default's source, or that it was set here."""

    name: str
    value: float | None
    provenance: str


def parameters(policy: Policy) -> tuple[Parameter, ...]:
    """List a policy's parameters with where their values come from."""
    return tuple(
        Parameter(
            name=one.name,
            value=getattr(policy, one.name),
            provenance=one.metadata["source"]
            if getattr(policy, one.name) == one.default
            else "tuned: set by whoever runs it",
        )
        for one in fields(policy)
        if "source" in one.metadata
    )


def _checked(kind: type[Policy], stated: Mapping[str, float]) -> Mapping[str, float]:
    hints = get_type_hints(kind)
    known = [one.name for one in fields(kind) if "source" in one.metadata]
    given: dict[str, float] = {}
    for name, value in stated.items():
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            raise PolicyError(f"no parameter {name!r}; it has {has}")
        is_whole = int in (hints[name], *get_args(hints[name]))
        if is_whole and not float(value).is_integer():
            raise PolicyError(f"{name} must be a whole number, not {value}")
        given[name] = int(value) if is_whole else value
    return given


def positive(**stated: float | None) -> None:
    """Raise ValueError for a parameter that is not above 0; None is none."""
    for name, value in stated.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be above 0, not {value}")
