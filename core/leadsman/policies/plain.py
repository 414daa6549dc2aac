"""The two ends: nobody is refused, and Leadsman's own predicted wait."""

from dataclasses import dataclass
from typing import ClassVar

from leadsman.admit import Excess, admit
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.policy import Fallback, Policy
from leadsman.route import Choice
from leadsman.signals import Signal


@dataclass(kw_only=True)
class NoAdmission(Policy):
    """Admits all: what every other policy is held against."""

    name: ClassVar[str] = "none"
    source: ClassVar[str] = "the baseline of every comparison"
    fallback: ClassVar[Fallback] = "admit"

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Keep routing's choice."""
        del soundings, budget
        return choice


@dataclass(kw_only=True)
class PredictedWait(Policy):
    """Refuses where no worker is likely to keep the request's bound: see `leadsman.admit`.

    Its parameters are the budget's own: the bounds, the confidence, `overload`.
    """

    name: ClassVar[str] = "predicted_wait"
    source: ClassVar[str] = "Leadsman's own: docs/architecture.md"
    needs: ClassVar[frozenset[Signal]] = frozenset({Signal.PREDICTED_WAIT})

    def admit(self, soundings: Soundings, choice: Choice, budget: Budget) -> Choice | Excess:
        """Take the first worker that is likely to keep the bound."""
        return admit(soundings, choice, budget)
