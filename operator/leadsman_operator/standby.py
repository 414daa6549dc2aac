"""A standby follows the leader's stream as a picker does, so that it begins with what is known.

An engine's replay reaches back minutes, its cache hours. Whoever comes to lead starts its logs with
what it heard, and its collectors go on from there (`succession.py`).
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from leadsman.records import Ended, Granted, Record, TokensSeen
from leadsman_fleet.client import FleetClient, Target
from leadsman_fleet.state import FleetState

from leadsman_operator.objects import Key

_PICKERS_OWN = Granted | TokensSeen | Ended
"""Pickers say these again to whoever leads."""


@dataclass(slots=True, kw_only=True)
class Standby:
    """One operator that waits. peers: the address of all of them; only the leader's is open."""

    peers: str
    name: str
    _states: dict[Key, FleetState] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def follow(self, pools: Collection[Key]) -> None:
        """Follow these pools too from now on."""
        for key in pools:
            if key not in self._states:
                state = self._states[key] = FleetState()
                target = Target(address=self.peers, replica=self.name, pool=str(key))
                run = FleetClient(target, _folding(state)).run()
                self._tasks.append(asyncio.create_task(run, name=f"standby {key}"))

    async def take(self) -> dict[Key, FleetState]:
        """Follow no more, and give what was heard."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        states, self._states = self._states, {}
        self._tasks.clear()
        return states


def _folding(state: FleetState) -> Callable[[Record], None]:
    def fold(record: Record) -> None:
        if not isinstance(record, _PICKERS_OWN):
            state.apply(record)

    return fold
