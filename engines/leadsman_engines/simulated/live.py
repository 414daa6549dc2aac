"""The stepping core on the wall clock: requests go in from HTTP handlers, tokens come out.

Model. Virtual time is wall time since the start, times `speed`. One timer waits for the engine's
next moment; what the engine then brings is handed to each request's `Ticket`, and its cache events
to the publisher. Late timers cost nothing but lateness: the engine's own times stay exact.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from leadsman_engines.simulated.blocks import BlocksStored
from leadsman_engines.simulated.make import AnyEngine
from leadsman_engines.simulated.publish import EventPublisher
from leadsman_engines.simulated.sequences import SimulatedRequest
from leadsman_engines.simulated.steps import StepOutput
from leadsman_engines.simulated.text import Tokenizer
from leadsman_engines.simulated.tickets import Progress, Sink, Ticket, Wish

Engine_co = TypeVar("Engine_co", bound=AnyEngine, covariant=True)


class QueueOverflowError(Exception):
    """The engine has as many queued requests as it is set to hold."""


class EngineGoneError(Exception):
    """The engine was restarted below a request."""


@dataclass(slots=True)
class Counters:
    """What /metrics counts, since the process began."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    stopped: int = 0
    lengths: int = 0
    aborted: int = 0


class LiveEngine(Generic[Engine_co]):
    """One engine under the running event loop."""

    def __init__(
        self,
        engine: Engine_co,
        tokenizer: Tokenizer,
        publisher: EventPublisher | None,
        *,
        speed: float = 1.0,
        max_queued: int | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.counters = Counters()
        self._publisher = publisher
        self._max_queued = max_queued
        self._speed = speed
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._tickets: dict[str, Ticket] = {}
        self._leaving: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = count()

    def submit(self, wish: Wish, sink: Sink) -> tuple[str, Ticket]:
        """Hand a request to the engine now; returns its internal id, and its ticket.

        Raises QueueOverflowError, and ValueError as the engine does.
        """
        if self._max_queued is not None and self.engine.queued >= self._max_queued:
            raise QueueOverflowError
        ticket = self._ticket(wish, sink)
        name = f"{wish.public_id}-{next(self._numbers)}"
        request = SimulatedRequest(
            id=name,
            prompt_tokens=len(wish.ids),
            prompt_hashes=tuple(ticket.hashes),
            output_tokens=wish.output_tokens,
            max_tokens=wish.max_tokens,
            output_hash=ticket.hash_of,
            session_id=wish.session_id,
            priority=wish.priority,
            reads_cache=wish.reads_cache,
        )
        self._catch_up()
        self._enter(request, wish)
        self._tickets[name] = ticket
        self.counters.prompt_tokens += len(wish.ids)
        self._arm()
        return name, ticket

    def _ticket(self, wish: Wish, sink: Sink) -> Ticket:
        return Ticket(wish, sink, self.tokenizer, self.engine.settings.block_size)

    def _enter(self, request: SimulatedRequest, wish: Wish) -> None:  # noqa: ARG002
        self.engine.submit(request, self._now())

    def abort(self, name: str) -> None:
        """Take a request back, if it is still under way."""
        self._catch_up()
        if self.engine.abort(name, self._now()):
            self.counters.aborted += 1
            self._leaving.add(name)
        self._arm()

    def restart(self) -> None:
        """Lose everything, as a killed process does: open requests fail, sequences begin at 0."""
        for name in self.engine.restart():
            self._tickets.pop(name).sink.put_nowait(None)
        self._tickets.clear()
        self._leaving.clear()
        if self._publisher is not None:
            self._publisher.start_over()
        self._arm()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def _now(self) -> float:
        return (self._loop.time() - self._origin) * self._speed

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        moment = self.engine.next_time()
        if moment is not None:
            self._timer = self._loop.call_at(self._origin + moment / self._speed, self._tick)

    def _tick(self) -> None:
        self._catch_up()
        self._arm()

    def _catch_up(self) -> None:
        for output in self.engine.advance(self._now()):
            self._hand_out(output)

    def _hand_out(self, output: StepOutput) -> None:
        steps = len(output.ends)
        self.counters.generated_tokens += steps * len(output.tokens)
        for name in output.tokens:
            ticket = self._tickets[name]
            cached = output.first.get(name)
            self.counters.cached_tokens += cached or 0
            news = Progress(ticket.wish.choice, steps, cached, output.finished.get(name))
            ticket.sink.put_nowait(news)
        for reason in output.finished.values():
            self.counters.stopped += reason == "stop"
            self.counters.lengths += reason == "length"
        self._publish(output)
        for name in self._leaving.union(output.finished):
            self._tickets.pop(name, None)
        self._leaving.clear()

    def _publish(self, output: StepOutput) -> None:
        if output.events and self._publisher is not None:
            block_size = self.engine.settings.block_size
            self._publisher.publish(
                output.events, self._span, block_size=block_size, at=time.time()
            )

    def _span(self, event: BlocksStored) -> Sequence[int]:
        return self._tickets[event.request_id].span(event.start, len(event.hashes))
