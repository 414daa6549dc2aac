"""What engines' JSON pages say, in the shapes that versions have given them.

Here bytes become values, so `Any` is allowed. Everything is optional: what a page does not say in
a form that is understood, it does not say. `/server_info` gives its configuration nested, or, as
older versions do, as one printed string; `/kv_event_sources` came as a list, as a list under
"sources", and as an object by rank.

Source: vLLM 0.33 entrypoints/serve/dev/server_info, entrypoints/serve/kv_events.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from leadsman.engine import Policy

from leadsman_engines.metrics import EngineMetrics

_WILDCARD: Final = re.compile(r"//(\*|0\.0\.0\.0|\[::\]|::)(?=:\d+$)")
_PORT: Final = re.compile(r":(\d+)$")
EAGLES: Final = frozenset({"eagle", "eagle3", "mtp", "dflash", "dspark"})
"""Methods that draft from the model's own states. Source: vLLM 0.32 config/speculative.py."""


class _Scheduler(msgspec.Struct):
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    long_prefill_token_threshold: int | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    policy: Policy | None = None
    watermark: float | None = None
    scheduler_reserve_full_isl: bool | None = None


class _Drafter(msgspec.Struct):
    method: str | None = None
    num_speculative_tokens: int | None = None


class _CacheLabels(msgspec.Struct):
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    enable_prefix_caching: bool | None = None
    prefix_cache_retention_interval: int | None = None
    mamba_cache_mode: str | None = None


class _Source(msgspec.Struct):
    endpoint: str | None = None
    replay_endpoint: str | None = None
    topic: str = ""
    data_parallel_rank: int | None = None


def info_settings(info: Any) -> dict[str, Any]:
    """Read the scheduler's settings from `/server_info`; empty where it does not say them.

    msgspec.ValidationError where it says one that is none, such as a token budget of "many".
    """
    config = info.get("vllm_config") if isinstance(info, Mapping) else None
    if isinstance(config, str):
        config = {"scheduler_config": _printed(config), "speculative_config": _drafter(config)}
    section = config.get("scheduler_config") if isinstance(config, Mapping) else None
    if isinstance(section, str):
        section = _printed(section)
    if not isinstance(section, Mapping):
        return {}
    said = msgspec.convert(section, _Scheduler, strict=False)
    settings = {
        name: value for name in said.__struct_fields__ if (value := getattr(said, name)) is not None
    }
    if "scheduler_reserve_full_isl" in settings:
        settings["reserve_full_isl"] = settings.pop("scheduler_reserve_full_isl")
    if settings.get("long_prefill_token_threshold") == 0:
        settings["long_prefill_token_threshold"] = None
    return settings | _speculation(config) | _hardware(info)


def _speculation(config: Any) -> dict[str, Any]:
    """Read how many drafts are tried, whether their drafter needs slots, and whose states it reads.

    How many will be right is not said: the replay counts on none, and is set right by what comes.
    Source: vLLM 0.33 v1/core/sched/scheduler.py, Scheduler.__init__ (num_lookahead_tokens).
    """
    section = config.get("speculative_config")
    if not isinstance(section, Mapping):
        return {}
    said = msgspec.convert(section, _Drafter, strict=False)
    settings: dict[str, Any] = {"is_eagle": True} if said.method in EAGLES else {}
    if said.num_speculative_tokens:
        settings["num_speculative_tokens"] = said.num_speculative_tokens
        if said.method in EAGLES or said.method == "draft_model":
            settings["num_lookahead_tokens"] = said.num_speculative_tokens
    return settings


def cache_settings(page: EngineMetrics) -> dict[str, Any]:
    """Read block size and usable blocks of one rank; the page shows the sum over its ranks."""
    labels = {name: value for name, value in page.cache_config.items() if value != "None"}
    said = msgspec.convert(labels, _CacheLabels, strict=False)
    settings: dict[str, Any] = {}
    if said.block_size is not None:
        settings["block_size"] = said.block_size
    if said.num_gpu_blocks is not None:
        settings["num_blocks"] = said.num_gpu_blocks // max(1, len(page.ranks)) - 1
    if said.enable_prefix_caching is not None:
        settings["enable_prefix_caching"] = said.enable_prefix_caching
    if "prefix_cache_retention_interval" in page.cache_config:
        settings["retention_interval"] = said.prefix_cache_retention_interval
    if said.mamba_cache_mode == "align":
        settings["aligns_chunks"] = True
    return settings


