"""One step of an engine, between its scheduling and the processing of its output."""

from dataclasses import dataclass, field
from typing import Literal

from leadsman_engines.simulated.sequences import Tracked


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


@dataclass(slots=True)
class Processed:
    """What one processed step brought, by request id; `first` says what was reused."""

    tokens: list[str] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    finished: dict[str, Literal["stop", "length"]] = field(default_factory=dict)
