"""What a simulated SGLang server is set to, in SGLang's own words for its arguments."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """One server's scheduler, cache and front end, as resolved, for each of its ranks.

    chunked_prefill_size: None where prompts are never cut (SGLang's -1).
    host_tokens: room for tokens in the host's memory (HiCache, written through); 0 is none.
    is_eagle: the cache is keyed by pairs of tokens, as with EAGLE; drafts are always refused.
    dp_size: schedulers behind one port; with enable_dp_attention they step together.
    api_delay, api_delay_per_token: seconds from a request's arrival until a scheduler sees it.

    Raises ValueError where a server so set would not start, or could wait for ever.
    """

    model: str
    version: str = "0.5.23"
    page_size: int
    max_total_num_tokens: int
    max_running_requests: int
    context_length: int
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int | None = 8192
    schedule_policy: Literal["fcfs", "lpm", "lof"] = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    prefill_max_requests: int | None = None
    disable_overlap_schedule: bool = False
    host_tokens: int = 0
    is_eagle: bool = False
    dp_size: int = 1
    enable_dp_attention: bool = False
    api_delay: float = 0.004
    api_delay_per_token: float = 0.75e-6

    def __post_init__(self) -> None:
        if min(self.page_size, self.max_running_requests, self.dp_size) < 1:
            raise ValueError("page size, running requests and ranks must be at least 1")
        if self.schedule_policy not in ("fcfs", "lpm", "lof"):
            raise ValueError(f"schedule_policy is fcfs, lpm or lof, not {self.schedule_policy!r}")
        if self.chunked_prefill_size is not None and self.chunked_prefill_size % self.page_size:
            raise ValueError("chunked_prefill_size must be whole pages")
        if self.max_total_num_tokens < 2 * self.page_size:
            raise ValueError("max_total_num_tokens holds no two pages")

    @property
    def total_pages(self) -> int:
        """Pages of one rank's pool."""
        return self.max_total_num_tokens // self.page_size

    @property
    def longest(self) -> int:
        """Tokens that a prompt and its answer may have together, so that they are ever admitted."""
        return min(self.context_length, (self.total_pages - 1) * self.page_size) - 1

    @property
    def block_size(self) -> int:
        """Tokens of a page, by the name that other engines have for it."""
        return self.page_size

    @property
    def num_blocks(self) -> int:
        """Pages of one rank's pool, by the name that other engines have for it."""
        return self.total_pages

    @property
    def max_model_len(self) -> int:
        """Tokens of a context, by the name that other engines have for it."""
        return self.context_length

    def keyed(self, tokens: int) -> int:
        """Count the whole pages that so many tokens give a key to."""
        return max(0, tokens - self.is_eagle) // self.page_size
