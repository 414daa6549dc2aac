"""Schedulers that step together: one alone, or the ranks of a server with attention in parallel.

Model. The loop of an SGLang scheduler composes a pass, launches it, and processes the results of
the pass before (with overlap) or of the same (without). Ranks in lockstep do so all at once: a step
lasts as long as that of the slowest of them, and who has nothing to run runs an empty batch beside
the others. They are idle only together. Times are the caller's.

Source: SGLang 0.5.23 srt/managers/scheduler.py, event_loop_normal, event_loop_overlap;
scheduler_components/dp_attn.py, maybe_prepare_mlp_sync_batch.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leadsman_engines.simulated.sglang.batches import Launched
from leadsman_engines.simulated.sglang.scheduler import SglangScheduler
from leadsman_engines.simulated.steps import StepOutput

Seconds = Callable[[Sequence[Launched]], float]
"""Draws how long a step lasts, from what each rank that has something runs."""


@dataclass(slots=True)
class Turn:
    """One step of all ranks, when it runs, and which of them run something."""

    launched: list[Launched | None]
    begins_at: float
    ends_at: float


class Lockstep:
    """Some schedulers with one clock. first: the number of the first of them in their server."""

    def __init__(self, ranks: list[SglangScheduler], first: int, seconds: Seconds) -> None:
        self.ranks = ranks
        self._first = first
        self._seconds = seconds
        self._depth = 1 if ranks[0].settings.disable_overlap_schedule else 2
        self._turns: deque[Turn] = deque()

    @property
    def ends_at(self) -> float | None:
        """When the step that runs ends; None where none does."""
        return self._turns[0].ends_at if self._turns else None

    @property
    def has_events(self) -> bool:
        """Whether an idle scheduler has something to tell."""
        return not self._turns and any(rank.cache.tree.events for rank in self.ranks)

    def fill(self, now: float) -> None:
        """Compose and launch passes until one waits for the one that runs, or all are idle."""
        while len(self._turns) < self._depth:
            launched = [rank.schedule() for rank in self.ranks]
            busy = [one for one in launched if one is not None]
            if not busy:
                break
            begin = self._turns[-1].ends_at if self._turns else now
            self._turns.append(Turn(launched, begin, begin + self._seconds(busy)))
        if not self._turns:
            for rank in self.ranks:
                assert rank.is_idle, "an empty engine cannot place its first request"
                rank.idle()

    def finish(self) -> list[StepOutput]:
        """Process the step that ends."""
        turn = self._turns.popleft()
        return [
            self._output(number, launched, turn.ends_at, turn.ends_at - turn.begins_at)
            for number, launched in enumerate(turn.launched)
            if launched is not None or self.ranks[number].cache.tree.events
        ]

    def _output(
        self, number: int, launched: Launched | None, at: float, lasted: float = 0.0
    ) -> StepOutput:
        rank = self.ranks[number]
        output = StepOutput(ends=(at,), tokens=(), rank=self._first + number)
        if launched is not None:
            result = rank.process()
            output.tokens, output.first = tuple(result.tokens), result.first
            output.finished = dict(result.finished)
            output.prefill_tokens = sum(tokens for tokens, _ in launched.chunks)
            output.prefill_seconds = lasted if launched.chunks else 0.0
        output.events, rank.cache.tree.events = rank.cache.tree.events, []
        return output

    def tell(self, at: float) -> list[StepOutput]:
        """Give what idle schedulers have to tell."""
        return [
            self._output(number, None, at)
            for number, rank in enumerate(self.ranks)
            if rank.cache.tree.events
        ]
