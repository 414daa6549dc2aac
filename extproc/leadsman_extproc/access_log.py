"""Envoy's access log as the last word on a request: its end, its usage, its first token.

Where we own Envoy's configuration, streams are ended after their first token, and this log is the
only thing that says when such a request is over. It costs 8 to 17 us a request, since Envoy sends
entries in batches; a batch comes up to the flush interval late, so an end is dated by the entry's
own durations, counted from the moment that the request went on.

Entries name the request by its x-request-id. What a session saw first stands; an entry of a
request that is over already, or that another replica granted, is ignored.

`epp.usage` is the dynamic metadata that a Lua filter of the Envoy configuration sets from the
response's last event; the custom tag `ttft_us` is from the last byte sent upstream to the first
body byte back. Source: envoy.data.accesslog.v3 (Envoy 1.40).
"""

from collections.abc import Callable
from typing import Any

from envoy.service.accesslog.v3 import als_pb2
from leadsman.records import Outcome
from leadsman.units import Seconds, Tokens

from leadsman_extproc.grants import Grant, Grants, Usage

USAGE_NAMESPACE = "epp.usage"
TTFT_TAG = "ttft_us"

_CLIENT_GONE = ("downstream_connection_termination", "downstream_remote_reset")
_ENGINE_GONE = (
    "no_healthy_upstream",
    "upstream_connection_failure",
    "upstream_connection_termination",
    "upstream_remote_reset",
    "upstream_request_timeout",
    "upstream_protocol_error",
    "stream_idle_timeout",
    "duration_timeout",
)


class AccessLog:
    """Ends grants by what the access log says."""

    def __init__(self, grants: Grants, clock: Callable[[], Seconds]) -> None:
        self._grants = grants
        self._clock = clock

    def take(self, raw: bytes) -> None:
        """Take one StreamAccessLogsMessage. Raises DecodeError where it is none."""
        message = als_pb2.StreamAccessLogsMessage.FromString(raw)
        now = self._clock()
        for entry in message.http_logs.log_entry:
            grant = self._grants.of(entry.request.request_id)
            if grant is not None and not entry.common_properties.intermediate_log_entry:
                self._end(grant, entry, now)

    def _end(self, grant: Grant, entry: Any, now: Seconds) -> None:
        ttft = _ttft(entry)
        if grant.first_token_at is None and ttft is not None:
            self._grants.see(grant, 1, min(grant.sent_at + ttft, now))
        at = min(grant.sent_at + _since_sent(entry), now)
        self._grants.end(grant, _outcome(entry), max(at, grant.first_token_at or at), _usage(entry))


def _seconds(duration: Any) -> Seconds:
    return float(duration.seconds + duration.nanos / 1e9)


def _since_sent(entry: Any) -> Seconds:
    """From the first byte sent upstream to the end; the whole duration where nothing was sent."""
    common = entry.common_properties
    return _seconds(common.duration) - _seconds(common.time_to_first_upstream_tx_byte)


def _ttft(entry: Any) -> Seconds | None:
    """Read the time to the first body byte, which is a first token only in a stream of events."""
    content_type = entry.response.response_headers.get("content-type", "")
    tag = entry.common_properties.custom_tags.get(TTFT_TAG, "")
    is_stream = content_type.startswith("text/event-stream")
    return int(tag) / 1e6 if is_stream and tag.isdigit() else None


def _outcome(entry: Any) -> Outcome:
    flags = entry.common_properties.response_flags
    if any(getattr(flags, flag) for flag in _CLIENT_GONE):
        return Outcome.CLIENT_GONE
    if any(getattr(flags, flag) for flag in _ENGINE_GONE):
        return Outcome.ENGINE_GONE
    status = entry.response.response_code.value
    return Outcome.ENGINE_REFUSED if status >= 400 else Outcome.FINISHED


def _usage(entry: Any) -> Usage:
    spaces = entry.common_properties.metadata.filter_metadata
    if USAGE_NAMESPACE not in spaces:
        return Usage()
    fields = spaces[USAGE_NAMESPACE].fields

    def count(name: str) -> Tokens | None:
        return int(fields[name].number_value) if name in fields else None

    return Usage(
        prompt_tokens=count("prompt_tokens"),
        completion_tokens=count("completion_tokens"),
        cached_tokens=count("cached_tokens"),
    )
