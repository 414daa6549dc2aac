"""Reads an Envoy's own configuration for the limits that break long prompts and long waits.

Envoy's defaults are for small requests: 1 MB of body, 1,024 requests at once, 15 s for an answer,
0.2 s for a picker. What is looked at is `/config_dump` of its admin port, or a bootstrap as JSON.
Source: Envoy 1.40, circuit_breaker.proto, route_components.proto, ext_proc.proto: defaults.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from leadsman.units import Seconds
from leadsman_extproc.settings import Settings

from leadsman_cli.doctor.finding import Finding

WHERE: Final = "gateway"
FEW_REQUESTS: Final = 10_000
DEFAULT_REQUESTS: Final = 1024
DEFAULT_MESSAGE_TIMEOUT: Final[Seconds] = 0.2
DEFAULT_ROUTE_TIMEOUT: Final[Seconds] = 15.0
DEFAULT_BUFFER: Final = 1024 * 1024
SHORT_ANSWER: Final[Seconds] = 600.0


def look(config: Any, settings: Settings, held: Seconds = 0.0) -> Iterator[Finding]:
    """Look at a configuration, as parsed JSON. held: for how long requests may be held."""
    pickers = list(_of_type(config, "ExternalProcessor"))
    if not pickers:
        change = "add the ext_proc filter: docs/serve.md"
        yield Finding("fault", WHERE, "has no ext_proc filter: nobody is asked", change)
        return
    for picker in pickers:
        yield from _picker(picker, settings, held)
    yield from _clusters(config)
    yield from _routes(config, pickers, settings)


def _picker(picker: Mapping[str, Any], settings: Settings, held: Seconds) -> Iterator[Finding]:
    modes = picker.get("processing_mode") or {}
    request, response = (modes.get(f"{way}_body_mode", "NONE") for way in ("request", "response"))
    if request not in {"BUFFERED", "FULL_DUPLEX_STREAMED"}:
        yield Finding(
            "fault",
            WHERE,
            f"hands request bodies over as {request}: they cannot be priced",
            "request_body_mode: BUFFERED or FULL_DUPLEX_STREAMED",
        )
    if response not in {"STREAMED", "FULL_DUPLEX_STREAMED"}:
        yield Finding(
            "fault",
            WHERE,
            f"hands answers over as {response}: no first token is seen",
            "response_body_mode: STREAMED or FULL_DUPLEX_STREAMED",
        )
    timeout = _seconds(picker.get("message_timeout"), DEFAULT_MESSAGE_TIMEOUT)
    takes = settings.decision_deadline + min(held, settings.longest_hold)
    if request != "FULL_DUPLEX_STREAMED" and timeout <= takes:
        yield Finding(
            "fault",
            WHERE,
            f"waits {timeout:g} s for the picker, which may take {takes:g} s",
            f"message_timeout above that, e.g. {max(5, math.ceil(takes) + 1)}s",
        )
    if not picker.get("failure_mode_allow"):
        yield Finding(
            "warning",
            WHERE,
            "answers with 500 while no picker can be reached",
            "failure_mode_allow: true where requests should go on unpicked",
        )


def _clusters(config: Any) -> Iterator[Finding]:
    for cluster in _clusters_of(config):
        thresholds = (cluster.get("circuit_breakers") or {}).get("thresholds") or [{}]
        for name in ("max_requests", "max_pending_requests"):
            most = min(int(one.get(name, DEFAULT_REQUESTS)) for one in thresholds)
            if most < FEW_REQUESTS:
                yield Finding(
                    "warning",
                    WHERE,
                    f"lets {most:,} requests at once to {cluster.get('name')} ({name})",
                    f"circuit_breakers: {name}: 100000",
                )
                break


def _routes(config: Any, pickers: list[Mapping[str, Any]], settings: Settings) -> Iterator[Finding]:
    is_buffered = any(
        (one.get("processing_mode") or {}).get("request_body_mode") == "BUFFERED" for one in pickers
    )
    for route in _routes_of(config):
        told = route.get("name") or (route.get("match") or {}).get("prefix") or "a route"
        timeout = _seconds(route["route"].get("timeout"), DEFAULT_ROUTE_TIMEOUT)
        if 0 < timeout < SHORT_ANSWER:
            yield Finding(
                "fault" if timeout < 60 else "warning",
                WHERE,
                f"cuts answers by {told} off after {timeout:g} s",
                "timeout: 0s on the route; an engine ends its answers itself",
            )
        held = route.get("request_body_buffer_limit")
        held = held or route.get("per_request_buffer_limit_bytes") or DEFAULT_BUFFER
        if is_buffered and int(held) < settings.max_body:
            yield Finding(
                "fault",
                WHERE,
                f"holds {int(held) / 1e6:.0f} MB of a request by {told}: longer ones get 413",
                f"request_body_buffer_limit: {settings.max_body}",
            )


def _walk(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for inner in value.values():
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)


def _of_type(config: Any, name: str) -> Iterator[Mapping[str, Any]]:
    for one in _walk(config):
        if str(one.get("@type", "")).endswith(f".{name}"):
            yield one


def _clusters_of(config: Any) -> Iterator[Mapping[str, Any]]:
    for one in _walk(config):
        if "connect_timeout" in one and "name" in one:
            yield one


def _routes_of(config: Any) -> Iterator[Mapping[str, Any]]:
    for one in _walk(config):
        if "match" in one and isinstance(one.get("route"), Mapping):
            yield one


def _seconds(told: Any, default: Seconds) -> Seconds:
    """Read a duration of protobuf's JSON, `1.5s`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)s", str(told))
    return float(found[1]) if found else default
