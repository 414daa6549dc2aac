"""What one engine's scheduler is set to: all that a replay of it needs to know."""

from dataclasses import dataclass
from typing import Literal

from leadsman.units import Blocks, Tokens

Policy = Literal["fcfs", "priority"]
Engine = Literal["vllm", "sglang"]
SglangOrder = Literal["fcfs", "lpm", "lof"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangRules:
    """What an SGLang scheduler is set to beyond what every engine has.

    chunked_prefill_size: None where prompts are never cut. Priorities count only where
    `enable_priority_scheduling`; the higher goes first unless `low_priority_first`.
    `steps_together`: with the other ranks of its server (attention in parallel over ranks).
    """

    max_prefill_tokens: Tokens = 16384
    chunked_prefill_size: Tokens | None = 8192
    schedule_policy: SglangOrder = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    enable_priority_scheduling: bool = False
    low_priority_first: bool = False
    preemption_threshold: int = 10
    prefill_max_requests: int | None = None
    steps_together: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings that one worker reports, or that a profile states for it.

    `num_blocks` counts usable KV blocks (vLLM reports one more, the null block).
    `long_prefill_token_threshold` is None where the engine has it off. `windows`: one entry a cache
    group, in the engine's order: its sliding window, None where it attends to everything.
    `retention_interval`: how far apart the windows' states are that stay findable; 0 is only at a
    prompt's end and where prompts part, None is everywhere. `num_lookahead_tokens`: slots that a
    drafter with a cache of its own needs ahead. `is_eagle`: it drafts from the model's own states.
    `aligns_chunks`: a prompt is cut where a block ends, since a hybrid model's state is kept there
    (vLLM's mamba_cache_mode "align"); a window of 2 is then a state, of which a step needs one.
    `sglang` says that the engine is one, and how it is set: then a block is a page, `max_num_seqs`
    is max_running_requests, `max_num_batched_tokens` the most that one step computes of a prompt,
    and `async_scheduling` its overlap schedule.
    """

    model: str
    version: str
    max_num_batched_tokens: Tokens
    max_num_seqs: int
    max_model_len: Tokens
    block_size: Tokens
    num_blocks: Blocks
    sglang: SglangRules | None = None
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
    aligns_chunks: bool = False
    hardware: str | None = None
    image: str | None = None

    @property
    def longest_prompt(self) -> Tokens:
        """Give the most tokens that a prompt can have so that the engine computes one more."""
        return max(1, min(self.max_model_len, self.num_blocks * self.block_size) - 1)

    @property
    def decodes_in_lockstep(self) -> bool:
        """Whether whoever decodes takes one token a step, and holds every block until it ends."""
        return not self.num_speculative_tokens and self.windows == (None,)

    @property
    def engine(self) -> Engine:
        """Which engine it is: whose rules a replay of it follows."""
        return "vllm" if self.sglang is None else "sglang"

    @property
    def is_first_come(self) -> bool:
        """Whether requests are admitted in the order in which they come."""
        rules = self.sglang
        if rules is None:
            return self.policy == "fcfs"
        return rules.schedule_policy == "fcfs" and not rules.enable_priority_scheduling