def named_settings(version: Any, models: Any) -> dict[str, Any]:
    """Read version, model name and context length; adapters are no models of their own."""
    settings: dict[str, Any] = {}
    if isinstance(version, Mapping) and isinstance(version.get("version"), str):
        settings["version"] = version["version"]
    cards = models.get("data") if isinstance(models, Mapping) else None
    for card in cards if isinstance(cards, Sequence) else ():
        if isinstance(card, Mapping) and not card.get("parent") and isinstance(card.get("id"), str):
            settings["model"] = card["id"]
            if isinstance(card.get("max_model_len"), int):
                settings["max_model_len"] = card["max_model_len"]
            break
    return settings


def event_sources(pages: Any, host: str) -> dict[int, tuple[str, str | None, str]]:
    """Read each rank's (endpoint, replay endpoint, topic), as addresses to connect to."""
    found: dict[int, tuple[str, str | None, str]] = {}
    for rank, entry in _by_rank(pages):
        try:
            source = msgspec.convert(entry, _Source)
        except msgspec.ValidationError:
            continue
        if source.endpoint:
            replay = source.replay_endpoint
            found[rank if source.data_parallel_rank is None else source.data_parallel_rank] = (
                reachable(source.endpoint, host),
                reachable(replay, host) if replay else None,
                source.topic,
            )
    return found


def connects_to(info: Any) -> str | None:
    """Give the address to which an engine's publisher connects, by `/server_info`.

    None where it listens, as it does at wildcards and at no other address of TCP, or says nothing.
    Source: vLLM 0.33 distributed/kv_events.py, ZmqEventPublisher._is_bind_endpoint.
    """
    config = info.get("vllm_config") if isinstance(info, Mapping) else None
    section = config.get("kv_events_config") if isinstance(config, Mapping) else None
    if not isinstance(section, Mapping) or section.get("publisher") != "zmq":
        return None
    endpoint = section.get("endpoint")
    if not isinstance(endpoint, str) or not endpoint.startswith("tcp://"):
        return None
    return None if "*" in endpoint or "::" in endpoint else endpoint


def reachable(endpoint: str, host: str) -> str:
    """Put the engine's host where it bound to every address."""
    bracketed = f"[{host}]" if ":" in host else host
    return _WILDCARD.sub(f"//{bracketed}", endpoint)


def port_above(endpoint: str, offset: int) -> str:
    """Raise an endpoint's port, as engines do for their further ranks."""
    return _PORT.sub(lambda port: f":{int(port[1]) + offset}", endpoint)


def _by_rank(pages: Any) -> list[tuple[int, Any]]:
    if isinstance(pages, Mapping) and isinstance(pages.get("sources"), Sequence):
        pages = pages["sources"]
    if isinstance(pages, Mapping):
        return [(int(rank), entry) for rank, entry in pages.items() if str(rank).isdecimal()]
    return list(enumerate(pages)) if isinstance(pages, Sequence) else []


def _printed(text: str) -> dict[str, str]:
    """Find settings in a printed configuration, whether as JSON, as a dict, or as arguments."""
    found: dict[str, str] = {}
    for name in _Scheduler.__struct_fields__:
        match = re.search(rf"\b{name}['\"]?\s*[=:]\s*['\"]?([\w.+-]+)", text)
        if match and match[1] not in ("None", "null"):
            found[name] = match[1]
    return found


def _drafter(text: str) -> dict[str, str]:
    """Find the drafter in a printed configuration; vLLM prints its number by a shorter name."""
    section = re.search(r"\bspeculative_config['\"]?\s*[=:]\s*(?:\w+\(|\{)([^)}]*)", text)
    found = re.findall(r"(\w+)['\"]?\s*[=:]\s*['\"]?([\w.+-]+)", section[1] if section else "")
    names = {"method": "method", "num_spec_tokens": "num_speculative_tokens"}
    return {names.get(name, name): value for name, value in found}


def _hardware(info: Mapping[str, Any]) -> dict[str, Any]:
    env = info.get("system_env")
    models = env.get("nvidia_gpu_models") if isinstance(env, Mapping) else None
    if not isinstance(models, str) or not models.strip():
        return {}
    names = [line.split(":", 1)[-1].strip() for line in models.strip().splitlines()]
    kinds = sorted(set(names))
    return {"hardware": ", ".join(f"{names.count(kind)} x {kind}" for kind in kinds)}
