"""What one prefill pass of an SGLang scheduler may still admit.

Two budgets of computation, `rem_input` and `rem_chunk`, and two of memory: what is free or
evictable, less what those who run may still need (`total`), and less what this pass allocates
(`current`). Every charge is in whole pages and takes one page more, for the page that a request
begins. A spent budget ends the pass; a lack of memory also keeps the next ones from being tried
until somebody leaves.
Source: SGLang 0.5.23 srt/mem_cache/prefill_budget.py, PrefillBudget; managers/schedule_policy.py,
PrefillAdder._update_prefill_budget, budget_state, add_chunked_req, _select_prefill_admission.
"""

from enum import Enum, auto

from leadsman.engine import SglangRules
from leadsman.sequence import Hit
from leadsman.units import Blocks, Tokens

CLIP: Tokens = 4096
"""An answer is never taken to need more than so many tokens."""


class Verdict(Enum):
    """Whether the pass goes on: SGLang's AddReqResult."""

    OPEN = auto()
    FULL = auto()
    SPENT = auto()


class Budget:
    """One pass. `left`: tokens that are free or evictable; `kept`: what those who run may need."""

    __slots__ = ("_current", "_page", "_total", "chunk", "input", "left")

    def __init__(
        self, rules: SglangRules, page: Tokens, free: Blocks, kept: float, mixed: int
    ) -> None:
        self._page = page
        self.left = free * page
        self.input = rules.max_prefill_tokens - mixed
        chunk = rules.chunked_prefill_size
        self.chunk = None if chunk is None else chunk - mixed
        self._total, self._current = mixed + kept, mixed

    @property
    def total(self) -> float:
        """Tokens that a newcomer may come to need."""
        return self.left - self._total

    @property
    def verdict(self) -> Verdict:
        """Whether one more may be tried."""
        if self.total <= 0 or self.left - self._current <= 0:
            return Verdict.FULL
        if self.input <= 0 or (self.chunk is not None and self.chunk <= 0):
            return Verdict.SPENT
        return Verdict.OPEN

    def free_up(self, blocks: Blocks, kept: float) -> None:
        """Somebody who ran was sent back: so many blocks, and what was kept for it."""
        self.left += blocks * self._page
        self._total -= kept

    def go_on(self, missing: Tokens, answer: Tokens) -> Tokens:
        """Charge the next chunk of the prompt that is under way; returns its length."""
        assert self.chunk is not None
        most = min(self.chunk, int(self.total))
        n = min(missing, most if most > 0 else self.chunk)
        self._charge(n, answer if n == missing else 0)
        return n

    def admit(
        self, missing: Tokens, hit: Hit, answer: tuple[Tokens, Tokens], *, is_first: bool
    ) -> Tokens | Verdict:
        """Charge a prompt's first chunk and return its length; or say what forbids it.

        answer: tokens that it may still get, and those that it might have got in all.
        """
        page = self._page
        unpinned = (hit.tokens // page - hit.pinned) * page
        self.left -= unpinned
        n = self._fitting(missing, hit.tokens, answer[0], is_first=is_first)
        if isinstance(n, Verdict):
            self.left += unpinned
            return n
        self._charge(n, answer[1] if n == missing else 0)
        return n

    def _fitting(
        self, missing: Tokens, start: Tokens, answer: Tokens, *, is_first: bool
    ) -> Tokens | Verdict:
        page, chunk = self._page, self.chunk
        if missing + answer + page >= self.total:
            return Verdict.FULL
        paged = -(-missing // page) * page
        if chunk is None:
            return missing if is_first or paged < self.input else Verdict.SPENT
        if paged <= chunk:
            return missing
        end = (start + chunk // page * page) // page * page
        return end - start if end > start else Verdict.SPENT

    def _charge(self, n: Tokens, answer: Tokens) -> None:
        paged = -(-n // self._page) * self._page
        self._total += paged + self._page + answer
        self._current += paged + self._page
        self.input -= paged
        if self.chunk is not None:
            self.chunk -= paged
