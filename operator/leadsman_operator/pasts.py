"""What a log knows of workers whose collectors are gone, for those that come after them."""

from collections.abc import Collection, Mapping

from leadsman.records import KvEvents, WorkerSeen
from leadsman.units import WorkerId
from leadsman_fleet.state import FleetState

from leadsman_operator.endpoint import Past


class Pasts:
    """The pasts of the workers at some addresses, each to be had once."""

    def __init__(self, state: FleetState, addresses: Collection[str]) -> None:
        records = [one for one in state.snapshot() if address_of(one.worker) in addresses]
        held = {one.worker: one for one in records if isinstance(one, KvEvents)}
        self._by_address: dict[str, dict[WorkerId, Past]] = {}
        for seen in records:
            if isinstance(seen, WorkerSeen):
                past = Past(seen=seen, held=held[seen.worker])
                self._by_address.setdefault(address_of(seen.worker), {})[seen.worker] = past

    def take(self, address: str) -> Mapping[WorkerId, Past]:
        """Give what is known of the workers at an address."""
        return self._by_address.pop(address, {})


def address_of(worker: WorkerId) -> str:
    """Give the `host:port` that a worker's name begins with."""
    return worker.partition("#")[0]
