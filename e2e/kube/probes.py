"""A pod's readiness, asked as its container states it: by HTTP or by gRPC's health protocol."""

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from leadsman_bench.processes import answers


def is_ready(container: dict, ip: str) -> bool:
    """Ask once; a container without a probe is ready."""
    probe = container.get("readinessProbe", {})
    if "httpGet" in probe:
        where = probe["httpGet"]
        return answers(f"http://{ip}:{_port(where['port'], container)}{where['path']}")
    if "grpc" in probe:
        where = probe["grpc"]
        asked = health_pb2.HealthCheckRequest(service=where.get("service", ""))
        with grpc.insecure_channel(f"{ip}:{where['port']}") as channel:
            try:
                said = health_pb2_grpc.HealthStub(channel).Check(asked, timeout=1)
            except grpc.RpcError:
                return False
        return said.status == health_pb2.HealthCheckResponse.SERVING
    return True


def _port(named: str | int, container: dict) -> int:
    ports = {one.get("name"): one["containerPort"] for one in container.get("ports", [])}
    return ports.get(named, named)
