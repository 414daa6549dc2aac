"""What an SGLang server's pages say of its settings, its events and its load.

`/server_info` holds the resolved arguments flat, each rank's own under `internal_states`, and where
KV events are published under `kv_events`. A rank's port is the base port and its number. Everything
is optional: what a page does not say in a form that is understood, it does not say. An order of the
queue that no replay knows is taken for first come, first served, and `unknown_order` says so.

`/v1/loads` has each rank's load, also where the server keeps no metrics.

Source: SGLang 0.5.23 srt/entrypoints/http_server.py, server_info; srt/entrypoints/v1_loads.py;
srt/runtime_context.py; srt/disaggregation/kv_events.py, KVEventsConfig.
"""

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec
from leadsman.engine import SglangOrder, SglangRules
from leadsman.units import Seconds

from leadsman_engines.metrics import EngineMetrics, RankMetrics

ORDERS: Final = frozenset(get_args(SglangOrder))


class _Info(msgspec.Struct):
    version: str | None = None
    served_model_name: str | None = None
    page_size: int | None = None
    max_prefill_tokens: int | None = None
    chunked_prefill_size: int | None = None
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    enable_mixed_chunk: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    priority_scheduling_preemption_threshold: int = 10
    prefill_max_requests: int | None = None
    disable_overlap_schedule: bool = False
    disable_radix_cache: bool = False
    context_length: int | None = None
    max_total_num_tokens: int | None = None
    max_req_input_len: int | None = None
    dp_size: int = 1
    enable_dp_attention: bool = False
    device: str | None = None
    speculative_algorithm: str | None = None


class _Memory(msgspec.Struct):
    token_capacity: int | None = None


class _Rank(msgspec.Struct):
    effective_max_running_requests_per_dp: int | None = None
    memory_usage: _Memory = msgspec.field(default_factory=_Memory)


class _Events(msgspec.Struct):
    publisher: str | None = None
    endpoint_host: str = "*"
    endpoint_port_base: int | None = None
    replay_endpoint_port_base: int | None = None
    topic: str = ""
    block_size: int | None = None
    dp_size: int | None = None
    load_endpoint_port_base: int | None = None
    load_topic: str = "load"


class _Load(msgspec.Struct):
    dp_rank: int = 0
    num_running_reqs: int | None = None
    num_waiting_reqs: int | None = None
    token_usage: float | None = None
    total_prefill_uncached_tokens: float | None = None


class _Loads(msgspec.Struct):
    loads: list[_Load]


PAIRED: Final = frozenset({"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"})
"""Drafters whose cache is keyed by pairs of tokens."""


def read_loads(page: bytes, started_at: Seconds | None = None) -> EngineMetrics:
    """Read a `/v1/loads` page of a server that started then.

    ValueError (msgspec's) where it is none.
    """
    said = msgspec.json.decode(page, type=_Loads, strict=False)
    ranks = {
        one.dp_rank: RankMetrics(
            running=one.num_running_reqs,
            waiting=one.num_waiting_reqs,
            kv_usage=one.token_usage,
            prompt_tokens=one.total_prefill_uncached_tokens,
        )
        for one in said.loads
    }
    return EngineMetrics(ranks=ranks, started_at=started_at)


def is_sglang(info: Any) -> bool:
    """Say whether a `/server_info` page is SGLang's: only its arguments are flat."""
    return isinstance(info, Mapping) and "chunked_prefill_size" in info and "page_size" in info


