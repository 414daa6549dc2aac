"""One prefill pass: who of the queue is taken in, and how much of each prompt is computed.

Four budgets bound it: tokens of input and of a chunk, and memory, what those in it and those who
run may come to need (`_total`), and what they take at once (`_current`). The prompt that is under
way goes first, and has to get on; then the queue is tried from its head. Every charge is in whole
pages, and a page more.

Source: SGLang 0.5.23 srt/managers/schedule_policy.py, PrefillAdder; mem_cache/prefill_budget.py.
"""

from enum import Enum, auto

from leadsman_engines.simulated.sglang.batches import Batch
from leadsman_engines.simulated.sglang.cache import KvCache
from leadsman_engines.simulated.sglang.nodes import Match
from leadsman_engines.simulated.sglang.requests import CLIP, Live
from leadsman_engines.simulated.sglang.settings import SglangSettings


class Result(Enum):
    """What came of trying one, or whether to try another."""

    CONTINUE = auto()
    NO_TOKEN = auto()
    OTHER = auto()


class PrefillPass:
    """One pass. can_run: who is in it, in order; new_chunked: whose prompt is cut."""

    def __init__(
        self, settings: SglangSettings, cache: KvCache, running: Batch, ratio: float
    ) -> None:
        self._settings, self._cache, self._running, self._ratio = settings, cache, running, ratio
        decodes = len(running.reqs) if settings.enable_mixed_chunk else 0
        if settings.chunked_prefill_size is None:
            decodes = 0
        self._input = settings.max_prefill_tokens - decodes
        chunk = settings.chunked_prefill_size
        self._chunk = None if chunk is None else chunk - decodes
        self._total: float = decodes + sum(self.kept(live) for live in running.reqs)
        self._current = decodes
        self.can_run: list[Live] = []
        self.preempted: list[Live] = []
        self.new_chunked: Live | None = None

    def kept(self, live: Live) -> float:
        """Tokens that are kept for the answer of one who runs."""
        return min(live.limit - live.outputs, CLIP) * self._ratio

    @property
    def _left_in_total(self) -> float:
        return self._cache.free_tokens - self._total

    def state(self) -> Result:
        """Say whether one more may be tried."""
        if self._left_in_total <= 0 or self._cache.free_tokens - self._current <= 0:
            return Result.NO_TOKEN
        if self._input <= 0 or (self._chunk is not None and self._chunk <= 0):
            return Result.OTHER
        return Result.CONTINUE

    def _charge(self, tokens: int, answer: int) -> None:
        page = self._cache.page
        paged = -(-tokens // page) * page
        self._total += paged + page + answer
        self._current += paged + page
        self._input -= paged
        if self._chunk is not None:
            self._chunk -= paged

    def go_on(self, live: Live) -> Live | None:
        """Give the prompt under way its next chunk; returns it where it is not done by that."""
        live.filled = live.tokens
        assert self._chunk is not None
        most = min(self._chunk, int(self._left_in_total))
        if most <= 0:
            most = self._chunk
        missing = live.tokens - live.prefix
        is_cut = missing > most
        live.end = live.prefix + min(missing, most)
        self.can_run.append(live)
        self._charge(live.end - live.prefix, 0 if is_cut else min(live.limit, CLIP))
        return live if is_cut else None

    def add(self, live: Live) -> Result:
        """Try to take one of the queue in."""
        most = self._settings.prefill_max_requests
        live.filled = live.tokens
        match = self._cache.match(live, live.tokens - 1)
        live.prefix = match.pages * self._cache.page
        live.host_found = match.host_pages
        if most is not None and len(self.can_run) >= most:
            return Result.OTHER
        self._cache.tree.lock(match.node)
        tokens = self._fitting(live, match)
        self._cache.tree.unlock(match.node)
        if isinstance(tokens, Result):
            return tokens
        self._cache.admit(live, match)
        live.prefix = live.protected * self._cache.page
        live.end = live.prefix + tokens
        self.can_run.append(live)
        is_cut = live.end < live.tokens
        if is_cut:
            self.new_chunked = live
        self._charge(tokens, 0 if is_cut else min(live.limit, CLIP))
        return self.state()

    def _fitting(self, live: Live, match: Match) -> int | Result:
        """Say how much of a prompt may be computed now; its prefix is held meanwhile."""
        page, chunk = self._cache.page, self._chunk
        if live.tokens - live.prefix + live.left + page >= self._left_in_total:
            return Result.NO_TOKEN
        start = live.prefix + match.host_pages * page
        missing = live.tokens - start
        paged = -(-missing // page) * page
        if chunk is None:
            if self.can_run and paged >= self._input:
                return Result.OTHER
            return missing
        if paged <= chunk:
            return missing
        end = (start + chunk // page * page) // page * page
        return end - start if end > start else Result.OTHER

    def preempt_for(self, live: Live) -> list[Live]:
        """Choose who has to go back for one that matters more; nobody, where that is too few.

        Who has ended is still among those who run, and is passed over.
        """
        sign = 1 if self._settings.schedule_low_priority_values_first else -1
        able = [one for one in self._running.reqs if not one.finished]
        able.sort(key=lambda one: (one.request.priority * -sign, -one.entered))
        missing = live.filled - live.prefix + min(live.limit, CLIP) - self._left_in_total
        chosen: list[Live] = []
        for one in able:
            gap = (live.request.priority - one.request.priority) * -sign
            if gap <= self._settings.priority_scheduling_preemption_threshold:
                break
            chosen.append(one)
            missing -= self.kept(one)
            if missing <= 0:
                break
        return chosen if chosen and missing <= 0 else []

    def note_preempted(self, live: Live, kept: float) -> None:
        """Count out one who went back, and what had been `kept` for it."""
        self._total -= kept
        self.preempted.append(live)
