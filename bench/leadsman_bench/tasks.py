"""What callers want to get done: calls that need each other, with the pauses between them.

A request of an open-loop trace is a task of one call. An agent's is dozens: some at once (fan-out),
each with what came before in its prompt, some given up before their end. Who plays a task sends a
call when those that it follows are over and the caller has thought; a call that was refused for
good, or that broke, ends its task. So the bursts and pauses that make pressure are the task's own,
and a fleet that answers late is asked later.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from leadsman.units import Seconds, Tokens

from leadsman_bench.scenario import Wishes
from leadsman_bench.traces import TraceRequest

NOTHING = Wishes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a task.

    row: its prompt and answer; `row.at` is when it comes at the soonest, in the trace's time.
    after: places in the task of the calls that must be over before; thinks: seconds from the last
    of their ends to this call. hangs_up: seconds after which its caller gives it up unfinished.
    """

    row: TraceRequest
    after: tuple[int, ...] = ()
    thinks: Seconds = 0.0
    hangs_up: Seconds | None = None
    wishes: Wishes = NOTHING
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Calls of one session, in an order in which each comes after those that it follows."""

    name: str
    calls: tuple[Call, ...]
    session: str | None = None
    tenant: str | None = None

    @property
    def at(self) -> Seconds:
        """When it begins."""
        return min(call.row.at for call in self.calls if not call.after)

    def told_before(self, call: Call) -> Tokens:
        """Count the leading tokens of a call's prompt that a call before it had in its own.

        An engine that serves nobody else has them cached.
        """
        pieces = call.row.pieces
        formers = (self.calls[place].row.pieces for place in call.after)
        alike = max((_alike(pieces, former) for former in formers), default=0)
        return alike * call.row.piece_tokens


def _alike(pieces: Sequence[int], former: Sequence[int]) -> int:
    """Count the leading pieces that both have."""
    pairs = enumerate(zip(pieces, former, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(pieces), len(former)))


def single(rows: Iterable[TraceRequest], *, tenant: str | None = None) -> Iterator[Task]:
    """Make each row a task of its own."""
    for number, row in enumerate(rows):
        yield Task(name=f"r{number}", calls=(Call(row=row),), tenant=tenant)
