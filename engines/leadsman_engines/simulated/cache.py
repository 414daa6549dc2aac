"""Which blocks each request holds: the prefix it finds, what it is given, which ones it names.

Source: vLLM 0.32 v1/core/kv_cache_manager.py, get_computed_blocks, allocate_slots, free.
"""

from leadsman_engines.simulated.blocks import BlockPool, BlocksStored
from leadsman_engines.simulated.sequences import Tracked
from leadsman_engines.simulated.settings import SimulatedSettings


class RequestCache:
    """The block pool as requests see it. queried_tokens, hit_tokens: as the metrics count them."""

    __slots__ = ("_settings", "_watermark_blocks", "hit_tokens", "pool", "queried_tokens")

    def __init__(self, settings: SimulatedSettings) -> None:
        self.pool = BlockPool(settings.num_blocks, keeps_hashes=settings.enable_prefix_caching)
        self.queried_tokens = self.hit_tokens = 0
        self._settings = settings
        self._watermark_blocks = int(settings.watermark * (settings.num_blocks + 1))

    def copy(self) -> "RequestCache":
        """Copy everything."""
        twin = RequestCache(self._settings)
        twin.pool = self.pool.copy()
        twin.queried_tokens, twin.hit_tokens = self.queried_tokens, self.hit_tokens
        return twin

    def place(
        self, request: Tracked, left: int, threshold: int | None, *, beside_others: bool
    ) -> int | None:
        """Give a waiting request its blocks, those it finds cached and those it computes now.

        left, threshold: what bounds the tokens that it computes now. A watermark of blocks stays
        free where others run. Returns those tokens, None where the request does not fit.
        """
        settings, pool = self._settings, self.pool
        block_size = settings.block_size
        found = self._prefix(request)
        hit = len(found) * block_size
        count = request.tokens - hit
        if threshold is not None:
            count = min(count, threshold)
        if count > left and not settings.enable_chunked_prefill:
            return None
        count = min(count, left)
        whole = request.tokens if settings.reserve_full_isl else hit + count
        spare = pool.free - (self._watermark_blocks if beside_others else 0)
        if -(-whole // block_size) - len(found) + pool.unheld(found) > spare:
            return None
        pool.hold(found)
        request.blocks = found + pool.take(-(-(hit + count) // block_size) - len(found))
        request.named = len(found)
        request.computed = hit
        self.name_blocks(request, hit + count)
        if request.cached is None:
            request.cached = hit
        if request.preemptions == 0:
            self.queried_tokens += request.tokens
            self.hit_tokens += hit
        return count

    def _prefix(self, request: Tracked) -> list[int]:
        """Find the leading blocks that are cached: never all tokens, so that one is computed."""
        if not (self._settings.enable_prefix_caching and request.request.reads_cache):
            return []
        limit = (request.tokens - 1) // self._settings.block_size
        return self.pool.longest_prefix(request.hashes_up_to(limit), limit)

    def name_blocks(self, request: Tracked, tokens: int) -> None:
        """Name the request's blocks that are full at `tokens`, and report those that are new."""
        if not self._settings.enable_prefix_caching:
            request.names_next = self._settings.max_model_len + 1
            return
        block_size = self._settings.block_size
        full, start = tokens // block_size, request.named
        request.names_next = (max(full, start) + 1) * block_size
        if full <= start:
            return
        request.named = full
        hashes = request.hashes_up_to(full)
        stored = BlocksStored(
            request.id,
            request.request.session_id,
            tuple(hashes[start:full]),
            hashes[start - 1] if start else None,
            start,
        )
        self.pool.store(request.blocks[start:full], stored)

    def release(self, request: Tracked) -> None:
        """Take all its blocks back; named ones stay findable."""
        self.pool.release(request.blocks)
        request.blocks = []
        request.named = 0
