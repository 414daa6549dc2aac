"""`leadsman extproc --conformance` without a fleet: in place of the upstream suite's own picker.

The suite's manifests have a picker and nothing else of ours, and backends that echo what they get.
So there is no operator to follow, and no engine to ask: the pods of the pool are watched from here,
each of its ports is a worker of which nothing is known, and every request passes, by the suite's
headers, else to the least loaded. It prices nothing, and is for that suite alone.

Source: Gateway API Inference Extension v1.6.0, conformance/resources/base.yaml and pkg/lwepp.
"""

import argparse
import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from leadsman.budget import Budget
from leadsman.engine import EngineSettings
from leadsman.fleet import Fleet
from leadsman.records import Record, WorkerGone, WorkerSeen
from leadsman.units import WorkerId
from leadsman_extproc.body import NotForUs
from leadsman_extproc.grants import Grant
from leadsman_extproc.ports import Arrival
from leadsman_extproc.serve import Service
from leadsman_extproc.settings import Settings
from leadsman_operator.informer import Informer
from leadsman_operator.kube import Api, api
from leadsman_operator.objects import PODS, POOLS, InferencePool, Key, Pod
from leadsman_operator.targets import targets_of
from leadsman_operator.world import World

from leadsman_cli.signals import ToldToStop

log = logging.getLogger(__name__)

_NOTHING_KNOWN = EngineSettings(
    model="",
    version="",
    max_num_batched_tokens=1,
    max_num_seqs=1,
    max_model_len=1,
    block_size=1,
    num_blocks=1,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that the suite's manifests give its own picker."""
    group = parser.add_argument_group("with --conformance and no --fleet, as upstream's manifests")
    group.add_argument("--pool-name", help="the InferencePool, in place of --pool")
    group.add_argument("--pool-namespace", default="default")
    group.add_argument("--grpc-port", type=int, default=9002)
    group.add_argument("--grpc-health-port", type=int, default=9003)
    group.add_argument("--zap-encoder", help="not heeded: logs are JSON")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """Serve where the options say, by TLS with a certificate of our own, as the suite expects."""
    return Settings(
        listen=f"0.0.0.0:{arguments.grpc_port}",
        health=f"0.0.0.0:{arguments.grpc_health_port}",
        tls="self-signed",
        conformance=True,
        ends_early=False,
    )


async def serve(pool: Key, settings: Settings, kubeconfig: str | None = None) -> None:
    """Pick among the pods of a pool until told to stop."""
    told = ToldToStop()
    service = Service(
        fleet=Fleet(),
        reads=_Opaque(),
        budget_for=lambda _request, _headers: Budget(),
        report=lambda _record: None,
        settings=settings,
    )
    async with api(kubeconfig) as server:
        pods = Pods(api=server, pool=pool, say=service.take)
        following = asyncio.create_task(pods.follow())
        try:
            async with service.run() as running:
                log.info("serving", extra={"port": running.port, "pool": str(pool)})
                await told.wait(following)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    log.info("stopped")


class _Opaque:
    """Reads nothing: whatever a body says, it passes."""

    def read(self, _arrival: Arrival) -> NotForUs:
        return NotForUs(why="nothing is known of the workers")

    def learn(self, grant: Grant) -> None:
        del grant

    def doubt(self, model: str) -> None:
        del model


@dataclass(slots=True, kw_only=True)
class Pods:
    """The ports of a pool's pods, said as workers whenever they change."""

    api: Api
    pool: Key
    say: Callable[[Record], None]
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _told: dict[WorkerId, bool] = field(default_factory=dict)

    async def follow(self) -> None:
        """Follow until cancelled."""
        pools, pods = (
            Informer(
                api=self.api,
                kind=kind,
                namespace=self.pool.namespace,
                on_change=self._changed.set,
            )
            for kind in (POOLS, PODS)
        )
        async with asyncio.TaskGroup() as tasks:
            for informer in (pools, pods):
                tasks.create_task(informer.run())
            while True:
                await self._changed.wait()
                self._changed.clear()
                self.become(
                    {k: one for k, one in pools.items.items() if isinstance(one, InferencePool)},
                    {k: one for k, one in pods.items.items() if isinstance(one, Pod)},
                )

    def become(self, pools: Mapping[Key, InferencePool], pods: Mapping[Key, Pod]) -> None:
        """Say what differs from what was said."""
        there: dict[WorkerId, bool] = {}
        if self.pool in pools:
            targets = targets_of(World(pools=pools, pods=pods), pools[self.pool])
            there = {WorkerId(end.address): target.accepts for end, target in targets.items()}
        for worker in self._told.keys() - there.keys():
            self.say(WorkerGone(worker=worker))
        for worker, ready in there.items():
            if self._told.get(worker) != ready:
                known = _NOTHING_KNOWN
                self.say(WorkerSeen(worker=worker, endpoint=worker, settings=known, ready=ready))
        self._told = there
