"""The gateway in front of a release: a plain Envoy that finds pickers by the name of their Service.

It sends each request to exactly the address that the picker names, and to nothing else: no list of
its own, no second try, and no pass where there is no pick. So whatever the picker gets wrong shows
as a request that fails. The answer says who served it.
"""

from dataclasses import dataclass

from leadsman_bench.envoy_config import DESTINATION, EnvoyConfig

_EXTENSIONS = "type.googleapis.com/envoy.extensions."
_TLS = _EXTENSIONS + "transport_sockets.tls.v3.UpstreamTlsContext"
_CARES = _EXTENSIONS + "network.dns_resolver.cares.v3.CaresDnsResolverConfig"


@dataclass(frozen=True)
class Front:
    """service: the pickers' name. names: `ip:port` of the DNS server that knows it."""

    service: str
    names: str

    def bootstrap(self):
        """Render the whole bootstrap."""
        nowhere = "127.0.0.1:1"
        config = EnvoyConfig(
            engines=[nowhere], picker=nowhere, profile="duplex", logs_access=False
        ).bootstrap()
        engines, picker = config["static_resources"]["clusters"]
        config["static_resources"]["clusters"] = [_by_header(engines), self._by_name(picker)]
        [listener] = config["static_resources"]["listeners"]
        [filter_] = listener["filter_chains"][0]["filters"]
        manager = filter_["typed_config"]
        manager["http_filters"][0]["typed_config"]["failure_mode_allow"] = False
        [route] = manager["route_config"]["virtual_hosts"][0]["routes"]
        del route["route"]["retry_policy"]
        said = {"key": "x-served-by", "value": "%UPSTREAM_REMOTE_ADDRESS%"}
        route["response_headers_to_add"] = [{"header": said}]
        return config

    def _by_name(self, picker):
        host, _, port = self.names.rpartition(":")
        resolver = {"socket_address": {"address": host, "port_value": int(port)}}
        options = {"no_default_search_domain": True}
        [locality] = picker["load_assignment"]["endpoints"]
        locality["lb_endpoints"][0]["endpoint"]["address"]["socket_address"] = {
            "address": self.service,
            "port_value": 9002,
        }
        return picker | {
            "type": "STRICT_DNS",
            "dns_lookup_family": "V4_ONLY",
            "dns_refresh_rate": "0.2s",
            "typed_dns_resolver_config": {
                "name": "envoy.network.dns_resolver.cares",
                "typed_config": {
                    "@type": _CARES,
                    "resolvers": [resolver],
                    "dns_resolver_options": options,
                },
            },
            "transport_socket": {
                "name": "envoy.transport_sockets.tls",
                "typed_config": {"@type": _TLS, "common_tls_context": {"alpn_protocols": ["h2"]}},
            },
        }


def _by_header(engines):
    kept = {key: engines[key] for key in ("name", "connect_timeout", "circuit_breakers")}
    header = {"use_http_header": True, "http_header_name": DESTINATION}
    return kept | {
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "original_dst_lb_config": header,
    }
