"""One simulated SGLang server over virtual time: the caller owns the clock and moves it.

It is used as `simulated.engine.SimulatedEngine` is. A server has one scheduler a rank; requests go
to the rank that they name, else to the ranks in turn. Ranks with attention in parallel step
together (`lockstep`), others each by themselves. An arrival during a step is seen at its end.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random

from leadsman_engines.simulated.hardware import Hardware
from leadsman_engines.simulated.sequences import SimulatedRequest
from leadsman_engines.simulated.sglang.batches import Launched
from leadsman_engines.simulated.sglang.lockstep import Lockstep
from leadsman_engines.simulated.sglang.requests import Live
from leadsman_engines.simulated.sglang.scheduler import SglangScheduler
from leadsman_engines.simulated.sglang.settings import SglangSettings
from leadsman_engines.simulated.steps import StepOutput

HOST_BANDWIDTH = 25e9
"""Bytes a second from the host's memory to a device: PCIe 5 x16, less what is lost on the way."""


class SimulatedSglang:
    """One server. Times given to it must not go back; it draws chance from `rng` alone.

    slowdown: factor on every step scheduled from now on.
    """

    def __init__(self, settings: SglangSettings, hardware: Hardware, rng: Random) -> None:
        self.settings, self.hardware, self.rng = settings, hardware, rng
        self.slowdown = 1.0
        self._now = 0.0
        self._order = count()
        self._forget_everything()

    def _forget_everything(self) -> None:
        settings = self.settings
        self.ranks = [SglangScheduler(settings) for _ in range(settings.dp_size)]
        together = settings.dp_size if settings.enable_dp_attention else 1
        self._groups = [
            Lockstep(self.ranks[first : first + together], first, self._seconds)
            for first in range(0, settings.dp_size, together)
        ]
        self._requests: dict[str, Live] = {}
        self._arrivals: list[tuple[float, int, Live]] = []
        self._aborts: list[Live] = []
        self._rank_of: dict[Live, int] = {}
        self._next_rank = 0

    # -- what can be seen of it ----------------------------------------------------------------

    @property
    def scheduler(self) -> SglangScheduler:
        """The scheduler of the first rank."""
        return self.ranks[0]

    @property
    def running(self) -> int:
        """Requests that have a row, on all ranks."""
        return sum(len(rank.running) for rank in self.ranks)

    @property
    def waiting(self) -> int:
        """Requests that a scheduler has seen and not admitted."""
        return sum(len(rank.waiting) for rank in self.ranks)

    @property
    def queued(self) -> int:
        """Requests that have arrived and are not admitted, seen by a scheduler or not yet."""
        return self.waiting + len(self._arrivals)

    @property
    def unfinished(self) -> Iterable[Live]:
        """Requests that have arrived and not ended, in that order."""
        return self._requests.values()

    @property
    def kv_usage(self) -> float:
        """Share of the pages that requests hold, of the fullest rank."""
        return max(self.usage(rank) for rank in range(len(self.ranks)))

    def usage(self, rank: int) -> float:
        """Share of one rank's pages that requests hold; cached ones that nobody holds are free."""
        cache = self.ranks[rank].cache
        return 1 - (cache.available + cache.tree.evictable) / self.settings.total_pages

    # -- what comes ----------------------------------------------------------------------------

    def submit(self, request: SimulatedRequest, now: float, rank: int | None = None) -> None:
        """Let a request arrive at the HTTP server at `now`, for a rank or for whose turn it is.

        Raises ValueError for a prompt that is too long or empty, for no output, for an id that is
        in use, and for a rank that is not there.
        """
        self._check_clock(now)
        settings = self.settings
        request.validate(longest=settings.longest, in_use=self._requests)
        if rank is not None and not 0 <= rank < settings.dp_size:
            raise ValueError(f"no rank {rank}: there are {settings.dp_size}")
        live = Live(request, arrival=now, room=settings.longest - request.prompt_tokens)
        if rank is None:
            rank, self._next_rank = self._next_rank, (self._next_rank + 1) % settings.dp_size
        self._requests[request.id], self._rank_of[live] = live, rank
        delay = settings.api_delay + settings.api_delay_per_token * request.prompt_tokens
        heappush(self._arrivals, (now + delay, next(self._order), live))

    def abort(self, request_id: str, now: float) -> bool:
        """Take a request back, as its scheduler sees it with the next pass.

        Returns False where the id is unknown, or has finished. No output names it afterwards.
        """
        self._check_clock(now)
        live = self._requests.pop(request_id, None)
        if live is None:
            return False
        remaining = [arrival for arrival in self._arrivals if arrival[2] is not live]
        if len(remaining) < len(self._arrivals):
            self._arrivals = sorted(remaining)
            del self._rank_of[live]
        else:
            self._aborts.append(live)
        return True

    def restart(self) -> list[str]:
        """Lose every request and the cache, as a killed process does; return the ids lost."""
        lost = list(self._requests)
        self._forget_everything()
        return lost

    def reset_cache(self) -> bool:
        """Forget what is cached; refused unless every scheduler is idle."""
        if not all(rank.is_idle for rank in self.ranks):
            return False
        for rank in self.ranks:
            rank.cache.flush()
        return True

    def _check_clock(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time goes back: {now} after {self._now}")

    # -- time ----------------------------------------------------------------------------------

    def next_time(self) -> float | None:
        """Say when a step ends or, idle, the next arrival is seen; None if neither."""
        moments = [group.ends_at for group in self._groups if group.ends_at is not None]
        if self._arrivals and any(self._group_of(one).ends_at is None for one in self._coming()):
            moments.append(max(self._arrivals[0][0], self._now))
        if any(group.has_events for group in self._groups):
            moments.append(self._now)
        return min(moments, default=None)

    def _coming(self) -> Iterable[Live]:
        return (live for _, _, live in self._arrivals)

    def _group_of(self, live: Live) -> Lockstep:
        return self._groups[self._rank_of[live] // len(self._groups[0].ranks)]

    def advance(self, until: float) -> list[StepOutput]:
        """Let time pass; return every step that ended up to and with `until`, in order."""
        outputs: list[StepOutput] = []
        while (moment := self.next_time()) is not None and moment <= until:
            self._now = moment
            ready = [one for one in self._groups if one.ends_at is None or one.ends_at == moment]
            for group in ready:
                if group.ends_at is not None:
                    outputs += self._known(group.finish())
            self._take_arrivals()
            for group in ready:
                group.fill(moment)
                if group.has_events:
                    outputs += group.tell(moment)
        self._now = max(self._now, until)
        return outputs

    def _known(self, outputs: list[StepOutput]) -> list[StepOutput]:
        """Leave out who was taken back, and forget who has ended."""
        known = self._requests
        for output in outputs:
            output.tokens = tuple(name for name in output.tokens if name in known)
            output.first = {name: n for name, n in output.first.items() if name in known}
            output.finished = {name: why for name, why in output.finished.items() if name in known}
            for name in output.finished:
                del self._rank_of[known.pop(name)]
        return outputs

    def _take_arrivals(self) -> None:
        """Hand over what has come to the schedulers that do not run a step."""
        aborts, self._aborts = self._aborts, []
        for live in aborts:
            self.ranks[self._rank_of.pop(live)].abort(live)
        while self._arrivals and self._arrivals[0][0] <= self._now:
            live = heappop(self._arrivals)[2]
            self.ranks[self._rank_of[live]].add(live)

    def _seconds(self, launched: Sequence[Launched]) -> float:
        """Draw the time of a step, that of the rank which needs longest."""
        model, page = self.hardware.model, self.settings.page_size
        longest = max(
            self.hardware.step_seconds(one.chunks, one.contexts)
            + one.loaded * page * model.kv_bytes / HOST_BANDWIDTH
            for one in launched
        )
        return self.slowdown * self.hardware.by_chance(longest, self.rng)

    def check(self) -> None:
        """Assert what holds between steps."""
        for rank in self.ranks:
            rank.check()
