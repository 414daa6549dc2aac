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
_preempt_request, finish_requests; async_scheduler.py.
"""

from collections import deque
from collections.abc import Iterable

from leadsman_engines.simulated.blocks import BlockPool
from leadsman_engines.simulated.cache import RequestCache
from leadsman_engines.simulated.sequences import Tracked, Twins
from leadsman_engines.simulated.settings import SimulatedSettings
from leadsman_engines.simulated.steps import Processed, Step


class Scheduler:
    """The queues of one engine over its block pool. Knows no time."""

    __slots__ = (
        "_scheduled",
        "cache",
        "membership",
        "preemptions",
        "running",
        "settings",
        "waiting",
    )

    def __init__(self, settings: SimulatedSettings) -> None:
        self.settings = settings
        self.cache = RequestCache(settings)
        self.running: list[Tracked] = []
        self.waiting: deque[Tracked] = deque()
        self.membership = 0
        self._scheduled: deque[Step] = deque()
        self.preemptions = 0

    def copy(self, twins: Twins, scheduled: Iterable[Step]) -> "Scheduler":
        """Copy everything. scheduled: copies of the steps that are not processed yet."""
        twin = Scheduler(self.settings)
        twin.cache = self.cache.copy()
        twin.running = twins.all(self.running)
        twin.waiting = deque(twins.all(self.waiting))
        twin.membership, twin.preemptions = self.membership, self.preemptions
        twin._scheduled = deque(scheduled)
        return twin

    @property
    def pool(self) -> BlockPool:
        """The blocks below its cache."""
        return self.cache.pool

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
            self._stop(request)
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
        self._scheduled.append(step)
        return step

    def _long_threshold(self) -> int | None:
        threshold = self.settings.long_prefill_token_threshold
        several = len(self.running) + len(self.waiting) > 1
        return threshold if several else None

    def _continue_running(self, step: Step) -> int:
        """Serve the running requests; return what is left of the budget."""
        left = self.settings.max_num_batched_tokens
        threshold = self._long_threshold()
        block_size = self.settings.block_size
        index = 0
        while index < len(self.running) and left > 0:
            request = self.running[index]
            index += 1
            ahead, computed = request.placeholders, request.computed
            if ahead and computed + 2 - ahead >= request.last_useful:
                continue
            count = request.tokens + ahead - computed
            if count > 1:
                count = min(count, left, count if threshold is None else threshold)
            end = computed + count
            missing = -(-end // block_size) - len(request.blocks)
            if missing > 0:
                index, left = self._make_room(step, request, missing, (index, left))
                if not request.running:
                    if self._goes_on_after_preempting_itself():
                        continue
                    break
                request.blocks += self.pool.take(missing)
            if end >= request.names_next:
                self.cache.name_blocks(request, min(end, request.tokens))
            step.tokens[request] = count
            left -= count
        return left

    def _goes_on_after_preempting_itself(self) -> bool:
        """Say whether others are still served: since vLLM 0.33, under the priority policy."""
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
        self._stop(victim)
        self.membership += 1
        self.preemptions += 1
        victim.preemptions += 1
        victim.computed = victim.placeholders = 0
        victim.stale = sum(step.tokens.get(victim, 0) for step in self._scheduled)
        self.waiting.appendleft(victim)
        if self.settings.policy == "priority":
            self._sort_waiting()

    def _stop(self, request: Tracked) -> None:
        self.cache.release(request)
        request.running = False

    def _admit(self, step: Step, left: int) -> None:
        skipped: list[Tracked] = []
        threshold = self._long_threshold()
        while left > 0 and self.waiting and len(self.running) < self.settings.max_num_seqs:
            request = self.waiting[0]
            if request.stale:
                skipped.append(self.waiting.popleft())
                continue
            count = self.cache.place(request, left, threshold, beside_others=bool(self.running))
            if count is None:
                break
            self.waiting.popleft()
            request.running = True
            self.membership += 1
            self.running.append(request)
            step.tokens[request] = count
            left -= count
        self.waiting.extendleft(reversed(skipped))

    def _advance(self, step: Step) -> None:
        ahead = self.settings.async_scheduling
        contexts = step.decode_contexts
        for request, count in step.tokens.items():
            before = request.computed
            request.computed = after = before + count
            if count == 1:
                contexts.append(after)
            else:
                step.chunks.append((count, before))
            if after < request.tokens + request.placeholders:
                step.partial.add(request)
            elif ahead:
                request.placeholders += 1

    def process(self, step: Step) -> Processed:
        """Take in a step's output: new tokens, ends, and the blocks that became full."""
        assert self._scheduled.popleft() is step
        result = Processed()
        ahead, partial = self.settings.async_scheduling, step.partial
        for request, count in step.tokens.items():
            is_partial = bool(partial) and request in partial
            if request.stale:
                request.stale -= count
            elif ahead and not is_partial:
                request.placeholders -= 1
            if request.done or is_partial:
                continue
            request.tokens = tokens = request.tokens + 1
            result.tokens.append(request.id)
            if tokens == request.prompt + 1:
                result.first[request.id] = request.cached or 0
            known = request.computed - request.placeholders
            if ahead and request.running and known >= request.names_next:
                self.cache.name_blocks(request, known)
            if tokens >= request.ends_at:
                self._finish(request, result)
        if result.finished:
            self._drop_done()
        return result

    def _drop_done(self) -> None:
        self.running = [request for request in self.running if not request.done]
        if any(request.done for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.done)

    def _finish(self, request: Tracked, result: Processed) -> None:
        request.done = True
        self.membership += 1
        result.finished[request.id] = request.finish_reason
        if request.running:
            self._stop(request)

    def check(self) -> None:
        """Assert that blocks held are exactly those of running requests, and the pool is whole."""
        self.pool.check()
        held = {block for request in self.running for block in request.blocks}
        assert len(held) + self.pool.free == self.pool.size
        assert all(not request.blocks for request in self.waiting)
        assert len(self.running) <= self.settings.max_num_seqs


def _urgency(request: Tracked) -> tuple[int, float, str]:
    return request.request.priority, request.arrival, request.request.id
