"""A standby follows the leader's stream as a picker does, so that it begins with what is known.

An engine's replay reaches back minutes, its cache hours. Whoever comes to lead starts its logs with
what it heard, or with what it knew when it led before, where nobody did meanwhile; its collectors
go on from there (`succession.py`).
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from leadsman.records import Record
from leadsman_fleet.client import FleetClient, Target
from leadsman_fleet.state import FleetState

from leadsman_operator.objects import Key


class _Follower:
    """Follows one pool, from when it is made."""

    def __init__(self, target: Target) -> None:
        self.state = FleetState()
        self.client = FleetClient(target, self._fold)
        self.task = asyncio.create_task(self.client.run(), name=f"standby {target.pool}")

    def _fold(self, record: Record) -> None:
        self.state.apply(record)


@dataclass(slots=True, kw_only=True)
class Standby:
    """One operator that waits. peers: the address of all of them; only the leader's is open."""

    peers: str
    name: str
    _own: Mapping[Key, FleetState] = field(default_factory=dict)
    _followers: dict[Key, _Follower] = field(default_factory=dict)

    def remember(self, states: Mapping[Key, FleetState]) -> None:
        """Keep what was known when this one led."""
        self._own = states

    def follow(self, pools: Collection[Key]) -> None:
        """Follow these pools too from now on."""
        for key in pools:
            if key not in self._followers:
                target = Target(address=self.peers, replica=self.name, pool=str(key))
                self._followers[key] = _Follower(target)

    async def take(self) -> dict[Key, FleetState]:
        """Follow no more, and give what is known."""
        followers, self._followers = self._followers, {}
        for one in followers.values():
            one.task.cancel()
        await asyncio.gather(*(one.task for one in followers.values()), return_exceptions=True)
        heard = {k: one.state for k, one in followers.items() if one.client.synced.is_set()}
        own, self._own = self._own, {}
        return {**own, **heard}
