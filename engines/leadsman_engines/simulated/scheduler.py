"""vLLM's V1 scheduler, step by step: who gets how many tokens of the next step's budget.

Model. Running requests come first, in the order of their admission: a decoding one takes one token,
a prefilling one what it still needs. Who finds no block pushes out the request admitted last (under
the priority policy: the least urgent), which loses its blocks and waits at the front. Then, unless
someone was pushed out, waiting requests are admitted from the head while budget, sequences and
blocks last; the first that does not fit stops all behind it. A request finds its cached prefix at
that moment, at most its tokens less one; its full blocks are named at once, before they are
computed, so a request admitted later in the same step finds them.

With asynchronous scheduling a step is scheduled before the one ahead of it is processed: what that
one will have generated counts as placeholders, a finished request keeps its place a step longer,
and one that stops by itself has a token scheduled in vain.

Source: vLLM 0.32 v1/core/sched/scheduler.py, Scheduler.schedule, update_from_output,
_preempt_request, finish_requests; async_scheduler.py; kv_cache_manager.py, allocate_slots.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from leadsman_engines.simulated.blocks import BlockPool, BlocksStored
from leadsman_engines.simulated.sequences import Tracked
from leadsman_engines.simulated.settings import SimulatedSettings


@dataclass(slots=True)
class Step:
    """One scheduled step: tokens by request, in scheduling order; `partial` ones yield no token yet."""

    tokens: dict[Tracked, int] = field(default_factory=dict)
    partial: set[Tracked] = field(default_factory=set)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    decode_contexts: list[int] = field(default_factory=list)
    preempted: list[Tracked] = field(default_factory=list)
    membership: int = 0
    ends_at: float = 0.0


@dataclass(slots=True)
class Processed:
    """What one processed step brought: new tokens by request id, first tokens' reuse, the finished."""

    tokens: list[str] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    finished: dict[str, Literal["stop", "length"]] = field(default_factory=dict)


