"""What a user states about an engine, for all that the engine does not tell itself.

Every field may be absent. What an engine says of itself goes before what is stated for it: a
statement is written once, and an engine is restarted with other settings many times. Only where
its events are reached is better known from outside, so there the statement goes first.
"""

from dataclasses import dataclass

from leadsman.engine import EngineSettings, Policy
from leadsman.records import STORE
from leadsman.units import Blocks, Tokens, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Statements about one engine, or about a set of like ones.

    num_blocks: usable KV blocks of one rank (vLLM's num_gpu_blocks - 1).
    num_speculative_tokens: drafts that are tried a step; num_lookahead_tokens: as many where the
    drafter has a cache of its own (EAGLE, MTP, a draft model).
    retention_interval: vLLM's prefix_cache_retention_interval.
    kv_events, kv_replay: ZMQ endpoints of the first rank; each further one's port is one higher.
    kv_events may be the URL of TensorRT-LLM's `/kv_cache_events`: it is drained, by nobody else.
    kv_events "off": the engine publishes none, and nobody is to look for them.
    """

    model: str | None = None
    version: str | None = None
    max_num_batched_tokens: Tokens | None = None
    max_num_seqs: int | None = None
    max_model_len: Tokens | None = None
    block_size: Tokens | None = None
    num_blocks: Blocks | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: Tokens | None = None
    async_scheduling: bool | None = None
    policy: Policy | None = None
    watermark: float | None = None
    reserve_full_isl: bool | None = None
    num_speculative_tokens: Tokens | None = None
    num_lookahead_tokens: Tokens | None = None
    retention_interval: Tokens | None = None
    hardware: str | None = None
    image: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None


EMPTY_PROFILE = EngineProfile()

SETTINGS_FIELDS = tuple(
    name for name in EngineSettings.__slots__ if name in EngineProfile.__slots__
)
"""The fields that a profile can state of an engine's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStore:
    """A store that the engines of one model share.

    One of lmcache: URL of LMCache's coordinator; mooncake: URL of the metrics port of Mooncake's
    master. model: as requests name it; stored_as: as the store does, where that is another name
    (LMCache takes vLLM's `--model`, vLLM's keys in Mooncake the last part of its path).
    block_size: the engines'.
    """

    lmcache: str | None = None
    mooncake: str | None = None
    model: str
    block_size: Tokens
    stored_as: str | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return self.lmcache or self.mooncake or ""

    @property
    def worker(self) -> WorkerId:
        """The name that its records have."""
        return WorkerId(f"{STORE}{self.url} {self.model}")

    @property
    def name_there(self) -> str:
        """What the store calls the model."""
        if self.stored_as is not None or self.lmcache is not None:
            return self.stored_as or self.model
        return self.model.rstrip("/").rpartition("/")[-1]
