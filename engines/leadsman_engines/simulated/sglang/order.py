"""In which order those who wait are tried.

`lpm` looks everybody up and takes the longest prefix first; but those who have hardly any and share
one with somebody before them in the queue wait behind all, so that he computes it for them. `lof`
takes who may answer longest. Priorities come before `fcfs` and `lof`. Every thirty-second pass an
order that looks nobody up touches what the first in the queue would find.

What is shared in the queue is told by whole pages, where SGLang tells it by tokens: the same, since
pages divide the number of tokens that counts.

Source: SGLang 0.5.23 srt/managers/schedule_policy.py, SchedulePolicy.calc_priority,
_compute_prefix_matches, _touch_waiting_prefixes.
"""

from leadsman_engines.simulated.sglang.cache import KvCache
from leadsman_engines.simulated.sglang.requests import Live
from leadsman_engines.simulated.sglang.settings import SglangSettings

MOST_MATCHED = 128
HARDLY_ANY = 32
TOUCH_EVERY = 32


class QueueOrder:
    """One scheduler's order."""

    def __init__(self, settings: SglangSettings) -> None:
        self._settings = settings
        self._passes = 0

    def sort(self, waiting: list[Live], cache: KvCache) -> None:
        """Put a queue in order, in place; ties stay as they are."""
        settings = self._settings
        sign = 1 if settings.schedule_low_priority_values_first else -1
        by_priority = settings.enable_priority_scheduling
        if settings.schedule_policy == "lpm" and len(waiting) <= MOST_MATCHED:
            self._longest_prefix_first(waiting, cache)
            return
        if settings.schedule_policy == "lof":
            waiting.sort(
                key=lambda live: (sign * live.request.priority if by_priority else 0, -live.limit)
            )
        elif settings.schedule_policy == "fcfs" and by_priority:
            waiting.sort(key=lambda live: (sign * live.request.priority, live.entered))
        self._touch(waiting, cache)

    def _longest_prefix_first(self, waiting: list[Live], cache: KvCache) -> None:
        first, later, shared = dict[str, int](), set[str](), set[int]()
        for live in waiting:
            match = cache.match(live, live.tokens)
            live.prefix = match.pages * cache.page
            found = (match.pages + match.host_pages) * cache.page
            first[live.id] = min(found, live.tokens - 1)
            if live.prefix > HARDLY_ANY:
                continue
            pages = live.pages(self._settings.keyed(live.tokens))
            common = next((n for n, page in enumerate(pages) if page not in shared), len(pages))
            if common * cache.page >= HARDLY_ANY:
                later.add(live.id)
            else:
                shared.update(pages)
        waiting.sort(key=lambda live: (live.id in later, -first[live.id] * (live.id not in later)))

    def _touch(self, waiting: list[Live], cache: KvCache) -> None:
        if not waiting:
            return
        if self._passes % TOUCH_EVERY == 0:
            for live in reversed(waiting[:MOST_MATCHED]):
                cache.match(live, live.tokens)
        self._passes += 1
