"""What the core knows of one request: its size, its identity in blocks, and its wishes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from leadsman.units import BlockKey, Keys, RequestId, Seconds, Tokens

ENDLESS: Final[Tokens] = 1 << 31
"""More than any context holds: an answer without a cap goes on until its context is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as the picker sees it, before any worker is chosen.

    keys: block size → block keys of the prompt's full blocks; a size that is absent is unknown,
        and nothing is credited on workers of that size.
    tokens_are_exact: False where `prompt_tokens` is an estimate.
    waited: seconds that the caller has already waited before `arrived_at`.
    priority: the engine's, as the caller set it. importance: of its objective, as the pool's owner
        declared it; who is more important goes first where requests are held.
    min_tokens: its answer does not end before, whatever it says.
    reads_cache: False where the engine will not read its prefix cache (prompt logprobs).
    endpoints: the only `ip:port` that may serve it, by the gateway's subset hint; None: any.
    """

    id: RequestId
    model: str
    prompt_tokens: Tokens
    arrived_at: Seconds
    keys: Mapping[Tokens, Keys] = field(default_factory=dict)
    tokens_are_exact: bool = True
    waited: Seconds = 0.0
    max_tokens: Tokens | None = None
    min_tokens: Tokens = 0
    priority: int = 0
    importance: int = 0
    tenant: str | None = None
    session: str | None = None
    objective: str | None = None
    max_queue_wait: Seconds | None = None
    ttft_objective: Seconds | None = None
    prefers_cache: bool = False
    reads_cache: bool = True
    endpoints: frozenset[str] | None = None
    _listed: dict[Tokens, list[BlockKey]] = field(default_factory=dict, repr=False, compare=False)

    def waited_until(self, now: Seconds) -> Seconds:
        """Give how long the caller has waited by `now`: before it came, and since."""
        return self.waited + max(0.0, now - self.arrived_at)

    def key_list(self, block_size: Tokens) -> list[BlockKey]:
        """List the keys of one block size; made once for all workers that are asked."""
        listed = self._listed.get(block_size)
        if listed is None:
            keys = self.keys.get(block_size)
            listed = self._listed[block_size] = [] if keys is None else keys.tolist()
        return listed
