"""A namespace on an API server with pods that somebody plays, and an operator that follows them."""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from leadsman.units import Seconds
from leadsman_operator.kube import Api
from leadsman_operator.objects import BUDGETS, PODS, POOLS, PROFILES, Key, Kind

from leadsman_bench.processes import Children, answers, free_ports, leadsman

PATIENCE: Final[Seconds] = 180.0
_SETTINGS: Final = {"maxNumBatchedTokens": 8192, "maxNumSeqs": 256}


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A namespace of this run's own; it stays."""

    api: Api
    kubeconfig: Path
    held: Children
    namespace: str = field(default_factory=lambda: f"bench-{uuid.uuid4().hex[:8]}")

    async def begin(self, selector: dict[str, str]) -> None:
        """Make the namespace, and a profile of the engines in it."""
        await self.api.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        spec = {"selector": {"matchLabels": selector}, "settings": _SETTINGS}
        await self.create(PROFILES, "engines", spec)

    async def create(self, kind: Kind, name: str, spec: dict[str, Any], **about: Any) -> None:
        """Create one object."""
        version = f"{kind.group}/{kind.version}" if kind.group else kind.version
        body = {"apiVersion": version, "kind": kind.shape.__name__, "spec": spec}
        body["metadata"] = {"name": name, **about}
        await self.api.create(kind.path(self.namespace), body)

    async def pool(self, name: str, labels: dict[str, str], port: int) -> Key:
        """Create a pool of one port; gives its key."""
        spec = {"selector": {"matchLabels": labels}, "targetPorts": [{"number": port}]}
        await self.create(POOLS, name, spec)
        return Key(self.namespace, name)

    async def pod(self, name: str, labels: dict[str, str], ip: str) -> None:
        """Create a pod that runs, and is ready, at an address."""
        spec = {"nodeName": "none", "containers": [{"name": "engine", "image": "vllm"}]}
        await self.create(PODS, name, spec, labels=labels)
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready}
        path = PODS.path(self.namespace, name) + "/status"
        await self.api.merge(path, {"status": status})

    async def budget(self, name: str, pool: Key, ttft: str) -> None:
        """Create a budget of one pool."""
        await self.create(BUDGETS, name, {"poolRef": {"name": pool.name}, "ttft": ttft})

    async def read(self, kind: Kind, name: str) -> Any:
        """Read one object, whole."""
        return json.loads(await self.api.get(kind.path(self.namespace, name)))

    async def operator(self) -> str:
        """Start an operator; gives where its stream is, once it has listed all."""
        stream, health = free_ports(2)
        places = ["--listen", f"127.0.0.1:{stream}", "--health", f"127.0.0.1:{health}"]
        where = ["--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace]
        self.held.start("operator", leadsman("operator", *places, *where))
        ready = f"http://127.0.0.1:{health}/readyz"
        await asyncio.to_thread(self.held.until, "operator", lambda: answers(ready), PATIENCE)
        return f"127.0.0.1:{stream}"


async def together(work: Sequence[Any], at_once: int = 16) -> None:
    """Do all of it, some at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(step: Any) -> None:
        async with room:
            await step

    await asyncio.gather(*(one(step) for step in work))


async def seconds_until(is_so: Callable[[], bool]) -> Seconds:
    """Wait until it is so; gives how long that took. TimeoutError where it takes too long."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110  # it tells nobody when it is
            await asyncio.sleep(0.002)
    return time.monotonic() - began
