"""The fleet and the traffic that `bench simulate` judges predictions on.

Sixteen workers of one served model name: six pairs of model and accelerator, each with settings of
its own (step budget, sequences, block size, version, long-prefill threshold), so that no two kinds
price a request alike. On demand SGLang serves the same pairs instead, some by its other rules.
Traffic is the conversation model's. Load swings between 0.3 and 1.5 times the fleet's measured
capacity in half-hour waves, starting low. Every few minutes something happens to one worker: it
restarts, comes back with other settings, or becomes slower for a while.

Of the requests, 70 % bound their queue wait by 5 to 30 s, as interactive callers do; half name
max_tokens, rounded up as people do. These shares are choices, the trace does not hold them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from leadsman.engine import Engine, EngineSettings, SglangRules
from leadsman.units import Seconds, Tokens
from leadsman_engines.simulated.hardware import Hardware
from leadsman_engines.simulated.make import AnySettings
from leadsman_engines.simulated.presets import presets
from leadsman_engines.simulated.settings import SimulatedSettings
from leadsman_engines.simulated.sglang.settings import SglangSettings

from leadsman_bench.traces import TraceRequest

MODEL = "conversation"
LOWEST_LOAD, HIGHEST_LOAD = 0.3, 1.5
WAVE: Seconds = 1800.0
MEAN_LOAD = (LOWEST_LOAD + HIGHEST_LOAD) / 2
BOUNDS: tuple[Seconds, ...] = (5, 5, 5, 10, 10, 20, 30)
BOUNDED_SHARE = 0.7
CAPPED_SHARE = 0.5
CAPS: tuple[Tokens, ...] = (256, 512, 1024, 2048, 4096)
INCIDENT_EVERY: Seconds = 120.0
DOWN_FOR: Seconds = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """One worker: its name, how its engine is set, what it runs on."""

    name: str
    settings: AnySettings
    hardware: Hardware

    @property
    def engine(self) -> Engine:
        """Whose engine it is."""
        return "sglang" if isinstance(self.settings, SglangSettings) else "vllm"

    @property
    def reported(self) -> EngineSettings:
        """The settings as discovery would report them."""
        own = self.settings
        if isinstance(own, SglangSettings):
            return replace(_sglang(own), hardware=self._device, image=self.hardware.model.name)
        return EngineSettings(
            model=MODEL,
            version=own.version,
            max_num_batched_tokens=own.max_num_batched_tokens,
            max_num_seqs=own.max_num_seqs,
            max_model_len=own.max_model_len,
            block_size=own.block_size,
            num_blocks=own.num_blocks,
            enable_prefix_caching=own.enable_prefix_caching,
            enable_chunked_prefill=own.enable_chunked_prefill,
            long_prefill_token_threshold=own.long_prefill_token_threshold,
            async_scheduling=own.async_scheduling,
            policy=own.policy,
            watermark=own.watermark,
            reserve_full_isl=own.reserve_full_isl,
            hardware=self._device,
            image=self.hardware.model.name,
        )

    @property
    def _device(self) -> str:
        return f"{self.hardware.device.count} x {self.hardware.device.name}"


def _sglang(own: SglangSettings) -> EngineSettings:
    return EngineSettings(
        model=MODEL,
        version=own.version,
        max_num_batched_tokens=own.chunked_prefill_size or own.max_prefill_tokens,
        max_num_seqs=own.max_running_requests,
        max_model_len=own.context_length,
        block_size=own.page_size,
        num_blocks=own.total_pages,
        async_scheduling=not own.disable_overlap_schedule,
        sglang=SglangRules(
            max_prefill_tokens=own.max_prefill_tokens,
            chunked_prefill_size=own.chunked_prefill_size,
            schedule_policy=own.schedule_policy,
            schedule_conservativeness=own.schedule_conservativeness,
            enable_mixed_chunk=own.enable_mixed_chunk,
            enable_priority_scheduling=own.enable_priority_scheduling,
            low_priority_first=own.schedule_low_priority_values_first,
            preemption_threshold=own.priority_scheduling_preemption_threshold,
            prefill_max_requests=own.prefill_max_requests,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a caller asks for besides an answer; None where nothing is asked."""

    max_queue_wait: Seconds | None = None
    max_tokens: Tokens | None = None
    ttft: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """Something that happens to the worker of that number.

    slowdown: factor on its step times from then on; only for "speed". A "reset" forgets what is
    cached, if nothing runs.
    """

    at: Seconds
    worker: int
    kind: Literal["restart", "reconfigure", "speed", "reset"]
    slowdown: float = 1.0


