"""How long a step lasts on real silicon: arithmetic, memory traffic, links, launches and chance.

Model. The linear layers are limited by whichever is slower, multiplying (2 flops a weight and
token, tokens padded to the tile of the matrix units) or streaming the weights in; near the crossing
both show (a 4-norm rather than a maximum). Of a mixture of experts, only those that some token of
the batch chose are streamed: 1 - (1 - k/E)^tokens of them. Attention multiplies every query with
every key before it; a sparse one scores all keys cheaply and attends to a bounded selection. Each
decoding sequence reads its context once. Tensor parallelism pays two all-reduces a layer. Launches
cost a fixed time a step and a little for each sequence.

Chance: each step's time is multiplied by log-normal noise, and rarely the whole engine stalls.

Ignored: CUDA-graph padding of batch sizes, routing skew among experts, clocks under power limits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What attention costs, summed over all layers.

    pair_flops: for each query and each key before it.
    read_bytes: for each context token that one decoded token reads.
    selected: keys that a sparse attention attends to in full; None where all are (pair_flops then
        says it all). selected_pair_flops, selected_read_bytes: the same costs for those.
    """

    pair_flops: float
    read_bytes: float
    selected: int | None = None
    selected_pair_flops: float = 0.0
    selected_read_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The shape of a model, as its card and configuration state it.

    shared_parameters: used by every token. expert_parameters: all experts together.
    weight_bytes: of one parameter in memory. kv_bytes: one token's place in the cache, per replica.
    """

    name: str
    layers: int
    hidden: int
    shared_parameters: float
    attention: Attention
    kv_bytes: float
    weight_bytes: float = 2.0
    expert_parameters: float = 0.0
    experts: int = 1
    experts_per_token: int = 1

    @property
    def active_parameters(self) -> float:
        """Parameters that one token is multiplied with."""
        return (
            self.shared_parameters + self.expert_parameters * self.experts_per_token / self.experts
        )

    @property
    def total_bytes(self) -> float:
        """Memory that the weights take."""
        return (self.shared_parameters + self.expert_parameters) * self.weight_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One replica's accelerators: data-sheet peaks, and the share of each that serving reaches.

    flops, bandwidth, memory, link: of one accelerator, per second or bytes; link None for one.
    """

    name: str
    count: int = 1
    flops: float
    bandwidth: float
    memory: float
    link: float | None = None
    compute_share: float = 0.5
    attention_share: float = 0.35
    bandwidth_share: float = 0.75
    step_overhead: float = 0.004
    sequence_overhead: float = 20e-6
    tile: int = 64
    jitter: float = 0.02
    stalls_per_step: float = 2e-5
    stall_seconds: float = 0.25


class StepTimes(Protocol):
    """What an engine asks of what it runs on."""

    @property
    def device(self) -> Device:
        """What it is, as an engine reports it."""
        ...

    def step_seconds(
        self, chunks: Sequence[tuple[int, int]], decode_contexts: Sequence[int]
    ) -> float:
        """Time one step, without chance."""
        ...

    def decode_seconds(self, sequences: int, context_sum: int, selected_sum: int) -> float:
        """Time a step that only decodes, without chance."""
        ...

    def selected_sum(self, contexts: Sequence[int]) -> int:
        """Sum the contexts, each cut at what attention selects of it; 0 where it selects none."""
        ...

    def by_chance(self, seconds: float, rng: Random) -> float:
        """Add a step's noise."""
        ...


class Hardware:
    """A model on a device: the time of a step, before and after chance."""

    __slots__ = (
        "_attention",
        "_expert_miss",
        "_expert_s",
        "_pair_s",
        "_read_s",
        "_selected_pair_s",
        "_selected_read_s",
        "_shared_s",
        "_token_link_s",
        "_token_s",
        "device",
        "model",
    )

    def __init__(self, model: Model, device: Device) -> None:
        self.model = model
        self.device = device
        self._attention = attention = model.attention
        compute = device.flops * device.count * device.compute_share
        attending = device.flops * device.count * device.attention_share
        memory = device.bandwidth * device.count * device.bandwidth_share
        self._token_s = 2 * model.active_parameters / compute
        self._shared_s = model.shared_parameters * model.weight_bytes / memory
        self._expert_s = model.expert_parameters * model.weight_bytes / memory
        self._expert_miss = 1 - model.experts_per_token / model.experts
        self._pair_s = attention.pair_flops / attending
        self._selected_pair_s = attention.selected_pair_flops / attending
        self._read_s = attention.read_bytes / memory
        self._selected_read_s = attention.selected_read_bytes / memory
        self._token_link_s = 0.0
        if device.link is not None and device.count > 1:
            ring = 2 * (device.count - 1) / device.count
            self._token_link_s = 2 * model.layers * model.hidden * 2 * ring / device.link

    def step_seconds(
        self, chunks: Sequence[tuple[int, int]], decode_contexts: Sequence[int]
    ) -> float:
        """Time one step, without chance.

        chunks: (tokens, context before them) of each prefill chunk in the step.
        decode_contexts: for each sequence that decodes one token, the context that it reads.
        """
        prefill = sum(tokens for tokens, _ in chunks)
        seconds = self.decode_seconds(
            len(decode_contexts), sum(decode_contexts), self.selected_sum(decode_contexts), prefill
        )
        for tokens, context in chunks:
            pairs = tokens * context + tokens * (tokens + 1) / 2
            seconds += self._pair_s * pairs + self.device.sequence_overhead
            if self._attention.selected is not None:
                seconds += self._selected_pair_s * _selected_pairs(
                    tokens, context, self._attention.selected
                )
        return seconds

    def decode_seconds(
        self, sequences: int, context_sum: int, selected_sum: int, prefill: int = 0
    ) -> float:
        """Time a step of `sequences` decodes beside `prefill` tokens, less those tokens' attention.

        context_sum, selected_sum: their contexts, in full and each cut at the selection's size.
        """
        tokens = sequences + prefill
        tile = self.device.tile
        compute = self._token_s * (-(-tokens // tile) * tile)
        weights = self._shared_s
        if self._expert_s:
            weights += self._expert_s * (1 - self._expert_miss**tokens)
        squares = compute * compute, weights * weights
        linear = math.sqrt(math.sqrt(squares[0] * squares[0] + squares[1] * squares[1]))
        return (
            self.device.step_overhead
            + linear
            + self._token_link_s * tokens
            + self.device.sequence_overhead * sequences
            + self._read_s * context_sum
            + self._selected_read_s * selected_sum
        )

    def selected_sum(self, contexts: Sequence[int]) -> int:
        """Sum the contexts, each cut at the selection's size; 0 where attention is not sparse."""
        selected = self._attention.selected
        if selected is None:
            return 0
        return sum(min(context, selected) for context in contexts)

    def by_chance(self, seconds: float, rng: Random) -> float:
        """Add a step's noise, and rarely a stall of a quarter to the whole of its usual length."""
        device = self.device
        if device.jitter:
            seconds *= math.exp(rng.gauss(0.0, device.jitter))
        if device.stalls_per_step and rng.random() < device.stalls_per_step:
            seconds += device.stall_seconds * rng.uniform(0.25, 1.0)
        return seconds


def _selected_pairs(tokens: int, context: int, selected: int) -> float:
    """Count query-key pairs of a chunk when each query attends to at most `selected` keys."""
    growing = min(tokens, max(0, selected - context))
    return growing * context + growing * (growing + 1) / 2 + (tokens - growing) * selected
