"""The simulated SGLang on the wall clock: see `simulated.live`."""

import asyncio
import time
from collections.abc import Sequence
from typing import cast

from leadsman_engines.simulated.blocks import BlocksStored
from leadsman_engines.simulated.bodies import BadRequestError
from leadsman_engines.simulated.live import LiveEngine
from leadsman_engines.simulated.sequences import SimulatedRequest
from leadsman_engines.simulated.sglang.engine import SimulatedSglang
from leadsman_engines.simulated.sglang.publish import (
    LOAD_HEARTBEAT,
    LoadPublisher,
    LoadStat,
    SglangPublisher,
    Tokens,
)
from leadsman_engines.simulated.sglang.tickets import SglangTicket
from leadsman_engines.simulated.steps import StepOutput
from leadsman_engines.simulated.text import Tokenizer
from leadsman_engines.simulated.tickets import Sink, Ticket, Wish

MOST_LEFT = 4096
"""Requests taken back whose tokens are kept: far more than can be told of late."""


class LiveSglang(LiveEngine[SimulatedSglang]):
    """One server under the running event loop. publishers: each rank's of events and of load."""

    def __init__(
        self,
        engine: SimulatedSglang,
        tokenizer: Tokenizer,
        publishers: tuple[Sequence[SglangPublisher], Sequence[LoadPublisher]] = ((), ()),
        *,
        speed: float = 1.0,
        max_queued: int | None = None,
    ) -> None:
        super().__init__(engine, tokenizer, None, speed=speed, max_queued=max_queued)
        events, loads = publishers
        self.prefilled = [0] * engine.settings.dp_size
        self.prefilling_s = [0.0] * engine.settings.dp_size
        self._events, self._loads = events, loads
        self._left: dict[str, Ticket] = {}
        self._beating = asyncio.create_task(self._beat()) if loads else None

    def load(self, rank: int) -> LoadStat:
        """Say one rank's load as its scheduler counts it."""
        scheduler, settings = self.engine.ranks[rank], self.engine.settings
        cache = scheduler.cache
        used = settings.total_pages - cache.available - cache.tree.evictable
        waiting = sum(live.tokens for live in scheduler.waiting)
        return LoadStat(
            num_running_reqs=len(scheduler.running),
            num_waiting_reqs=len(scheduler.waiting),
            num_tokens=used * settings.page_size,
            max_total_num_tokens=settings.total_pages * settings.page_size,
            attn_dp_rank=rank,
            num_waiting_uncached_tokens=waiting,
            num_total_tokens=used * settings.page_size + waiting,
            max_running_requests=settings.max_running_requests,
            total_prefill_uncached_tokens=self.prefilled[rank],
            total_prefill_busy_us=round(1e6 * self.prefilling_s[rank]),
        )

    def flush_cache(self) -> bool:
        """Forget what is cached, where nothing runs; an idle server tells it at once."""
        done = self.engine.reset_cache()
        self._arm()
        return done

    def restart(self) -> None:
        """Lose everything, as a killed process does."""
        super().restart()
        for publisher in self._events:
            publisher.start_over()

    def abort(self, name: str) -> None:
        """Take a request back; what it has computed is told a step later."""
        ticket = self._tickets.get(name)
        if ticket is not None:
            self._left[name] = ticket
            if len(self._left) > MOST_LEFT:
                del self._left[next(iter(self._left))]
        super().abort(name)

    def close(self) -> None:
        """Stop the clock."""
        super().close()
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._offer_loads(force=True)
            await asyncio.sleep(LOAD_HEARTBEAT)

    def _offer_loads(self, *, force: bool = False) -> None:
        for rank, publisher in enumerate(self._loads):
            publisher.offer(self.load(rank), now=self._loop.time(), force=force)

    def _ticket(self, wish: Wish, sink: Sink) -> Ticket:
        settings = self.engine.settings
        return SglangTicket(
            wish, sink, self.tokenizer, settings.page_size, is_eagle=settings.is_eagle
        )

    def _enter(self, request: SimulatedRequest, wish: Wish) -> None:
        ranks = self.engine.settings.dp_size
        if wish.rank is not None and wish.rank >= ranks:
            raise BadRequestError(f"no rank {wish.rank}: there are {ranks}", param="routed_dp_rank")
        self.engine.submit(request, self._now(), wish.rank)

    def _publish(self, output: StepOutput) -> None:
        self.prefilled[output.rank] += output.prefill_tokens
        self.prefilling_s[output.rank] += output.prefill_seconds
        if output.events and self._events:
            self._events[output.rank].publish(output.events, self._pages, at=time.time())
        self._offer_loads()

    def _pages(self, event: BlocksStored) -> Tokens:
        name = event.request_id
        ticket = cast("SglangTicket", self._tickets.get(name) or self._left[name])
        return ticket.pages(event.start, len(event.hashes))
