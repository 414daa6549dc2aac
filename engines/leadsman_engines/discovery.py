"""Asks an engine for its settings, and says clearly what it would not tell.

Four pages are open on every vLLM: `/metrics` (cache configuration), `/version`, `/v1/models`
and, in newer ones, `/kv_event_sources`. `/server_info` has the scheduler's settings, but only in
development mode. What none of them says, the profile must: without its token budget or its slots
an engine cannot be replayed, and a guess would be wrong silently. Settings whose default is
vLLM's own and documented (policy, watermark and the like) keep that default.

An SGLang says all in its `/server_info`: see `sglang_pages`.

`num_gpu_blocks` is the sum over an endpoint's ranks, shown under each of them, and counts one
null block a rank.

Source: vLLM 0.33 v1/engine/core_client.py; entrypoints/serve/dev/server_info, kv_events;
v1/core/block_pool.py, BlockPool.null_block.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from leadsman.engine import EngineSettings
from leadsman.rules import is_known
from leadsman.units import WorkerId

from leadsman_engines.engine_pages import (
    cache_settings,
    event_sources,
    info_settings,
    named_settings,
    port_above,
    reachable,
)
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.metrics import EngineMetrics, read_metrics
from leadsman_engines.profile import SETTINGS_FIELDS, EngineProfile
from leadsman_engines.sglang_pages import (
    is_sglang,
    read_loads,
    sglang_event_sources,
    sglang_load_sources,
    sglang_ranks,
    sglang_settings,
    started_at,
    unknown_order,
)

log = logging.getLogger(__name__)

_REQUIRED: Final = (
    "model",
    "version",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "block_size",
    "num_blocks",
)
_TOLD_BY: Final = {
    "model": "/v1/models",
    "version": "/version",
    "max_model_len": "/v1/models",
    "block_size": "vllm:cache_config_info in /metrics",
    "num_blocks": "vllm:cache_config_info in /metrics",
}
METRICS: Final = "/metrics"
LOADS: Final = "/v1/loads"
_ONLY_TOLD: Final = ("sglang", "is_eagle", "aligns_chunks")
"""Settings that an engine tells and a profile cannot state."""
INFO_WITHIN: Final = aiohttp.ClientTimeout(total=120.0)
"""For `/server_info`: when it is asked first, a vLLM runs a dozen programs to describe its machine,
for seconds, or for a minute where that is busy; and runs them anew for who asks again meanwhile.
Source: vLLM 0.32 entrypoints/serve/dev/server_info/api_router.py, _get_system_env_info_cached."""

_NOT_THERE: Final = frozenset({401, 403, 404, 405, 501})
_IN_DEV_MODE: Final = "/server_info, which it serves only with VLLM_SERVER_DEV_MODE=1"


class UnknownSettingError(Exception):
    """A setting that neither the engine tells nor the profile states: the user's to mend."""

    def __init__(self, url: str, field: str) -> None:
        source = _TOLD_BY.get(field, _IN_DEV_MODE)
        super().__init__(
            f"{url}: {field} is not known. The engine does not tell it by {source}, and the"
            f" profile does not state it. Start the engine so that it does, or set"
            f" `profile.{field}` for this endpoint."
        )
        self.url = url
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """Where one rank publishes its KV events, as an address that can be connected to."""

    events: str
    replay: str | None = None
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSource:
    """Where one rank pushes its load, as an address that can be connected to."""

    endpoint: str
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredRank:
    """One scheduler behind an endpoint. dp_rank: None where the endpoint has only this one.

    index: its label in the engine's metrics. load: None where it pushes none.
    """

    index: int
    dp_rank: int | None
    settings: EngineSettings
    events: EventSource | None
    load: LoadSource | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredEngine:
    """All schedulers behind one endpoint, and the load page that they were read from.

    has_loads: that page is SGLang's `/v1/loads`; else it is `/metrics`.
    """

    ranks: tuple[DiscoveredRank, ...]
    metrics: EngineMetrics
    has_loads: bool = False

    @property
    def load_page(self) -> str:
        """The page that is asked for load again and again."""
        return LOADS if self.has_loads else METRICS

    def read(self, page: bytes) -> EngineMetrics:
        """Read that page. ValueError where it is none."""
        if self.has_loads:
            return read_loads(page, self.metrics.started_at)
        return read_metrics(page)

    @property
    def version(self) -> str:
        """What all its ranks run."""
        return self.ranks[0].settings.version

    @property
    def is_known(self) -> bool:
        """Whether the rules of its version are known; else those of the newest are assumed."""
        return is_known(self.version)


