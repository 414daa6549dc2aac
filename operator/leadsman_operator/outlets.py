"""Where a pool's records go, and where its collectors find what was known before they began."""

from collections.abc import Collection, Mapping
from typing import Protocol

from leadsman.declared import Declared
from leadsman.records import Learned, Record
from leadsman.units import WorkerId
from leadsman_fleet.state import FleetState

from leadsman_operator.collectors import Found
from leadsman_operator.endpoint import Endpoint
from leadsman_operator.shared_names import SharedNames


class Outlet(Protocol):
    """One pool's log, as whoever owns collectors has it."""

    def publish(self, record: Record) -> None:
        """Say a record. Never blocks."""

    def declare(self, declared: Declared) -> None:
        """Say what is declared of the pool from now on."""

    def lessons(self) -> list[Learned]:
        """List what was learned of each worker last."""

    def stores(self) -> list[WorkerId]:
        """List the shared stores that it knows."""


class SharedOutlet(Outlet, Protocol):
    """A log that several operators write."""

    async def before(self) -> FleetState | None:
        """Say what the log says now; None where it cannot be read."""

    async def let_go(self, workers: Collection[WorkerId]) -> None:
        """Say no more of these workers: another replica will."""

    async def lead(self, *, leads: bool) -> None:
        """Keep the log, and say what is declared, or leave that to another from now on."""

    async def tell(self, seat: int, found: Mapping[Endpoint, Found]) -> None:
        """Let the leader know what the holder of a seat found of its share."""

    async def told(self) -> Mapping[tuple[str, str | None], Found]:
        """Give what all replicas found, by URL and pod."""

    async def tell_names(self, names: SharedNames) -> None:
        """Let whoever reads stores know how engines name their blocks."""

    async def hear_names(self, names: SharedNames) -> None:
        """Take in what all replicas told so."""

    async def retain(self, addresses: Collection[str]) -> None:
        """Say that workers are gone which are nowhere any more, and nobody's."""

    async def close(self) -> None:
        """Say nothing more."""