def workers() -> list[WorkerSpec]:
    """Return the sixteen workers."""
    kinds: Sequence[tuple[str, dict[str, int | bool | str]]] = (
        ("llama-3.1-8b-a100", {}),
        ("llama-3.1-8b-a100", {"max_num_batched_tokens": 4096, "block_size": 32}),
        ("llama-3.1-8b-a100", {"max_num_seqs": 32}),
        ("llama-3.1-8b-a100", {"long_prefill_token_threshold": 1024}),
        ("llama-3.1-70b-4xh100", {}),
        ("llama-3.1-70b-4xh100", {"max_num_batched_tokens": 16384, "block_size": 64}),
        ("llama-3.1-70b-4xh100", {"max_num_seqs": 32, "version": "0.32.0"}),
        ("qwen3-30b-a3b-h100", {}),
        ("qwen3-30b-a3b-h100", {"async_scheduling": False}),
        ("qwen3-30b-a3b-h100", {"max_num_batched_tokens": 2048, "block_size": 32}),
        ("qwen3-30b-a3b-h100", {"block_size": 64}),
        ("deepseek-v4-flash-4xh100", {}),
        ("deepseek-v4-flash-4xh100", {"max_num_batched_tokens": 4096, "block_size": 64}),
        ("deepseek-v4-flash-4xh100", {"max_num_seqs": 64}),
        ("mistral-7b-v100", {}),
        ("qwen2.5-0.5b-a10g", {}),
    )
    made = presets()
    return [
        WorkerSpec(
            name=f"{number:02d}-{kind}",
            settings=changed(made[kind].settings, **changes),
            hardware=made[kind].hardware,
        )
        for number, (kind, changes) in enumerate(kinds)
    ]


def sglang_workers() -> list[WorkerSpec]:
    """Return sixteen workers that SGLang serves, two or three of each pair."""
    kinds: Sequence[tuple[str, dict[str, int | bool | str]]] = (
        ("llama-3.1-8b-a100", {}),
        ("llama-3.1-8b-a100", {"chunked_prefill_size": 4096, "page_size": 32}),
        ("llama-3.1-8b-a100", {"max_running_requests": 32}),
        ("llama-3.1-8b-a100", {"schedule_policy": "lpm"}),
        ("llama-3.1-70b-4xh100", {}),
        ("llama-3.1-70b-4xh100", {"chunked_prefill_size": 16384, "page_size": 64}),
        ("llama-3.1-70b-4xh100", {"max_running_requests": 32}),
        ("qwen3-30b-a3b-h100", {}),
        ("qwen3-30b-a3b-h100", {"disable_overlap_schedule": True}),
        ("qwen3-30b-a3b-h100", {"enable_mixed_chunk": True}),
        ("qwen3-30b-a3b-h100", {"page_size": 64}),
        ("deepseek-v4-flash-4xh100", {}),
        ("deepseek-v4-flash-4xh100", {"chunked_prefill_size": 4096, "page_size": 64}),
        ("deepseek-v4-flash-4xh100", {"max_running_requests": 64}),
        ("mistral-7b-v100", {}),
        ("qwen2.5-0.5b-a10g", {}),
    )
    made = presets()
    return [
        WorkerSpec(
            name=f"{number:02d}-sglang-{kind}",
            settings=replace(made[kind].sglang, **changes),  # type: ignore[arg-type]  # as above
            hardware=made[kind].hardware,
        )
        for number, (kind, changes) in enumerate(kinds)
    ]


