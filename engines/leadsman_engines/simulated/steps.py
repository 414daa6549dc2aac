"""One step of an engine: as it is scheduled, as it is processed, and as the caller sees it."""

from dataclasses import dataclass, field
from typing import Literal

from leadsman_engines.simulated.blocks import CacheEvent
from leadsman_engines.simulated.sequences import Tracked, Twins


@dataclass(slots=True)
class Step:
    """One scheduled step: tokens by request, in order; `partial` ones yield no token yet.

    chunks, decode_contexts: its work, as `Hardware.step_seconds` takes it.
    membership: which requests ran when it was scheduled (`Scheduler.membership`).
    """

    tokens: dict[Tracked, int] = field(default_factory=dict)
    partial: set[Tracked] = field(default_factory=set)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    decode_contexts: list[int] = field(default_factory=list)
    preempted: list[Tracked] = field(default_factory=list)
    membership: int = 0
    ends_at: float = 0.0

    def copy(self, twins: Twins) -> "Step":
        """Copy it; its requests become their twins."""
        return Step(
            tokens={twins.of(request): count for request, count in self.tokens.items()},
            partial=set(twins.all(self.partial)),
            chunks=self.chunks[:],
            decode_contexts=self.decode_contexts[:],
            preempted=twins.all(self.preempted),
            membership=self.membership,
            ends_at=self.ends_at,
        )


@dataclass(slots=True)
class Processed:
    """What one processed step brought, by request id; `first` says what was reused."""

    tokens: list[str] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    finished: dict[str, Literal["stop", "length"]] = field(default_factory=dict)


@dataclass(slots=True)
class StepOutput:
    """What one step, or a stretch of equal decode steps, brought.

    ends: seconds at which the steps ended; at each, every id in `tokens` got one new token.
    first: id → prompt tokens reused from the cache, for ids whose first token this is.
    finished: id → "stop" or "length", for ids whose last token this is.
    events: cache events that leave with this step, at `ends[-1]`; in order.
    prefill_tokens: prompt tokens computed in it, in prefill_seconds (an SGLang tells so).
    rank: whose scheduler it was, of several.
    """

    ends: tuple[float, ...]
    tokens: tuple[str, ...]
    first: dict[str, int] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)
    events: list[CacheEvent] = field(default_factory=list)
    prefill_tokens: int = 0
    prefill_seconds: float = 0.0
    rank: int = 0

    @property
    def ended_at(self) -> float:
        """When its last step ended."""
        return self.ends[-1]
