"""One simulated engine over virtual time: the caller owns the clock and moves it.

    engine = SimulatedEngine(settings, hardware, Random(7))
    engine.submit(SimulatedRequest(id="a", prompt_tokens=900, output_tokens=20), now=0.0)
    for output in engine.advance(until=10.0): ...   # what happened up to then, in order
    engine.next_time()                              # when something may happen next; None: never

Model. The engine's loop takes in what has arrived, schedules, runs the step, processes its output.
With asynchronous scheduling two steps are in the queue: the next one is scheduled the moment the
one before the running one has been processed. Either way an arrival during a step is seen only at
that step's end. Aborts are taken in before a step's output, as in the engine. Cache events leave
with the next processed step: with asynchronous scheduling that may be a step before their blocks
are computed; on an idle engine nothing leaves.

A stretch of steps in which every running request decodes, nothing arrives, no block is taken, named
or released, is one `StepOutput` with many `ends`; every other step is its own.

Source: vLLM 0.32 v1/engine/core.py, EngineCore.step, step_with_batch_queue; api delay as measured.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from random import Random

from leadsman_engines.simulated.hardware import StepTimes
from leadsman_engines.simulated.scheduler import Scheduler
from leadsman_engines.simulated.sequences import SimulatedRequest, Tracked, Twins
from leadsman_engines.simulated.settings import SimulatedSettings
from leadsman_engines.simulated.steps import Processed, Step, StepOutput
from leadsman_engines.simulated.stretch import (
    equal_steps,
    in_steady_decode,
    move_ahead,
    time_stretch,
)

__all__ = ["SimulatedEngine", "StepOutput"]


class SimulatedEngine:
    """One engine. Times given to it must not go back; it draws chance from `rng` alone.

    slowdown: factor on every step scheduled from now on (a throttled or shared accelerator).
    shortest_stretch: fewer equal steps than this are not worth looking for; at least 3.
    """

    __slots__ = (
        "_aborts",
        "_arrivals",
        "_depth",
        "_now",
        "_order",
        "_requests",
        "_steps",
        "hardware",
        "rng",
        "scheduler",
        "settings",
        "shortest_stretch",
        "slowdown",
    )

    def __init__(self, settings: SimulatedSettings, hardware: StepTimes, rng: Random) -> None:
        self.settings = settings
        self.hardware = hardware
        self.rng = rng
        self.slowdown = 1.0
        self.shortest_stretch = 3
        self._depth = 2 if settings.async_scheduling else 1
        self._now = 0.0
        self._order = 0
        self._forget_everything()

    def _forget_everything(self) -> None:
        self.scheduler = Scheduler(self.settings)
        self._requests: dict[str, Tracked] = {}
        self._arrivals: list[tuple[float, int, Tracked]] = []
        self._aborts: list[Tracked] = []
        self._steps: deque[Step] = deque()

    def copy(self, rng: Random) -> "SimulatedEngine":
        """Copy all that has been decided; what has not, the copy draws from `rng`."""
        twin = SimulatedEngine(self.settings, self.hardware, rng)
        twin.slowdown, twin._now, twin._order = self.slowdown, self._now, self._order
        twins = Twins()
        twin._requests = {name: twins.of(one) for name, one in self._requests.items()}
        twin._arrivals = [(at, order, twins.of(one)) for at, order, one in self._arrivals]
        twin._aborts = twins.all(self._aborts)
        twin._steps = deque([step.copy(twins) for step in self._steps])
        twin.scheduler = self.scheduler.copy(twins, twin._steps)
        return twin

    @property
    def running(self) -> int:
        """Requests that hold a sequence slot."""
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests that the scheduler has seen and not admitted."""
        return len(self.scheduler.waiting)

    @property
    def queued(self) -> int:
        """Requests that have arrived and are not admitted, seen by the scheduler or not yet."""
        return len(self.scheduler.waiting) + len(self._arrivals)

    @property
    def unfinished(self) -> Iterable[Tracked]:
        """Requests that have arrived and not ended, in that order."""
        return self._requests.values()

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that requests hold; cached blocks that none holds count as free."""
        return 1 - self.scheduler.pool.free / self.settings.num_blocks

    def submit(self, request: SimulatedRequest, now: float) -> None:
        """Let a request arrive at the HTTP server at `now`.

        Raises ValueError for a prompt that leaves no room for a token, for no output, and for an id
        that is still in use.
        """
        self._check_clock(now)
        limit = self.settings.max_model_len
        request.validate(longest=limit, in_use=self._requests)
        tracked = Tracked(request, arrival=now, max_model_len=limit)
        delay = self.settings.api_delay + self.settings.api_delay_per_token * request.prompt_tokens
        self._requests[request.id] = tracked
        self._order += 1
        heappush(self._arrivals, (now + delay, self._order, tracked))

    def abort(self, request_id: str, now: float) -> bool:
        """Take a request back: at the end of the running step, at once on an idle engine.

        Returns False where the id is unknown, or has finished. No output names it afterwards.
        """
        self._check_clock(now)
        tracked = self._requests.pop(request_id, None)
        if tracked is None:
            return False
        remaining = [arrival for arrival in self._arrivals if arrival[2] is not tracked]
        if len(remaining) < len(self._arrivals):
            self._arrivals = sorted(remaining)
        elif self._steps:
            self._aborts.append(tracked)
        else:
            self.scheduler.abort(tracked)
        return True

    def restart(self) -> list[str]:
        """Lose every request and the cache, as a killed process does; return the ids lost."""
        lost = list(self._requests)
        self._forget_everything()
        return lost

    def reset_cache(self) -> bool:
        """Forget the prefix cache; refused while any block is held. The event waits for a step."""
        return self.scheduler.pool.clear()

    def next_time(self) -> float | None:
        """Say when the running step ends or, idle, the next arrival is seen; None if neither."""
        if self._steps:
            return self._steps[0].ends_at
        if self._arrivals:
            return max(self._arrivals[0][0], self._now)
        return None

    def advance(self, until: float) -> list[StepOutput]:
        """Let time pass; return every step that ended up to and with `until`, in order."""
        outputs: list[StepOutput] = []
        while (moment := self.next_time()) is not None and moment <= until:
            self._now = moment
            if self._steps:
                stretch = self._stretch(until)
                if stretch is not None:
                    outputs.append(stretch)
                    continue
                outputs.append(self._finish_step())
            self._take_arrivals()
            outputs += self._fill()
        self._now = max(self._now, until)
        return outputs

    def _check_clock(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time goes back: {now} after {self._now}")

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self._now:
            self.scheduler.add(heappop(self._arrivals)[2])

    def _fill(self) -> list[StepOutput]:
        """Schedule until the queue of steps is full or a step runs at its head.

        A step without tokens takes no time; what leaves with it are the events reported since.
        """
        empty: list[StepOutput] = []
        while True:
            if self.scheduler.has_requests:
                self._schedule()
                if len(self._steps) < self._depth:
                    continue
            if not self._steps or self._steps[0].tokens:
                return [output for output in empty if output.events]
            empty.append(self._finish_step())
            assert len(empty) < 8, "an idle engine cannot place its first request"

    def _schedule(self) -> None:
        step = self.scheduler.schedule()
        begin = self._steps[-1].ends_at if self._steps else self._now
        if step.tokens:
            seconds = self.hardware.step_seconds(step.chunks, step.decode_contexts)
            begin += self.slowdown * self.hardware.by_chance(seconds, self.rng)
        step.ends_at = begin
        self._steps.append(step)

    def _finish_step(self) -> StepOutput:
        """Process the step that ends now."""
        for tracked in self._aborts:
            if not tracked.done:
                self.scheduler.abort(tracked)
        self._aborts.clear()
        step = self._steps.popleft()
        result = self.scheduler.process(step)
        for request_id in result.finished:
            self._requests.pop(request_id, None)
        return self._output(step, result)

    def _output(self, step: Step, result: Processed) -> StepOutput:
        return StepOutput(
            ends=(step.ends_at,),
            tokens=tuple(result.tokens),
            first=result.first,
            finished=dict(result.finished),
            events=self.scheduler.pool.take_events(),
            prefill_tokens=sum(tokens for tokens, _ in step.chunks),
        )

    def _stretch(self, until: float) -> StepOutput | None:
        """Run equal decode steps at once, up to the next one that changes more than counts."""
        if self._aborts or not in_steady_decode(self.scheduler, self._steps, self._depth):
            return None
        if self._arrivals:
            until = min(until, self._arrivals[0][0])
            if until <= self._steps[0].ends_at:
                return None
        running = self.scheduler.running
        longest = equal_steps(running, self.settings, self.shortest_stretch)
        if not longest:
            return None
        ends = time_stretch(self._steps, self._seconds, longest=longest, until=until)
        move_ahead(running, self._steps, len(ends))
        return StepOutput(ends=ends, tokens=tuple([request.id for request in running]))

    def _seconds(self, contexts: list[int]) -> float:
        """Draw the time of a step that only decodes."""
        seconds = self.hardware.decode_seconds(
            len(contexts), sum(contexts), self.hardware.selected_sum(contexts)
        )
        return self.slowdown * self.hardware.by_chance(seconds, self.rng)
