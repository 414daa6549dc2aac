"""What a simulated engine is set to, in vLLM's own words for its settings."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSettings:
    """One engine's scheduler, cache and front end.

    num_blocks: usable KV blocks (vLLM reports one more, the null block).
    long_prefill_token_threshold: None is off.
    api_delay, api_delay_per_token: seconds between a request's arrival at the HTTP server and the
        scheduler's first sight of it. Measured on vLLM 0.32: 4.3 ms + 0.75 us a token.

    Raises ValueError where one longest request would not fit the budget of blocks: such an engine
    would wait for ever, and vLLM refuses to start.
    """

    model: str
    version: str = "0.33.0"
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_blocks: int
    long_prefill_token_threshold: int | None = None
    async_scheduling: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    watermark: float = 0.0
    reserve_full_isl: bool = True
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    api_delay: float = 0.004
    api_delay_per_token: float = 0.75e-6

    def __post_init__(self) -> None:
        if self.num_blocks * self.block_size < self.max_model_len:
            raise ValueError(
                f"{self.num_blocks} blocks of {self.block_size} tokens hold no request of "
                f"max_model_len {self.max_model_len}"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ValueError("without chunked prefill the budget must hold max_model_len")
        if self.policy not in ("fcfs", "priority"):
            raise ValueError(f"policy is fcfs or priority, not {self.policy!r}")
        if min(self.max_num_batched_tokens, self.max_num_seqs, self.block_size) < 1:
            raise ValueError("budget, sequences and block size must be at least 1")
        if self.max_num_seqs > self.max_num_batched_tokens:
            raise ValueError("max_num_seqs above max_num_batched_tokens: not every decode fits")

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version: some rules changed between them."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)