def sglang_settings(info: Mapping[str, Any]) -> dict[str, Any]:
    """Read the settings that all ranks share; msgspec.ValidationError where one is none."""
    said = msgspec.convert(info, _Info, strict=False)
    rank = _ranks(info)[0] if _ranks(info) else _Rank()
    page = said.page_size or 1
    events = _events(info)
    if events is not None and events.block_size:
        page = events.block_size
    chunk = said.chunked_prefill_size
    chunk = chunk if chunk is not None and chunk > 0 else None
    capacity = rank.memory_usage.token_capacity or said.max_total_num_tokens
    settings = {
        "model": said.served_model_name,
        "version": said.version,
        "block_size": page,
        "num_blocks": None if capacity is None else capacity // page,
        "max_num_seqs": rank.effective_max_running_requests_per_dp,
        "max_num_batched_tokens": chunk or said.max_prefill_tokens,
        "max_model_len": said.context_length,
        "async_scheduling": not said.disable_overlap_schedule,
        "enable_prefix_caching": not said.disable_radix_cache,
        "is_eagle": (said.speculative_algorithm or "").upper() in PAIRED,
    }
    known: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    if said.max_prefill_tokens is not None:
        known["sglang"] = _rules(said, said.max_prefill_tokens, chunk)
    return known


def started_at(info: Mapping[str, Any]) -> Seconds | None:
    """Read when the server started, on its own clock."""
    moment = info.get("startup_time")
    return float(moment) if isinstance(moment, int | float) else None


def unknown_order(info: Mapping[str, Any]) -> str | None:
    """Name the order of the queue where no replay knows it."""
    order = info.get("schedule_policy")
    return order if isinstance(order, str) and order not in ORDERS else None


def sglang_ranks(info: Mapping[str, Any]) -> int:
    """Count the schedulers behind one server."""
    return max(1, msgspec.convert(info, _Info, strict=False).dp_size)


def sglang_event_sources(
    info: Mapping[str, Any], host: str
) -> dict[int, tuple[str, str | None, str]]:
    """Read each rank's (endpoint, replay endpoint, topic), as addresses to connect to."""
    events = _events(info)
    if events is None or events.publisher != "zmq" or events.endpoint_port_base is None:
        return {}
    place, base = _place(events, host), events.endpoint_port_base
    replay = events.replay_endpoint_port_base
    return {
        rank: (
            f"tcp://{place}:{base + rank}",
            None if replay is None else f"tcp://{place}:{replay + rank}",
            events.topic,
        )
        for rank in range(events.dp_size or sglang_ranks(info))
    }


def sglang_load_sources(info: Mapping[str, Any], host: str) -> dict[int, tuple[str, str]]:
    """Read where each rank pushes its load: (endpoint, topic); empty where it does not."""
    events = _events(info)
    if events is None or events.load_endpoint_port_base is None:
        return {}
    place, base = _place(events, host), events.load_endpoint_port_base
    ranks = range(events.dp_size or sglang_ranks(info))
    return {rank: (f"tcp://{place}:{base + rank}", events.load_topic) for rank in ranks}


def _place(events: _Events, host: str) -> str:
    named = events.endpoint_host
    place = host if named in ("*", "0.0.0.0", "::", "[::]") else named  # noqa: S104
    return f"[{place}]" if ":" in place.strip("[]") else place


def _rules(said: _Info, most: int, chunk: int | None) -> SglangRules:
    order = said.schedule_policy
    return SglangRules(
        max_prefill_tokens=most,
        chunked_prefill_size=chunk,
        schedule_policy=msgspec.convert(order if order in ORDERS else "fcfs", SglangOrder),
        schedule_conservativeness=said.schedule_conservativeness,
        enable_mixed_chunk=said.enable_mixed_chunk,
        enable_priority_scheduling=said.enable_priority_scheduling,
        low_priority_first=said.schedule_low_priority_values_first,
        preemption_threshold=said.priority_scheduling_preemption_threshold,
        prefill_max_requests=said.prefill_max_requests,
        steps_together=said.enable_dp_attention and said.dp_size > 1,
    )


def _ranks(info: Mapping[str, Any]) -> list[_Rank]:
    states = info.get("internal_states")
    return msgspec.convert(states, list[_Rank], strict=False) if isinstance(states, list) else []


def _events(info: Mapping[str, Any]) -> _Events | None:
    told = info.get("kv_events")
    return msgspec.convert(told, _Events, strict=False) if isinstance(told, Mapping) else None
