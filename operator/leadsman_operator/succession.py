"""What a collector makes of a cache that another one followed before it.

The log knows which blocks the worker held, by our keys; only the engine's replay tells which names
of the engine's they have, and without these a removal cannot be understood. So while the replay
runs its batches are folded and not said, and what the log knows stays. Then:

    it reaches back to batch 0   what it adds up to is all there is, and replaces what was known
    it ends before the log did   the engine is a new one: likewise
    it is too short              what it adds up to is said, and what else was known is kept, as
                                 *inherited* blocks, without names

A removal of an unknown name takes the oldest inherited block: engines give up what was used least
lately, and for how long it was not used is not known better than by its order here. An inherited
block that is stored again has a name from then on. And there are never more blocks than the engine
has. So the number is right at once, which ones they are less and less in doubt, and when none are
left the view is exact. Until then it is `replaying`: credited, and not the last word.

Where batches are lost besides, nothing inherited is kept. Only what is in the GPU is inherited.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from leadsman.records import (
    GPU,
    Cleared,
    KvEvent,
    KvEvents,
    Removed,
    Stored,
    Trust,
    TrustChanged,
    WorkerSeen,
)
from leadsman.units import BlockKey, Blocks, Keys
from leadsman_engines.blocks import EngineBlocks
from leadsman_fleet.state import FleetState

from leadsman_operator.endpoint import Publish


class Succession:
    """Stands between one worker's event stream and the log, from the collector's start on.

    before: what the cache held, as the log last said. blocks: those that the stream knows names of.
    """

    def __init__(
        self, seen: WorkerSeen, before: KvEvents, blocks: EngineBlocks, publish: Publish
    ) -> None:
        self._before = before
        self._capacity = seen.settings.num_blocks
        self._blocks = blocks
        self._publish = publish
        self._replayed: FleetState | None = FleetState()
        self._replayed.apply(seen)
        self._has_replayed = False
        self._first: int | None = None
        self._last = 0
        self._unknown_before = 0
        known = (key for event in _stored(before) for key in event.keys.tolist())
        self._inherited: dict[BlockKey, None] = dict.fromkeys(known)

    def hear(self, record: KvEvents | TrustChanged) -> None:
        """Take what the stream says, and say what follows from it."""
        replayed = self._replayed
        match record:
            case KvEvents() if replayed is not None:
                self._fold(replayed, record)
            case KvEvents():
                self._pass_events(record)
            case TrustChanged() if replayed is not None:
                self._hear_replay_trust(replayed, record)
            case TrustChanged():
                self._pass_trust(record)

    # -- while the engine replays ----------------------------------------------------------------

    def _fold(self, replayed: FleetState, record: KvEvents) -> None:
        if self._first is None:
            self._first = record.sequence
        self._last = record.sequence
        replayed.apply(record)
        unknown = self._unknown()
        self._outdate(record, unknown if record.sequence > self._before.sequence else 0)

    def _hear_replay_trust(self, replayed: FleetState, record: TrustChanged) -> None:
        if record.trust is Trust.REPLAYING:
            self._has_replayed = True
            self._publish(record)
            return
        self._replayed = None
        whole = next(one for one in replayed.snapshot() if isinstance(one, KvEvents))
        if record.trust is not Trust.LIVE or not self._is_too_short():
            self._inherited.clear()
        self._give_up(self._too_many())
        kept = [Stored(keys=_keys(self._inherited))] if self._inherited else []
        cleared, *stored = whole.events
        self._publish(replace(whole, events=(cleared, *kept, *stored)))
        self._pass_trust(record)

    def _is_too_short(self) -> bool:
        if self._first is None:
            return not self._has_replayed
        return self._first > 0 and self._last >= self._before.sequence

    # -- afterwards ------------------------------------------------------------------------------

    def _pass_trust(self, record: TrustChanged) -> None:
        if record.trust is Trust.LIVE and self._inherited:
            reason = f"{len(self._inherited)} blocks are known from before alone"
            record = replace(record, trust=Trust.REPLAYING, reason=reason)
        elif record.trust in (Trust.SUSPECT, Trust.BLIND) and self._inherited:
            self._say_gone(self._give_up(len(self._inherited)))
        self._publish(record)

    def _pass_events(self, record: KvEvents) -> None:
        unknown = self._unknown()
        if not self._inherited:
            self._publish(record)
            return
        gone = self._outdate(record, unknown)
        gone += self._give_up(self._too_many())
        events: tuple[KvEvent, ...] = record.events
        if gone:
            events = (Removed(keys=_keys(gone)), *events)
        self._publish(replace(record, events=events))
        if not self._inherited:
            reason = "nothing from before is left"
            self._publish(TrustChanged(worker=record.worker, trust=Trust.LIVE, reason=reason))

    def _outdate(self, record: KvEvents, unknown: Blocks) -> list[BlockKey]:
        """Take out what a batch removes by unknown names, and what it gives a name."""
        if any(isinstance(event, Cleared) and event.tier in (None, GPU) for event in record.events):
            self._inherited.clear()
        gone = self._give_up(unknown)
        for event in _stored(record):
            named = [key for key in event.keys.tolist() if key in self._inherited]
            for key in named:
                self._inherited.pop(key, None)
            gone += dict.fromkeys(named)
        return gone

    def _say_gone(self, keys: list[BlockKey]) -> None:
        self._publish(replace(self._before, events=(Removed(keys=_keys(keys)),)))

    def _give_up(self, count: Blocks) -> list[BlockKey]:
        oldest = [key for key, _ in zip(self._inherited, range(count), strict=False)]
        for key in oldest:
            del self._inherited[key]
        return oldest

    def _too_many(self) -> Blocks:
        return max(0, len(self._inherited) + self._blocks.known - self._capacity)

    def _unknown(self) -> Blocks:
        """Count the removals that were not understood since this was asked before."""
        before, self._unknown_before = self._unknown_before, self._blocks.counts["unknown_removal"]
        return self._unknown_before - before


def _stored(record: KvEvents) -> Iterable[Stored]:
    return (one for one in record.events if isinstance(one, Stored) and one.tier == GPU)


def _keys(keys: Iterable[BlockKey]) -> Keys:
    return np.fromiter(keys, dtype=np.uint64)
