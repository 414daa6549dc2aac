"""What an engine's `/metrics` page says of its load, its cache configuration, and its life.

A page has hundreds of lines and is read twice a second from every engine, so only the lines of
the few names that matter are looked for, and only those are parsed, unless they were parsed before:
an engine that idles says the same again. A name that is absent gives None: an engine that does not
say how full its cache is has not said that it is empty.

Source: vLLM 0.33 v1/metrics/loggers.py; SGLang 0.5.23 srt/observability/metrics_collector.py;
prometheus/client_python, ProcessCollector.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from leadsman.records import LoadSample
from leadsman.units import Seconds, WorkerId
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_RUNNING: Final = "vllm:num_requests_running"
_WAITING: Final = "vllm:num_requests_waiting"
_KV_USAGE: Final = "vllm:kv_cache_usage_perc"
_PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
_HITS: Final = "vllm:prefix_cache_hits_total"
_SLEEP: Final = "vllm:engine_sleep_state"
_CONFIG: Final = "vllm:cache_config_info"
_STARTED: Final = "process_start_time_seconds"
_SGLANG: Final = (
    *("num_running_reqs", "num_queue_reqs", "token_usage"),
    *("prompt_tokens_total", "cached_tokens_total"),
)
_NAMES: Final = (
    *(_RUNNING, _WAITING, _KV_USAGE, _PROMPT_TOKENS, _HITS, _SLEEP, _CONFIG, _STARTED),
    *(f"sglang:{name}" for name in _SGLANG),
)
_LINES: Final = re.compile(rb"\n(?:%s)[{ ].*" % "|".join(_NAMES).encode())
"""Begins with a letter that it must begin with, which is found four times as fast as `^` is."""


@dataclass(slots=True)
class RankMetrics:
    """What one engine scheduler says; `prompt_tokens`, `prefix_hits` in tokens since it started.

    Not to be changed once read: pages that say the same share it.
    """

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prompt_tokens: float | None = None
    prefix_hits: float | None = None
    is_awake: bool | None = None

    def has_fallen_since(self, before: "RankMetrics") -> bool:
        """Say whether one of the counters, which only grow, is less than it was."""
        counters = (
            (self.prompt_tokens, before.prompt_tokens),
            (self.prefix_hits, before.prefix_hits),
        )
        return any(now is not None and then is not None and now < then for now, then in counters)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMetrics:
    """One page, by engine index. `cache_config`: the labels as they stand, "None" included."""

    ranks: Mapping[int, RankMetrics] = field(default_factory=dict)
    cache_config: Mapping[str, str] = field(default_factory=dict)
    started_at: Seconds | None = None

    def load(self, rank: int, worker: WorkerId, at: Seconds) -> LoadSample | None:
        """Give one rank's load; None where it does not say both counts."""
        said = self.ranks.get(rank)
        if said is None or said.running is None or said.waiting is None:
            return None
        return LoadSample(
            worker=worker,
            at=at,
            running=said.running,
            waiting=said.waiting,
            kv_usage=said.kv_usage,
            prefix_hits=said.prefix_hits,
        )

    @property
    def is_awake(self) -> bool:
        """Whether no rank says that it sleeps."""
        return all(said.is_awake is not False for said in self.ranks.values())

    def is_of_another_life_than(self, earlier: "EngineMetrics") -> bool:
        """Say whether the engine started anew in between.

        Its cache configuration and its start time stand within a life, and its counters only grow.
        """
        if self.cache_config != earlier.cache_config:
            return True
        if None not in (self.started_at, earlier.started_at):
            return self.started_at != earlier.started_at
        return any(
            said.has_fallen_since(before)
            for rank, said in self.ranks.items()
            if (before := earlier.ranks.get(rank)) is not None
        )


def read_metrics(page: bytes) -> EngineMetrics:
    """Read a page. ValueError where one of its lines that matter is no metric."""
    return _read(b"".join(_LINES.findall(b"\n" + page)))


@lru_cache(maxsize=1024)
def _read(lines: bytes) -> EngineMetrics:
    ranks: dict[int, RankMetrics] = {}
    config: dict[str, str] = {}
    started_at: Seconds | None = None
    for sample in _samples(lines):
        if sample.name == _STARTED:
            started_at = sample.value
            continue
        rank = int(sample.labels.get("engine") or sample.labels.get("dp_rank") or "0")
        said = ranks.setdefault(rank, RankMetrics())
        if sample.name == _CONFIG:
            config = {name: value for name, value in sample.labels.items() if name != "engine"}
        else:
            _note(said, sample)
    return EngineMetrics(ranks=ranks, cache_config=config, started_at=started_at)


def _samples(lines: bytes) -> Iterator[Sample]:
    for family in text_string_to_metric_families(lines.decode()):
        yield from family.samples


def _note(said: RankMetrics, sample: Sample) -> None:
    match sample.name:
        case "vllm:num_requests_running" | "sglang:num_running_reqs":
            said.running = int(sample.value)
        case "vllm:num_requests_waiting" | "sglang:num_queue_reqs":
            said.waiting = int(sample.value)
        case "vllm:kv_cache_usage_perc" | "sglang:token_usage":
            said.kv_usage = sample.value
        case "vllm:prompt_tokens_total":
            said.prompt_tokens = sample.value
        case "vllm:prefix_cache_hits_total":
            said.prefix_hits = sample.value
        case "sglang:cached_tokens_total":
            said.prefix_hits = sample.value + (said.prefix_hits or 0.0)
        case "sglang:prompt_tokens_total":
            said.prompt_tokens = sample.value + (said.prompt_tokens or 0.0)
        case "vllm:engine_sleep_state" if sample.labels.get("sleep_state") == "awake":
            said.is_awake = sample.value == 1.0
