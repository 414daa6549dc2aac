"""What one engine's scheduler is set to: all that a replay of it needs to know."""

from dataclasses import dataclass
from typing import Literal

from leadsman.units import Blocks, Tokens

Policy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings that one worker reports, or that a profile states for it.

    `num_blocks` counts usable KV blocks (vLLM reports one more, the null block).
    `long_prefill_token_threshold` is None where the engine has it off. `windows`: one entry a cache
    group, in the engine's order: its sliding window, None where it attends to everything.
    `retention_interval`: how far apart the windows' states are that stay findable; 0 is only at a
    prompt's end and where prompts part, None is everywhere. `num_lookahead_tokens`: slots that a
    drafter with a cache of its own needs ahead. `is_eagle`: it drafts from the model's own states.
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
    windows: tuple[Tokens | None, ...] = (None,)
    retention_interval: Tokens | None = 0
    num_speculative_tokens: Tokens = 0
    num_lookahead_tokens: Tokens = 0
    is_eagle: bool = False
    hardware: str | None = None
    image: str | None = None

    @property
    def decodes_in_lockstep(self) -> bool:
        """Whether whoever decodes takes one token a step, and holds every block until it ends."""
        return not self.num_speculative_tokens and self.windows == (None,)