async def discover(
    http: aiohttp.ClientSession, base_url: str, profile: EngineProfile
) -> DiscoveredEngine:
    """Ask one endpoint for everything.

    Raises UnknownSettingError (the user's to mend), EngineProtocolError (the engine talks
    nonsense), aiohttp.ClientError or TimeoutError (it does not talk).
    """
    base = base_url.rstrip("/")
    metrics, version, models, info, sources = await asyncio.gather(
        _get(http, f"{base}/metrics"),
        _get_json(http, f"{base}/version"),
        _get_json(http, f"{base}/v1/models"),
        _get_json(http, f"{base}/server_info?config_format=json", INFO_WITHIN),
        _get_json(http, f"{base}/kv_event_sources"),
    )
    try:
        page = read_metrics(metrics or b"")
        if is_sglang(info):
            loads = await _get(http, base + LOADS)
            if loads is not None:
                page = read_loads(loads, started_at(info))
            found = _sglang(base, info, (page, models), profile)
            return replace(found, has_loads=loads is not None)
        told = info_settings(info) | cache_settings(page) | named_settings(version, models)
    except ValueError as error:
        raise EngineProtocolError(WorkerId(base), str(error)) from error
    settings = _settings(base, told, profile)
    indices = sorted(page.ranks) or [0]
    events = _events(sources, urlsplit(base).hostname or base, profile, indices)
    return _found(page, settings, indices, events)


def _sglang(
    base: str,
    info: Mapping[str, Any],
    pages: tuple[EngineMetrics, Any],
    profile: EngineProfile,
) -> DiscoveredEngine:
    """Read an SGLang: all of it stands in one page, but for how long a prompt may be."""
    page, models = pages
    told = named_settings(None, models) | sglang_settings(info)
    if (order := unknown_order(info)) is not None:
        fields = {"endpoint": base, "schedule_policy": order}
        log.warning("queue order is replayed as first come, first served", extra=fields)
    settings = _settings(base, told, profile)
    if settings.sglang is None:
        raise UnknownSettingError(base, "max_prefill_tokens")
    indices = range(sglang_ranks(info))
    sources = {
        rank: EventSource(events=events, replay=replay, topic=topic)
        for rank, (events, replay, topic) in sglang_event_sources(
            info, urlsplit(base).hostname or base
        ).items()
    }
    if profile.kv_events is not None:
        sources = _events(None, urlsplit(base).hostname or base, profile, indices)
    found = _found(page, settings, indices, sources)
    loads = sglang_load_sources(info, urlsplit(base).hostname or base)
    ranks = tuple(
        replace(rank, load=LoadSource(endpoint=loads[rank.index][0], topic=loads[rank.index][1]))
        if rank.index in loads
        else rank
        for rank in found.ranks
    )
    return replace(found, ranks=ranks)


def _found(
    page: EngineMetrics,
    settings: EngineSettings,
    indices: Sequence[int],
    events: Mapping[int, EventSource],
) -> DiscoveredEngine:
    """Make one rank of each index; a rank that is alone has no number to be called by."""
    return DiscoveredEngine(
        ranks=tuple(
            DiscoveredRank(
                index=index,
                dp_rank=None if len(indices) == 1 else index,
                settings=settings,
                events=events.get(index),
            )
            for index in indices
        ),
        metrics=page,
    )


def _settings(url: str, told: Mapping[str, Any], profile: EngineProfile) -> EngineSettings:
    stated = {name: getattr(profile, name) for name in SETTINGS_FIELDS}
    known = {name: value for name, value in stated.items() if value is not None}
    known |= {name: told[name] for name in (*SETTINGS_FIELDS, *_ONLY_TOLD) if name in told}
    for name in _REQUIRED:
        if name not in known:
            raise UnknownSettingError(url, name)
    return EngineSettings(**known)


def _events(
    sources: Any, host: str, profile: EngineProfile, indices: Sequence[int]
) -> dict[int, EventSource]:
    """Say where each rank publishes: as stated, else as the engine tells."""
    if profile.kv_events == "off":
        return {}
    if profile.kv_events is not None:
        stated, replay = profile.kv_events, profile.kv_replay
        return {
            index: EventSource(
                events=port_above(reachable(stated, host), place),
                replay=port_above(reachable(replay, host), place) if replay else None,
            )
            for place, index in enumerate(indices)
        }
    found = {
        rank: EventSource(events=events, replay=replay, topic=topic)
        for rank, (events, replay, topic) in event_sources(sources, host).items()
    }
    if len(indices) == len(found) == 1:
        return {indices[0]: next(iter(found.values()))}
    return found


async def _get(
    http: aiohttp.ClientSession, url: str, within: aiohttp.ClientTimeout | None = None
) -> bytes | None:
    """Fetch a page; None where the engine has no such page, or keeps it closed."""
    async with http.get(url, timeout=within or http.timeout) as response:
        if response.status in _NOT_THERE:
            return None
        response.raise_for_status()
        return await response.read()


async def _get_json(
    http: aiohttp.ClientSession, url: str, within: aiohttp.ClientTimeout | None = None
) -> Any:
    page = await _get(http, url, within)
    try:
        return None if page is None else msgspec.json.decode(page)
    except msgspec.DecodeError:
        return None
