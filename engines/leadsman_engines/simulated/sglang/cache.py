"""The pool of pages and the radix tree over it, as requests use them.

A request's memory is its places, in whole pages: those that it found or has published are the
tree's (`protected`), the rest its own. Publishing hands its own pages to the tree; those that the
tree has already are freed. What is asked of the allocator is rounded up by a page a request, and
the tree is made to give back as much, also where fewer would do.

Source: SGLang 0.5.23 srt/mem_cache/common.py, checkpoint_kv_cache, release_kv_cache;
unified_radix_cache.py, checkpoint_into_tree; allocation.py.
"""

from collections.abc import Sequence

from leadsman_engines.simulated.sglang.nodes import Match
from leadsman_engines.simulated.sglang.requests import Live
from leadsman_engines.simulated.sglang.settings import SglangSettings
from leadsman_engines.simulated.sglang.tree import RadixTree


class KvCache:
    """One scheduler's memory. available: pages that hold nothing."""

    __slots__ = ("_settings", "available", "hit_tokens", "queried_tokens", "tree")

    def __init__(self, settings: SglangSettings) -> None:
        self._settings = settings
        self.available = settings.total_pages
        self.tree = RadixTree(settings.host_tokens // settings.page_size)
        self.queried_tokens = self.hit_tokens = 0

    @property
    def page(self) -> int:
        """Tokens of a page."""
        return self._settings.page_size

    @property
    def free_tokens(self) -> int:
        """Tokens that can be had: what holds nothing, and what nobody holds."""
        return (self.available + self.tree.evictable) * self.page

    def match(self, live: Live, most: int) -> Match:
        """Look a request up, by at most so many of its tokens."""
        if not live.request.reads_cache:
            most = 0
        return self.tree.match(live.pages(self._settings.keyed(min(live.tokens, most))))

    def make_room(self, tokens: int) -> bool:
        """Push out leaves until so many tokens have room; False where there are not enough."""
        missing = -(-(tokens - self.available * self.page) // self.page)
        if missing > 0:
            self.available += self.tree.evict(lambda pages: pages >= missing)
        return self.available * self.page >= tokens

    def extend(self, rows: Sequence[Live]) -> None:
        """Take memory for what a pass computes of each."""
        asked = sum(live.end - live.prefix for live in rows)
        self.make_room(asked if self.page == 1 else asked + len(rows) * self.page)
        for live in rows:
            self._take(live, live.end)

    def grow(self, rows: Sequence[Live]) -> None:
        """Take memory for one more token of each."""
        self.make_room(len(rows) * self.page)
        for live in rows:
            self._take(live, live.committed + 1)

    def fits_decode(self, rows: Sequence[Live]) -> bool:
        """Say whether one more token of each has room, when all is pushed out that may be."""
        new = sum(live.committed % self.page == 0 for live in rows)
        return self.make_room(new * self.page)

    def _take(self, live: Live, tokens: int) -> None:
        held = max(live.protected, self._pages(live.committed))
        self.available -= self._pages(tokens) - held
        assert self.available >= 0
        live.committed = tokens

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page)

    def admit(self, live: Live, match: Match) -> None:
        """Hold what a request found; of what only the host has, bring it back."""
        if match.host_pages:
            self.make_room(match.host_pages * self.page)
            self.available -= match.host_pages
            self.tree.load(match, (live.id, live.request.session_id))
        live.lock = match.deepest
        self.tree.lock(match.deepest)
        live.protected = match.pages + match.host_pages
        if live.cached is None:
            live.cached = live.protected * self.page
            self.queried_tokens += live.prompt
            self.hit_tokens += live.cached

    def publish(self, live: Live, up_to: int) -> None:
        """Let others find a request's pages up to so many tokens, and hold them in the tree."""
        if up_to <= 0:
            return
        pages = live.pages(self._settings.keyed(up_to))
        of = (live.id, live.request.session_id)
        done = self.tree.insert(pages, live.protected, of)
        self.available += done.spare
        prompt = self._settings.keyed(live.prompt)
        if 0 < prompt < len(pages):
            self.tree.insert(pages[:prompt], prompt, of)
        if live.lock is not None:
            self.tree.unlock(live.lock)
        self.tree.lock(done.node)
        live.lock, live.protected = done.node, len(pages)

    def release(self, live: Live, *, publish: bool) -> None:
        """Give all of a request's memory back; with `publish` the tree keeps what has a key."""
        if publish:
            self.publish(live, min(live.committed, live.tokens))
        self.available += max(0, self._pages(live.committed) - live.protected)
        if live.lock is not None:
            self.tree.unlock(live.lock)
        live.forget_memory()

    def flush(self) -> None:
        """Forget what is cached; nobody may hold anything."""
        self.available += self.tree.evictable
        self.tree.clear()

    def check(self, holding: Sequence[Live]) -> None:
        """Assert that every page is free, the tree's, or a request's own."""
        self.tree.check()
        own = sum(max(0, self._pages(one.committed) - one.protected) for one in holding)
        assert self.available + own + self.tree.held == self._settings.total_pages
