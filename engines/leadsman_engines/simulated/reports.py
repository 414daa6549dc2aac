"""What an engine says about itself: metrics, settings, event sources.

`num_gpu_blocks` is one above the usable blocks (the null block). Scheduler settings appear only in
`/server_info`, which only a server in development mode has.

Source: vLLM 0.32 v1/metrics/loggers.py; entrypoints/serve/dev/server_info; config/*.py.
"""

import re
from collections.abc import Mapping
from typing import Any

from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.live import LiveEngine
from leadsman_engines.simulated.publish import KEPT_BATCHES, EventPublisher

FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip


class FirstTokenTimes:
    """The histogram of times to first token, from arrival at the server."""

    def __init__(self) -> None:
        self._counts = [0] * (len(FIRST_TOKEN_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Add one request's."""
        bucket = sum(seconds > edge for edge in FIRST_TOKEN_BUCKETS)
        self._counts[bucket] += 1
        self._sum += seconds

    def lines(self, labels: str, engine: str = "vllm") -> list[str]:
        """Write it as Prometheus reads it."""
        name = f"{engine}:time_to_first_token_seconds"
        written, total = [f"# TYPE {name} histogram"], 0
        edges = [*map(str, FIRST_TOKEN_BUCKETS), "+Inf"]
        for edge, number in zip(edges, self._counts, strict=True):
            total += number
            written.append(f'{name}_bucket{{{labels},le="{edge}"}} {total}')
        return [
            *written,
            f"{name}_sum{{{labels}}} {self._sum}",
            f"{name}_count{{{labels}}} {total}",
        ]


def metrics(live: LiveEngine[SimulatedEngine], first_tokens: FirstTokenTimes) -> str:
    """Write the page that /metrics serves."""
    engine, counters = live.engine, live.counters
    labels = f'engine="0",model_name="{engine.settings.model}"'
    gauges = {
        "num_requests_running": engine.running,
        "num_requests_waiting": engine.waiting,
        "kv_cache_usage_perc": engine.kv_usage,
    }
    counts = {
        "prefix_cache_queries": engine.scheduler.cache.queried_tokens,
        "prefix_cache_hits": engine.scheduler.cache.hit_tokens,
        "num_preemptions": engine.scheduler.preemptions,
        "prompt_tokens": counters.prompt_tokens,
        "prompt_tokens_cached": counters.cached_tokens,
        "generation_tokens": counters.generated_tokens,
    }
    lines: list[str] = []
    for name, value in gauges.items():
        lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {float(value)}"]
    for name, value in counts.items():
        lines += [
            f"# TYPE vllm:{name}_total counter",
            f"vllm:{name}_total{{{labels}}} {float(value)}",
        ]
    ends = {"stop": counters.stopped, "length": counters.lengths, "abort": counters.aborted}
    lines.append("# TYPE vllm:request_success_total counter")
    lines += [
        f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(number)}'
        for reason, number in ends.items()
    ]
    lines += first_tokens.lines(labels)
    info = ",".join(f'{name}="{value}"' for name, value in _cache_config(engine).items())
    lines += [
        "# TYPE vllm:cache_config_info gauge",
        f'vllm:cache_config_info{{{info},engine="0"}} 1.0',
    ]
    return "\n".join(lines) + "\n"


def _cache_config(engine: SimulatedEngine) -> dict[str, Any]:
    settings = engine.settings
    return {
        "block_size": settings.block_size,
        "cache_dtype": "auto",
        "enable_prefix_caching": settings.enable_prefix_caching,
        "gpu_memory_utilization": 0.9,
        "hash_block_size": None,
        "kv_cache_size_tokens": settings.num_blocks * settings.block_size,
        "num_gpu_blocks": settings.num_blocks + 1,
        "num_gpu_blocks_override": None,
        "prefix_caching_hash_algo": "sha256",
        "sliding_window": None,
    }


def server_info(engine: SimulatedEngine, publisher: EventPublisher | None) -> dict[str, Any]:
    """Write what /server_info?config_format=json says."""
    settings, device = engine.settings, engine.hardware.device
    return {
        "vllm_config": {
            "model_config": {
                "model": settings.model,
                "tokenizer": settings.model,
                "max_model_len": settings.max_model_len,
                "served_model_name": settings.model,
                "enable_prompt_embeds": False,
            },
            "cache_config": _cache_config(engine),
            "parallel_config": {
                "tensor_parallel_size": device.count,
                "pipeline_parallel_size": 1,
                "data_parallel_size": 1,
                "data_parallel_rank": 0,
            },
            "scheduler_config": {
                "runner_type": "generate",
                "max_num_batched_tokens": settings.max_num_batched_tokens,
                "max_num_seqs": settings.max_num_seqs,
                "max_model_len": settings.max_model_len,
                "long_prefill_token_threshold": settings.long_prefill_token_threshold or 0,
                "enable_chunked_prefill": settings.enable_chunked_prefill,
                "policy": settings.policy,
                "scheduler_reserve_full_isl": settings.reserve_full_isl,
                "watermark": settings.watermark,
                "async_scheduling": settings.async_scheduling,
            },
            "kv_events_config": _told_to_listen(event_source(publisher)),
        },
        "vllm_env": {"VLLM_SERVER_DEV_MODE": True},
        "system_env": {
            "is_cuda_available": "True",
            "nvidia_gpu_models": "\n".join(
                f"GPU {number}: {device.name}" for number in range(device.count)
            ),
        },
    }


def event_source(publisher: EventPublisher | None) -> Mapping[str, Any] | None:
    """Write where this rank's events are published; None where they are not."""
    if publisher is None:
        return None
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": publisher.endpoint,
        "replay_endpoint": publisher.replay_endpoint,
        "buffer_steps": KEPT_BATCHES,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": "",
    }


def _told_to_listen(source: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Write it as its command line would have it: a vLLM listens at a wildcard only."""
    if source is None:
        return None
    address = re.compile(r"^tcp://.*(?=:)")
    sockets = {name: source[name] for name in ("endpoint", "replay_endpoint") if source[name]}
    return {**source, **{name: address.sub("tcp://*", at) for name, at in sockets.items()}}
