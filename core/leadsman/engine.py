"""What one engine's scheduler is set to: all that a replay of it needs to know."""

from dataclasses import dataclass
from typing import Literal

from leadsman.units import Blocks, Tokens

Policy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings that one worker reports, or that a profile states for it.

    `num_blocks` counts usable KV blocks (vLLM reports one more, the null block).
    `long_prefill_token_threshold` is None where the engine has it off.
    """

    model: str
    version: str
    max_num_batched_tokens: Tokens
    max_num_seqs: int
    max_model_len: Tokens
    block_size: Tokens
    num_blocks: Blocks
    engine: Literal["vllm"] = "vllm"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: Tokens | None = None
    async_scheduling: bool = True
    policy: Policy = "fcfs"
    watermark: float = 0.0
    reserve_full_isl: bool = True
    hardware: str | None = None
    image: str | None = None
