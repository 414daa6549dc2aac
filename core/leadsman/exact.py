"""The replay with every block kept for itself: what is cached, stored and removed, at each step.

It serves everybody one by one, and so needs more time; a price is asked of the counting `Replay`.
It is what that one is held against, and what is itself held against the real scheduler: `make
oracle`. Blocks are named as soon as they are full, before they are computed: a request that is
admitted later in the same step finds them. An asynchronous engine learns of a step's tokens when
the next one is scheduled already, and names what they fill then.
Source: vLLM 0.33 v1/core/kv_cache_manager.py, allocate_slots; v1/core/kv_cache_coordinator.py,
replay_boundaries; v1/core/single_type_kv_cache_manager.py, cache_blocks, remove_skipped_blocks and
reachable_block_mask.
"""

from collections.abc import Callable

from leadsman.copies import Copies
from leadsman.engine import EngineSettings
from leadsman.prefixes import Found, Prefixes, Row
from leadsman.replay import Replay
from leadsman.sequence import NOTHING, Hit, Lookup, Seq, Step
from leadsman.units import BlockKey, Blocks, RequestId, Tokens
from leadsman.windows import STATE


class Exact(Replay):
    """One engine scheduler and its blocks.

    key_of: names the n-th block of a sequence. looks_ahead: tokens behind a block that its name has
    to cover too.
    """

    __slots__ = (
        "_boundaries", "_drops", "_found", "_fresh", "_named", "_names_late", "_news", "_prefixes",
        "_tables", "copies", "key_of", "looks_ahead",
    )  # fmt: skip

    def __init__(self, settings: EngineSettings, key_of: Callable[[Seq, Blocks], BlockKey]) -> None:
        super().__init__(settings)
        self.in_lockstep = False
        self.key_of = key_of
        self.copies = Copies(settings.num_blocks)
        self._drops = settings.is_eagle and not self._rules.hashes_next
        self.looks_ahead = int(settings.is_eagle and self._rules.hashes_next)
        self._names_late = self._rules.names_drafted and settings.num_speculative_tokens > 0
        self._prefixes = Prefixes(
            self.copies, settings.windows, settings.block_size, drops=self._drops
        )
        self._tables: dict[RequestId, list[list[Row]]] = {}
        self._named: dict[RequestId, Blocks] = {}
        self._boundaries: dict[RequestId, Tokens] = {}
        self._found: dict[RequestId, Found] = {}
        self._news: dict[Seq, Tokens] = {}
        self._fresh: set[tuple[int, BlockKey]] = set()

    def step(self, lookup: Lookup) -> Step:
        """See `Replay`."""
        self._fresh.clear()
        return super().step(lookup)

    def lookup(self, seq: Seq) -> Hit:
        """Look up what a request finds cached if it is admitted now."""
        settings, windows = self.settings, self.settings.windows
        size = settings.block_size
        self._found[seq.id] = Found([[] for _ in windows], 0)
        if not (settings.enable_prefix_caching and seq.reads_cache):
            return NOTHING
        known, most = (seq.target - self.looks_ahead) // size, (seq.target - 1) // size
        found = self._prefixes.find(lambda n: self.key_of(seq, n), known, min(known, most))
        self._found[seq.id] = found
        length = len(found.rows[0])
        self._boundaries[seq.id] = found.longest * size if found.longest > length else 0
        pinned = 0
        for window, rows in zip(windows, found.rows, strict=True):
            seen = rows[self._skipped(window, length * size) :]
            pinned += self.copies.held(place for place in seen if place is not None)
        return Hit(length * size, pinned)

    # -- blocks ----------------------------------------------------------------------------------

    def _is_state(self, group: int) -> bool:
        return self.settings.aligns_chunks and self.settings.windows[group] == STATE

    def _parting(self, seq: Seq) -> Tokens:
        return self._boundaries.get(seq.id, 0)

    def _may_enter(self, seq: Seq, hit: Hit, n: Tokens, spare: Blocks) -> bool:
        """See `Tables`. A state that is named in this step is not there before its end."""
        if hit.tokens and self._fresh:
            key = self.key_of(seq, hit.tokens // self.settings.block_size - 1)
            groups = range(len(self.settings.windows))
            if any((group, key) in self._fresh for group in groups):
                return False
        return super()._may_enter(seq, hit, n, spare)

    def _seat(self, seq: Seq, hit: Hit, n: Tokens) -> None:
        super()._seat(seq, hit, n)
        found = hit.tokens // self.settings.block_size
        tables: list[list[Row]] = []
        for window, rows in zip(self.settings.windows, self._found[seq.id].rows, strict=True):
            skipped = self._skipped(window, hit.tokens)
            adopted = rows[skipped:]
            self.copies.hold(place for place in adopted if place is not None)
            tables.append([*[None] * skipped, *adopted])
        self._tables[seq.id] = tables
        self._named[seq.id] = found
        self._grow(seq, seq.rows)
        self._name(seq, min(seq.computed + n, seq.target), seq.target)

    def _stretch(self, seq: Seq, n: Tokens) -> None:
        known = seq.target - self._news.get(seq, 0)
        super()._stretch(seq, n)
        self._grow(seq, seq.rows)
        self._name(seq, min(seq.computed + seq.rejected + n, known), known)

    def _grow(self, seq: Seq, rows: Blocks) -> None:
        for group, table in enumerate(self._tables[seq.id]):
            if self._is_state(group):
                table.extend([None] * (rows - len(table) - 1))
            table.extend(self.copies.take(rows - len(table)))
        self.free = self.copies.free

    def _slide(self, seq: Seq) -> None:
        settled = seq.computed + seq.rejected - seq.flying
        for window, table in zip(self.settings.windows, self._tables[seq.id], strict=True):
            below = min(len(table), self._skipped(window, settled))
            gone = [place for place in reversed(table[:below]) if place is not None]
            table[:below] = [None] * below
            self.copies.give_back(gone)
        self.free = self.copies.free

    def _release(self, seq: Seq) -> None:
        for table in self._tables.pop(seq.id, ()):
            self.copies.give_back(place for place in reversed(table) if place is not None)
        self._named.pop(seq.id, None)
        self.free = self.copies.free

    # -- names -----------------------------------------------------------------------------------

    def _gain(self, seq: Seq) -> None:
        had = seq.generated
        super()._gain(seq)
        if self.settings.async_scheduling:
            self._news[seq] = seq.generated - had
        elif self._names_late and seq.id in self._tables:
            self._name(seq, seq.target - 1, seq.target)

    def _end(self, seq: Seq, before: Tokens | None) -> None:
        if self._names_late and not self.settings.async_scheduling:
            self._name(seq, seq.target - 1, seq.target)
        super()._end(seq, before)

    def _release_lingering(self) -> None:
        """Process the step before: name what its tokens filled, and let go who has ended."""
        lingering, self._lingering = self._lingering, []
        for seq in self._news:
            if seq.id in self._tables:
                self._name(seq, seq.target - 1, seq.target)
            if seq in lingering:
                self._release(seq)
        self._news.clear()

    def _name(self, seq: Seq, tokens: Tokens, known: Tokens) -> None:
        """Name the blocks that are full at `tokens`, of a sequence of which so many are known."""
        size, start = self.settings.block_size, self._named.get(seq.id, 0)
        full = min(tokens, known - self.looks_ahead) // size
        self._renew(seq, full)
        if not self.settings.enable_prefix_caching or full <= start:
            return
        self._named[seq.id] = full
        for group, table in enumerate(self._tables[seq.id]):
            kept = self._kept(seq, group, start, full)
            filled = [
                (place, self.key_of(seq, number))
                for number, place in enumerate(table[start:full], start)
                if place is not None and number in kept
            ]
            self.copies.name(group, filled)
            if self._is_state(group):
                self._fresh.update((group, key) for _, key in filled)

    def _renew(self, seq: Seq, full: Blocks) -> None:
        """Note that the state at a prompt's last whole block is not there before the step's end."""
        if not self._rules.renews_states or full != (seq.prompt - 1) // self.settings.block_size:
            return
        for group, table in enumerate(self._tables[seq.id]):
            if full and self._is_state(group) and table[full - 1] is not None:
                self._fresh.add((group, self.key_of(seq, full - 1)))

    def _kept(self, seq: Seq, group: int, start: Blocks, full: Blocks) -> set[Blocks] | range:
        """Tell which of the blocks stay findable: of a window those that somebody may resume at."""
        size, interval = self.settings.block_size, self.settings.retention_interval
        need, shift = self._prefixes.needs[group], int(self._drops)
        if need is None or interval is None:
            return range(start, full)
        kept: set[Blocks] = set()
        if segment := interval // size:
            if need >= segment:
                return range(start, full)
            kept.update(
                n for n in range(max(start, shift), full) if (n - shift) % segment >= segment - need
            )
        for boundary in self._resumed_at(seq):
            end = boundary // size + shift
            kept.update(range(max(start, end - need), min(full, end)))
        return kept

    def _resumed_at(self, seq: Seq) -> list[Tokens]:
        """List where a later request may take over: the prompt's end, and where prompts part."""
        size, junction = self.settings.block_size, self._boundaries.get(seq.id, 0)
        ends = [seq.prompt - 1]
        if self._drops:
            ends = [(seq.prompt - 1) // size * size - size, seq.prompt // size * size - size]
            ends = [max(0, end) for end in ends]
        return [*ends, junction] if junction else ends