FLEETS: Mapping[str, Callable[[], list[WorkerSpec]]] = {
    "vllm": workers,
    "sglang": sglang_workers,
}
"""The sixteen workers, by who serves them."""


def changed(settings: SimulatedSettings, **changes: int | bool | str) -> SimulatedSettings:
    """Return the settings with changes; a new block size keeps the cache's tokens as they are."""
    block_size = changes.get("block_size")
    if isinstance(block_size, int):
        tokens = settings.num_blocks * settings.block_size
        changes["num_blocks"] = tokens // block_size
    return replace(settings, **changes)  # type: ignore[arg-type]  # names and types are the caller's


def load_at(at: Seconds) -> float:
    """Return the offered load at that time, in units of capacity."""
    half = (HIGHEST_LOAD - LOWEST_LOAD) / 2
    return MEAN_LOAD - half * math.cos(2 * math.pi * at / WAVE)


def arrival(even: Seconds) -> Seconds:
    """Say when the request comes that would come at `even` were the load always its mean.

    Inverts the load's integral by Newton's method, which converges since the load is positive.
    """
    half = (HIGHEST_LOAD - LOWEST_LOAD) / 2
    rate = 2 * math.pi / WAVE
    at = even
    for _ in range(50):
        missing = even * MEAN_LOAD - (MEAN_LOAD * at - half / rate * math.sin(rate * at))
        if abs(missing) < 1e-9:
            break
        at += missing / max(load_at(at), MEAN_LOAD)
    return at


def wishes(request: TraceRequest, rng: Random) -> Wishes:
    """Draw what the caller of a request asks for."""
    bound = rng.choice(BOUNDS) if rng.random() < BOUNDED_SHARE else None
    cap = None
    if rng.random() < CAPPED_SHARE:
        cap = next(cap for cap in CAPS if cap >= request.output_tokens)
    return Wishes(max_queue_wait=bound, max_tokens=cap)


def incidents(workers: int, rng: Random) -> Iterator[Incident]:
    """Yield incidents for ever, in order of time, on average one every INCIDENT_EVERY."""
    at = 0.0
    recoveries: list[Incident] = []
    while True:
        at += rng.expovariate(1 / INCIDENT_EVERY)
        while recoveries and recoveries[0].at <= at:
            yield recoveries.pop(0)
        worker = rng.randrange(workers)
        kind: Literal["restart", "reconfigure", "speed"]
        kind = rng.choice(("restart", "reconfigure", "speed"))
        if kind != "speed":
            yield Incident(at=at, worker=worker, kind=kind)
            continue
        yield Incident(at=at, worker=worker, kind=kind, slowdown=rng.uniform(1.2, 2.0))
        recoveries.append(Incident(at=at + rng.uniform(120, 600), worker=worker, kind="speed"))
        recoveries.sort(key=lambda incident: incident.at)


def reconfigured(settings: AnySettings, rng: Random) -> AnySettings:
    """Return settings that an operator may roll out next: another step budget, or slots."""
    if isinstance(settings, SglangSettings):
        if rng.random() < 0.5:
            chunk = 8192 if (settings.chunked_prefill_size or 0) <= 4096 else 4096
            return replace(settings, chunked_prefill_size=chunk)
        slots = 128 if settings.max_running_requests <= 64 else 64
        return replace(settings, max_running_requests=slots)
    if rng.random() < 0.5:
        budget = 8192 if settings.max_num_batched_tokens <= 4096 else 4096
        return replace(settings, max_num_batched_tokens=budget)
    slots = 128 if settings.max_num_seqs <= 64 else 64
    return replace(settings, max_num_seqs=slots)
