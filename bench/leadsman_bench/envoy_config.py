"""Envoy's bootstrap for a pool of engines behind a picker, in either of the two profiles.

`duplex` is what Istio and Envoy AI Gateway force: both bodies FULL_DUPLEX_STREAMED. `buffered` is
what to take where the configuration is ours: the request BUFFERED, the response STREAMED so that
the picker may end its stream after the first token, and the access log for the rest. In both, an
engine is chosen by dynamic metadata, the used one is told back, and the limits that break long
prompts (1 MB buffers, 1024 open streams, 200 ms for an answer) are lifted.

Where no engines are listed, Envoy sends to whatever address the picker names, and to none where it
named none. It is told by metadata, not by a header, since a client could set a header.

Source: Envoy 1.40, each setting as measured for this project.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias

Profile: TypeAlias = Literal["duplex", "buffered"]
Config: TypeAlias = dict[str, Any]

DESTINATION: Final = "x-gateway-destination-endpoint"
_EXT: Final = "type.googleapis.com/envoy.extensions."
_BODY_LIMIT: Final = 64 * 1024 * 1024
_NO_LIMITS: Final = {
    "thresholds": [
        {"max_connections": 100000, "max_pending_requests": 100000, "max_requests": 100000}
    ]
}
_MODES: Final[Mapping[Profile, Config]] = {
    "duplex": {
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_trailer_mode": "SEND",
    },
    "buffered": {
        "request_body_mode": "BUFFERED",
        "response_body_mode": "STREAMED",
        "request_trailer_mode": "SKIP",
        "response_trailer_mode": "SKIP",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyConfig:
    """One listener in front of `engines`, each an `ip:port`; None: those that the picker names.

    picker: `ip:port` that serves ext_proc and the access log; None: no picker at all.
    logs_access: whether the picker gets the access log.
    """

    engines: Sequence[str] | None
    picker: str | None
    profile: Profile = "buffered"
    logs_access: bool = True
    host: str = "127.0.0.1"
    port: int = 0

    def bootstrap(self) -> Config:
        """Render the whole bootstrap; the listener takes a free port where `port` is 0."""
        clusters = [_as_picked() if self.engines is None else _engines(self.engines)]
        if self.picker is not None:
            clusters.append(_picker(self.picker))
        return {
            "admin": {"address": _address("127.0.0.1:0")},
            "static_resources": {"listeners": [self._listener()], "clusters": clusters},
        }

    def _listener(self) -> Config:
        manager = {
            "@type": _EXT + "filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "in",
            # The only guard against a hung picker in full duplex, where message_timeout is not.
            "stream_idle_timeout": "600s",
            "generate_request_id": True,
            "access_log": [_access_log()] if self.picker and self.logs_access else [],
            "http_filters": [*self._filters(), _router()],
            "route_config": _routes(),
        }
        chain = {
            "filters": [
                {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
            ]
        }
        return {
            "name": "requests",
            "address": _address(f"{self.host}:{self.port}"),
            "filter_chains": [chain],
        }

    def _filters(self) -> list[Config]:
        if self.picker is None:
            return []
        return [_ext_proc(_MODES[self.profile]), *([_usage()] if self.logs_access else [])]


def _address(host_port: str) -> Config:
    host, _, port = host_port.rpartition(":")
    return {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}


def _ext_proc(modes: Config) -> Config:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": _EXT + "filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {
                "envoy_grpc": {"cluster_name": "picker"},
                "timeout": "0s",
                "retry_policy": {
                    "retry_on": "connect-failure,refused-stream,unavailable",
                    "num_retries": 3,
                    "retry_back_off": {"base_interval": "0.01s"},
                },
            },
            "failure_mode_allow": True,
            "message_timeout": "5s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                **modes,
            },
            "metadata_options": {
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            },
        },
    }


def _usage() -> Config:
    script = (files("leadsman_bench") / "usage.lua").read_text()
    return {
        "name": "envoy.filters.http.lua",
        "typed_config": {
            "@type": _EXT + "filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": script},
        },
    }


def _router() -> Config:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": _EXT + "filters.http.router.v3.Router"},
    }


def _access_log() -> Config:
    return {
        "name": "picker",
        "typed_config": {
            "@type": _EXT + "access_loggers.grpc.v3.HttpGrpcAccessLogConfig",
            "common_config": {
                "log_name": "picker",
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
                "buffer_flush_interval": "0.1s",
                "custom_tags": [
                    {
                        "tag": "ttft_us",
                        "value": "%COMMON_DURATION(US_TX_END:US_RX_BODY_BEG:us)%",
                    }
                ],
            },
            "additional_response_headers_to_log": ["content-type"],
        },
    }


def _routes() -> Config:
    route = {
        "match": {"prefix": "/"},
        # Lifts the 1 MB limit of BUFFERED (413) and of the retry buffer (507).
        "request_body_buffer_limit": _BODY_LIMIT,
        "route": {
            "cluster": "engines",
            "timeout": "0s",
            "retry_policy": {"retry_on": "connect-failure,refused-stream", "num_retries": 2},
        },
    }
    host = {"name": "all", "domains": ["*"], "routes": [route]}
    return {"name": "all", "virtual_hosts": [host]}


def _engines(endpoints: Sequence[str]) -> Config:
    policies = _EXT + "load_balancing_policies."
    round_robin = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {"@type": policies + "round_robin.v3.RoundRobin"},
    }
    override_host = {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": policies + "override_host.v3.OverrideHost",
            "override_host_sources": [{"metadata": _metadata_key(DESTINATION)}],
            "selected_host_key": _metadata_key(f"{DESTINATION}-served"),
            "fallback_policy": {"policies": [{"typed_extension_config": round_robin}]},
        },
    }
    return {
        "name": "engines",
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": override_host}]},
        "circuit_breakers": _NO_LIMITS,
        "load_assignment": _assignment("engines", endpoints),
    }


def _as_picked() -> Config:
    return {
        "name": "engines",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "1s",
        "original_dst_lb_config": {"metadata_key": _metadata_key(DESTINATION)},
        "circuit_breakers": _NO_LIMITS,
    }


def _metadata_key(key: str) -> Config:
    return {"key": "envoy.lb", "path": [{"key": key}]}


def _picker(endpoint: str) -> Config:
    http2 = {
        "initial_stream_window_size": 4 * 1024 * 1024,
        "initial_connection_window_size": 16 * 1024 * 1024,
    }
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": "picker",
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": _NO_LIMITS,
        "typed_extension_protocol_options": {
            options: {
                "@type": f"type.googleapis.com/{options}",
                "explicit_http_config": {"http2_protocol_options": http2},
            }
        },
        "load_assignment": _assignment("picker", [endpoint]),
    }


def _assignment(name: str, endpoints: Sequence[str]) -> Config:
    hosts = [{"endpoint": {"address": _address(endpoint)}} for endpoint in endpoints]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]}
