"""What an SGLang server says about itself: settings, metrics, load.

Source: SGLang 0.5.23 srt/entrypoints/http_server.py, server_info; entrypoints/v1_loads.py;
runtime_context.py, describe_kv_events_publisher; observability/metrics_collector.py.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from leadsman_engines.simulated.reports import FirstTokenTimes
from leadsman_engines.simulated.sglang.live import LiveSglang
from leadsman_engines.simulated.sglang.publish import LoadPublisher, SglangPublisher


def server_info(live: LiveSglang, started_at: float, kv_events: Any) -> dict[str, Any]:
    """Write what /server_info says."""
    settings, device = live.engine.settings, live.engine.hardware.device
    capacity = settings.total_pages * settings.page_size
    return {
        "model_path": settings.model,
        "served_model_name": settings.model,
        "page_size": settings.page_size,
        "context_length": settings.context_length,
        "max_total_num_tokens": capacity,
        "max_req_input_len": settings.longest - 1,
        "chunked_prefill_size": settings.chunked_prefill_size or -1,
        "max_prefill_tokens": settings.max_prefill_tokens,
        "max_running_requests": settings.max_running_requests * settings.dp_size,
        "schedule_policy": settings.schedule_policy,
        "schedule_conservativeness": settings.schedule_conservativeness,
        "enable_mixed_chunk": settings.enable_mixed_chunk,
        "enable_priority_scheduling": settings.enable_priority_scheduling,
        "schedule_low_priority_values_first": settings.schedule_low_priority_values_first,
        "priority_scheduling_preemption_threshold": (
            settings.priority_scheduling_preemption_threshold
        ),
        "prefill_max_requests": settings.prefill_max_requests,
        "disable_overlap_schedule": settings.disable_overlap_schedule,
        "disable_radix_cache": False,
        "enable_hierarchical_cache": settings.host_tokens > 0,
        "speculative_algorithm": "EAGLE" if settings.is_eagle else None,
        "speculative_num_draft_tokens": None,
        "dp_size": settings.dp_size,
        "enable_dp_attention": settings.enable_dp_attention,
        "tp_size": device.count,
        "device": "cuda",
        "disaggregation_mode": "null",
        "kv_events": kv_events,
        "startup_time": started_at,
        "version": settings.version,
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": settings.max_running_requests,
                "last_gen_throughput": 0.0,
                "memory_usage": {"token_capacity": capacity},
            }
            for _ in range(settings.dp_size)
        ],
    }


def kv_events(
    live: LiveSglang, events: Sequence[SglangPublisher], loads: Sequence[LoadPublisher]
) -> dict[str, Any] | None:
    """Say where cache events and load are published; None where they are not."""
    if not events:
        return None
    settings = live.engine.settings
    said: dict[str, Any] = {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": _port(events[0].socket.endpoint),
        "replay_endpoint_port_base": _port(events[0].socket.replay_endpoint),
        "topic": "",
        "block_size": settings.page_size,
        "dp_size": settings.dp_size,
    }
    if loads:
        said |= {"load_endpoint_port_base": _port(loads[0].endpoint), "load_topic": "load"}
    return said


def _port(endpoint: str) -> int | None:
    return urlsplit(endpoint).port


def loads(live: LiveSglang, only: int | None) -> list[dict[str, Any]]:
    """Write each rank's load, or one's."""
    return [_load(live, rank) for rank in range(len(live.engine.ranks)) if only in (None, rank)]


def _load(live: LiveSglang, rank: int) -> dict[str, Any]:
    stat = live.load(rank)
    return {
        "dp_rank": rank,
        "num_running_reqs": stat.num_running_reqs,
        "num_waiting_reqs": stat.num_waiting_reqs,
        "num_waiting_uncached_tokens": stat.num_waiting_uncached_tokens,
        "num_used_tokens": stat.num_tokens,
        "num_total_tokens": stat.num_total_tokens,
        "max_total_num_tokens": stat.max_total_num_tokens,
        "max_running_requests": stat.max_running_requests,
        "token_usage": live.engine.usage(rank),
        "total_prefill_uncached_tokens": stat.total_prefill_uncached_tokens,
        "total_prefill_busy_us": stat.total_prefill_busy_us,
        "queues": {"waiting": stat.num_waiting_reqs, "grammar": 0, "paused": 0, "retracted": 0},
    }


def metrics(live: LiveSglang, first_tokens: FirstTokenTimes) -> str:
    """Write the page that /metrics serves."""
    settings, counters, lines = live.engine.settings, live.counters, list[str]()
    is_one = settings.dp_size == 1
    for rank, scheduler in enumerate(live.engine.ranks):
        labels = f'model_name="{settings.model}"' + ("" if is_one else f',dp_rank="{rank}"')
        gauges = {
            "num_running_reqs": len(scheduler.running),
            "num_queue_reqs": len(scheduler.waiting),
            "token_usage": live.engine.usage(rank),
            "new_token_ratio": scheduler.ratio,
            "num_retracted_reqs": scheduler.retractions,
            "max_total_num_tokens": settings.total_pages * settings.page_size,
            "page_size": settings.page_size,
        }
        for name, value in gauges.items():
            if not rank:
                lines.append(f"# TYPE sglang:{name} gauge")
            lines.append(f"sglang:{name}{{{labels}}} {float(value)}")
    labels = f'model_name="{settings.model}"'
    counts = {
        "prompt_tokens": counters.prompt_tokens,
        "generation_tokens": counters.generated_tokens,
        "cached_tokens": counters.cached_tokens,
        "num_aborted_requests": counters.aborted,
    }
    for name, value in counts.items():
        lines += [
            f"# TYPE sglang:{name}_total counter",
            f"sglang:{name}_total{{{labels}}} {float(value)}",
        ]
    return "\n".join([*lines, *first_tokens.lines(labels, "sglang")]) + "\n"
