"""How many KV blocks each sequence holds, and how many are free: counts, not blocks.

A sequence has a table in each cache group, of as many rows as its tokens need. Where a group
attends to a sliding window only, blocks below it are given back while the sequence runs, and its
table starts with rows that hold nothing. A state is kept where a step ends, so of the rows that a
step adds only the last holds a block.

Ignored: whose blocks are shared. Blocks that several running sequences hold count as those of the
first, and are free when it ends; who follows an engine's events knows better, and says so.
Source: vLLM 0.33 v1/core/kv_cache_manager.py, KVCacheManager.allocate_slots;
v1/core/single_type_kv_cache_manager.py, SlidingWindowManager.
"""

from leadsman.crowd import Crowd
from leadsman.engine import EngineSettings
from leadsman.sequence import Hit, Seq
from leadsman.units import Blocks, Tokens
from leadsman.windows import STATE


class Tables(Crowd):
    """Of the free blocks, `unused` hold nothing and are given out first.

    lost: the cached blocks that new tokens have been given: how far eviction has come.
    """

    __slots__ = ("_caps", "_others", "_skipping", "_states", "free", "lost", "unused")

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.free: Blocks = settings.num_blocks
        self.unused: Blocks = settings.num_blocks
        self.lost: Blocks = 0
        self._skipping = any(window is not None for window in settings.windows)
        states = settings.windows.count(STATE) if settings.aligns_chunks else 0
        self._states, self._others = states, len(settings.windows) - states
        self._caps = [
            self._most_rows(window)
            for window in settings.windows
            if not (settings.aligns_chunks and window == STATE)
        ]

    def _most_rows(self, window: Tokens | None) -> Blocks | None:
        """Bound the rows that one sequence's table in a group can hold blocks in at a time."""
        if window is None:
            return None
        settings = self.settings
        in_flight = settings.max_num_batched_tokens * (2 if settings.async_scheduling else 1)
        return self._blocks(min(window - 1 + in_flight, settings.max_model_len)) + 1

    def _skipped(self, window: Tokens | None, settled: Tokens) -> Blocks:
        """Count the leading rows of a table that are below the window of the next token."""
        if window is None:
            return 0
        return max(0, settled - window + 1) // self.settings.block_size

    def _take(self, blocks: Blocks) -> None:
        self.free -= blocks
        self.unused -= blocks
        if self.unused < 0:
            self.lost -= self.unused
            self.unused = 0

    def _reach(self, seq: Seq, n: Tokens) -> Tokens:
        """Give the tokens that there must be slots for if `n` more are computed."""
        settings = self.settings
        if self.in_lockstep:
            return seq.computed + n
        most = seq.computed + seq.rejected + n + settings.num_lookahead_tokens
        return min(most, settings.max_model_len)

    def _lacking(self, rows: Blocks) -> Blocks:
        """Count the blocks of so many rows more in each group: of a state only the last is kept."""
        return rows * self._others + self._states if rows > 0 else 0

    def _short(self, seq: Seq, n: Tokens) -> Blocks:
        """Count the blocks that a running sequence lacks for `n` more tokens."""
        if self.in_lockstep and seq.id in self.decoding:
            return int((seq.computed + self.tick - seq.base) % self.settings.block_size == 0)
        return self._lacking(self._blocks(self._reach(seq, n)) - seq.rows)

    def _stretch(self, seq: Seq, n: Tokens) -> None:
        """Give a running sequence what it lacks for `n` more tokens."""
        more = self._short(seq, n)
        if not (self.in_lockstep and seq.id in self.decoding):
            seq.rows = max(seq.rows, self._blocks(self._reach(seq, n)))
            seq.blocks += more
        self._take(more)

    def _slide(self, seq: Seq) -> None:
        """Take back what is below the windows, of what has been computed for certain."""
        if not self._skipping:
            return
        settled, rows = seq.computed + seq.rejected - seq.flying, seq.rows
        held = sum(rows - min(rows, self._skipped(w, settled)) for w in self.settings.windows)
        self.free += seq.blocks - held
        seq.blocks = held

    def _may_enter(self, seq: Seq, hit: Hit, n: Tokens, spare: Blocks) -> bool:
        """Say whether a request fits that finds `hit` and computes `n` more; `spare` stay free."""
        settings, size = self.settings, self.settings.block_size
        if self.in_lockstep:
            reach = seq.target if settings.reserve_full_isl else hit.tokens + n
            return -(-reach // size) - hit.pinned + spare <= self.free
        found = hit.tokens // size
        adopted = sum(found - self._skipped(w, hit.tokens) for w in settings.windows) - hit.pinned
        left = self.free - spare - adopted
        whole = self._blocks(min(seq.target, settings.max_model_len))
        if settings.reserve_full_isl:
            rows = (whole if cap is None else min(whole, cap) for cap in self._caps)
            states = self._states if whole > found else 0
            if sum(max(0, most - found) for most in rows) + states > left:
                return False
        ahead = hit.tokens + n + settings.num_lookahead_tokens
        rows_now = self._blocks(min(ahead, settings.max_model_len))
        return self._lacking(rows_now - found) <= left

    def _seat(self, seq: Seq, hit: Hit, n: Tokens) -> None:
        """Give a request that is admitted its tables: what it finds, and room for `n` more."""
        windows, found = self.settings.windows, hit.tokens // self.settings.block_size
        if self.in_lockstep:
            seq.computed, seq.shared = hit.tokens, hit.pinned
            seq.rows = seq.blocks = self._blocks(hit.tokens + n)
            self.free -= found - hit.pinned
            self._take(seq.rows - found)
            return
        skipped = sum(self._skipped(window, hit.tokens) for window in windows)
        seq.computed, seq.rejected = hit.tokens, 0
        seq.rows = max(found, self._blocks(self._reach(seq, n)))
        adopted, more = found * len(windows) - skipped, self._lacking(seq.rows - found)
        seq.blocks, seq.shared = adopted + more, hit.pinned
        self.free -= adopted - hit.pinned
        self._take(more)

    def _release(self, seq: Seq) -> None:
        """Take back all that a sequence holds."""
        self.free += seq.blocks - seq.shared
