"""Istio as a gateway without its own images: pilot-discovery, and a plain Envoy that it configures.

Three of pilot's settings make its configuration one that a plain Envoy takes: no ALPN filter, no
metadata exchange, and no automatic mTLS (whose certificates an agent would bring).
"""

import json
from pathlib import Path
from typing import Final

from kube.control_plane import ControlPlane
from leadsman_bench.processes import Children, answers, free_ports

from .network import NODE

DISCOVERY: Final = 15010
ADMIN: Final = 15000
PORT: Final = 8080
ENVIRONMENT: Final = {
    "ENABLE_GATEWAY_API_INFERENCE_EXTENSION": "true",
    "PILOT_ENABLE_ALPN_FILTER": "false",
    "PILOT_ENABLE_METADATA_EXCHANGE": "false",
    "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER": "false",
    "POD_NAME": "istiod-0",
    "POD_NAMESPACE": "istio-system",
    "INJECTION_WEBHOOK_CONFIG_NAME": "",
    "VALIDATION_WEBHOOK_CONFIG_NAME": "",
}
MESH: Final = {"enableAutoMtls": False, "enableTracing": False, "enablePrometheusMerge": False}


def start_pilot(running: Children, pilot: Path, plane: ControlPlane, folder: Path) -> None:
    """Start pilot-discovery; the namespace istio-system has to be there."""
    mesh = folder / "mesh.yaml"
    mesh.write_text(json.dumps(MESH))
    http, monitoring, zpages = free_ports(3)
    settings = [f"{name}={value}" for name, value in ENVIRONMENT.items()]
    where = [f"--kubeconfig={plane.kubeconfig}", f"--meshConfig={mesh}", "--clusterID=Kubernetes"]
    ports = [
        f"--grpcAddr={NODE}:{DISCOVERY}",
        f"--httpAddr=127.0.0.1:{http}",
        f"--monitoringAddr=127.0.0.1:{monitoring}",
        "--ctrlz_address=127.0.0.1",
        f"--ctrlz_port={zpages}",
        "--httpsAddr=",
        "--secureGRPCAddr=",
    ]
    command = ["env", "-C", str(folder), *settings, str(pilot), "discovery", "--profile=false"]
    running.start("pilot", [*command, *where, *ports])
    running.until("pilot", lambda: answers(f"http://127.0.0.1:{http}/ready"), 60.0)


def objects(namespace: str, name: str, pools: dict[str, int]) -> list[dict]:
    """Make a gateway, its pod, and a route that has all requests go to pools, by weight."""
    labels = {"app": name, "gateway.networking.k8s.io/gateway-name": name}
    about = {"name": name, "namespace": namespace}
    backends = [
        {
            "group": "inference.networking.k8s.io",
            "kind": "InferencePool",
            "name": pool,
            "weight": weight,
        }
        for pool, weight in pools.items()
    ]
    listener = {"name": "http", "port": PORT, "protocol": "HTTP"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": about,
            "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": PORT}]},
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": about | {"labels": labels},
            "spec": {"containers": [_envoy(namespace, name, labels)]},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": about,
            "spec": {
                "gatewayClassName": "istio",
                # The data plane is there already: the pods of this Service.
                "addresses": [{"type": "Hostname", "value": name}],
                "listeners": [listener],
            },
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": about,
            "spec": {"parentRefs": [{"name": name}], "rules": [{"backendRefs": backends}]},
        },
    ]


def _envoy(namespace: str, name: str, labels: dict[str, str]) -> dict:
    options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
    return {
        "name": "envoy",
        "image": "envoy",
        "args": ["--config-yaml", json.dumps(_bootstrap(namespace, name, labels)), *options],
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": ADMIN},
            "periodSeconds": 1,
        },
    }


def _bootstrap(namespace: str, name: str, labels: dict[str, str]) -> dict:
    """Make the least that has Envoy ask pilot for all else."""
    metadata = {
        "NAMESPACE": namespace,
        "NAME": name,
        "CLUSTER_ID": "Kubernetes",
        "ISTIO_VERSION": "1.31.0",
        "INSTANCE_IPS": "$(POD_IP)",
        "GENERATOR": "",
        "LABELS": labels,
        "SERVICE_ACCOUNT": "default",
    }
    aggregated = {"ads": {}, "initial_fetch_timeout": "0s", "resource_api_version": "V3"}
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    pilot = {"address": _address(NODE, DISCOVERY)}
    return {
        "node": {
            "id": f"router~$(POD_IP)~{name}.{namespace}~{namespace}.svc.cluster.local",
            "cluster": f"{name}.{namespace}",
            "metadata": metadata,
        },
        "admin": {"address": _address("0.0.0.0", ADMIN)},
        "dynamic_resources": {
            "lds_config": aggregated,
            "cds_config": aggregated,
            "ads_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
        },
        "static_resources": {
            "clusters": [
                {
                    "name": "xds-grpc",
                    "type": "STATIC",
                    "connect_timeout": "1s",
                    "typed_extension_protocol_options": {
                        options: {
                            "@type": f"type.googleapis.com/{options}",
                            "explicit_http_config": {"http2_protocol_options": {}},
                        }
                    },
                    "load_assignment": {
                        "cluster_name": "xds-grpc",
                        "endpoints": [{"lb_endpoints": [{"endpoint": pilot}]}],
                    },
                }
            ]
        },
    }


def _address(host: str, port: int) -> dict:
    return {"socket_address": {"address": host, "port_value": port}}