class Scheduler:
    """The queues of one engine over its block pool. Knows no time."""

    __slots__ = ("hit_tokens", "membership", "pool", "preemptions", "queried_tokens", "running",
                 "settings", "waiting", "_watermark_blocks")  # fmt: skip

    def __init__(self, settings: SimulatedSettings) -> None:
        self.settings = settings
        self.pool = BlockPool(settings.num_blocks, keeps_hashes=settings.enable_prefix_caching)
        self.running: list[Tracked] = []
        self.waiting: deque[Tracked] = deque()
        self.membership = 0
        self.preemptions = self.queried_tokens = self.hit_tokens = 0
        self._watermark_blocks = int(settings.watermark * (settings.num_blocks + 1))

    @property
    def has_requests(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or self.waiting)

    def add(self, request: Tracked) -> None:
        """Queue a request that has arrived."""
        self.waiting.append(request)
        if self.settings.policy == "priority":
            self._sort_waiting()

    def _sort_waiting(self) -> None:
        self.waiting = deque(sorted(self.waiting, key=_urgency))

    def abort(self, request: Tracked) -> None:
        """Drop a request; its blocks are free at once, its hashed ones stay findable."""
        request.done = True
        self.membership += 1
        if request.running:
            self.running.remove(request)
            self._release(request)
        else:
            self.waiting.remove(request)

    def schedule(self) -> Step:
        """Hand out one step's budget. Tokens count as computed from here on."""
        step = Step(membership=self.membership)
        left = self._continue_running(step)
        if not step.preempted:
            self._admit(step, left)
        self._advance(step)
        step.membership = self.membership
        return step

    def _long_threshold(self) -> int | None:
        threshold = self.settings.long_prefill_token_threshold
        several = len(self.running) + len(self.waiting) > 1
        return threshold if several else None

    def _continue_running(self, step: Step) -> int:
        """Serve the running requests; return what is left of the budget."""
        left = self.settings.max_num_batched_tokens
        threshold = self._long_threshold()
        block_size, longest = self.settings.block_size, self.settings.max_model_len - 1
        index = 0
        while index < len(self.running) and left > 0:
            request = self.running[index]
            index += 1
            ahead = request.placeholders
            computed = request.computed
            if ahead and computed + 2 - ahead >= request.last_schedule:
                continue
            count = request.tokens + ahead - computed
            if count > 1:
                if threshold is not None:
                    count = min(count, threshold)
                count = min(count, left)
            count = min(count, longest - computed)
            if count <= 0:
                continue
            end = computed + count
            missing = -(-end // block_size) - len(request.blocks)
            if missing > 0:
                index, left = self._make_room(step, request, missing, (index, left))
                if not request.running:
                    if self._goes_on_after_preempting_itself():
                        continue
                    break
                request.blocks += self.pool.take(missing)
            if end // block_size > request.hashed:
                self._name_blocks(request, min(end, request.tokens))
            step.tokens[request] = count
            left -= count
        return left

    def _goes_on_after_preempting_itself(self) -> bool:
        """vLLM 0.33 goes on with the next request under the priority policy; before, it stopped."""
        return self.settings.policy == "priority" and self.settings.release >= (0, 33)

    def _make_room(
        self, step: Step, request: Tracked, missing: int, place: tuple[int, int]
    ) -> tuple[int, int]:
        """Push out requests until `missing` blocks are free, or `request` itself is out.

        place: next index in the running list and budget left; returned as they are afterwards.
        """
        index, left = place
        while self.pool.free < missing and request.running:
            victim = self.running[-1]
            if self.settings.policy == "priority":
                victim = max(self.running, key=lambda one: (one.request.priority, one.arrival))
                if self.running.index(victim) < index:
                    index -= 1
                left += step.tokens.pop(victim, 0)
            self.running.remove(victim)
            self._preempt(victim)
            step.preempted.append(victim)
        return index, left

    def _preempt(self, victim: Tracked) -> None:
        self._release(victim)
        self.membership += 1
        self.preemptions += 1
        victim.preemptions += 1
        victim.computed = victim.placeholders = 0
        victim.stale = victim.in_flight
        self.waiting.appendleft(victim)
        if self.settings.policy == "priority":
            self._sort_waiting()

    def _release(self, request: Tracked) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.hashed = 0
        request.running = False

    def _admit(self, step: Step, left: int) -> None:
        skipped: list[Tracked] = []
        threshold = self._long_threshold()
        while left > 0 and self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            if request.stale:
                skipped.append(self.waiting.popleft())
                continue
            count = self._place(request, left, threshold)
            if count is None:
                break
            self.waiting.popleft()
            request.running = True
            self.membership += 1
            self.running.append(request)
            step.tokens[request] = count
            left -= count
        self.waiting.extendleft(reversed(skipped))

    def _place(self, request: Tracked, left: int, threshold: int | None) -> int | None:
        """Give a waiting request its blocks; return its tokens in this step, None if it must wait."""
        settings, pool = self.settings, self.pool
        block_size = settings.block_size
        found: list[int] = []
        if settings.enable_prefix_caching and request.request.reads_cache:
            limit = (request.tokens - 1) // block_size
            found = pool.longest_prefix(request.hashes_up_to(limit), limit)
        hit = len(found) * block_size
        count = request.tokens - hit
        if threshold is not None:
            count = min(count, threshold)
        if count > left and not settings.enable_chunked_prefill:
            return None
        count = min(count, left)
        whole = request.tokens if settings.reserve_full_isl else hit + count
        spare = pool.free - (self._watermark_blocks if self.running else 0)
        if -(-whole // block_size) - len(found) + pool.unheld(found) > spare:
            return None
        pool.hold(found)
        request.blocks = found + pool.take(-(-(hit + count) // block_size) - len(found))
        request.hashed = len(found)
        request.computed = hit
        self._name_blocks(request, hit + count)
        if request.cached is None:
            request.cached = hit
        if request.preemptions == 0:
            self.queried_tokens += request.tokens
            self.hit_tokens += hit
        return count

    def _name_blocks(self, request: Tracked, tokens: int) -> None:
        """Name the request's blocks that are full at `tokens`, and report those that are new."""
        full, start = tokens // self.settings.block_size, request.hashed
        if full <= start or not self.settings.enable_prefix_caching:
            return
        hashes = request.hashes_up_to(full)
        request.hashed = full
        stored = BlocksStored(
            request.request.id,
            request.request.session_id,
            tuple(hashes[start:full]),
            hashes[start - 1] if start else None,
            start,
        )
        self.pool.store(request.blocks[start:full], stored)

    def _advance(self, step: Step) -> None:
        ahead = self.settings.async_scheduling
        for request, count in step.tokens.items():
            before = request.computed
            request.computed = after = before + count
            request.in_flight += count
            if count == 1:
                step.decode_contexts.append(after)
            else:
                step.chunks.append((count, before))
            if after < request.tokens + request.placeholders:
                step.partial.add(request)
            elif ahead:
                request.placeholders += 1

    def process(self, step: Step) -> Processed:
        """Take in a step's output: new tokens, ends, and the blocks that became full."""
        result = Processed()
        partial = step.partial
        for request, count in step.tokens.items():
            request.in_flight -= count
            stale = request.stale > 0
            if stale:
                request.stale -= count
            if request.done or request in partial:
                continue
            self._append_token(request, result, stale=stale)
        if result.finished:
            self.running = [request for request in self.running if request.running]
            if any(request.done for request in self.waiting):
                self.waiting = deque(request for request in self.waiting if not request.done)
        return result

    def _append_token(self, request: Tracked, result: Processed, *, stale: bool) -> None:
        name = request.request.id
        request.tokens += 1
        request.generated += 1
        result.tokens.append(name)
        if request.generated == 1:
            result.first[name] = request.cached or 0
        if self.settings.async_scheduling:
            if not stale:
                request.placeholders -= 1
            if request.running:
                known = request.computed - request.placeholders
                if known // self.settings.block_size > request.hashed:
                    self._name_blocks(request, known)
        if request.generated >= request.target:
            request.done = True
            self.membership += 1
            result.finished[name] = request.finish_reason
            if request.running:
                self._release(request)

    def check(self) -> None:
        """Assert that blocks held are exactly those of running requests, and the pool is whole."""
        self.pool.check()
        held = {block for request in self.running for block in request.blocks}
        assert len(held) + self.pool.free == self.pool.size
        assert all(not request.blocks for request in self.waiting)
        assert len(self.running) <= self.settings.max_num_seqs


def _urgency(request: Tracked) -> tuple[int, float, str]:
    return request.request.priority, request.arrival, request.request.id
