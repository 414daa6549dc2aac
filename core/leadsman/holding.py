"""What one engine holds: requests in flight, their blocks, and what a newcomer would find.

The blocks of running requests are pinned in the `Pool`, others wait there to be given up. What was
given out since the last event is known by the replay alone, so free blocks are counted from both.
A prompt finds what the pool holds of it, and what requests that run already have in common with it.
"""

from dataclasses import dataclass, field

from leadsman.engine import EngineSettings
from leadsman.pool import Pool
from leadsman.records import GPU, Cleared, Removed, Stored
from leadsman.schedulers import findable, lost_to_eagle, replay_for
from leadsman.sequence import NOTHING, Hit, Seq
from leadsman.units import BlockKey, Blocks, RequestId, Seconds, Tokens
from leadsman.windows import Windows


@dataclass(slots=True)
class Flight:
    """A granted request, or a ghost (see `ghosts`), until it ends.

    believed: tokens that it was believed to find cached when it was admitted; claimed: those that
    it would find were nothing in doubt.
    held: keys of the blocks that it is known to hold. depths: how deep each block of its prompt is
    that an event may name, and each with output tokens in it that one did: after a preemption they
    are stored again. session: which a ghost's events name.
    """

    seq: Seq
    granted_at: Seconds
    max_tokens: Tokens | None = None
    min_tokens: Tokens = 0
    first_at: Seconds | None = None
    believed: Tokens | None = None
    claimed: Tokens = 0
    is_witness: bool = False
    is_alone: bool = False
    is_ghost: bool = False
    session: str | None = None
    first_key: BlockKey | None = None
    blocks_seen: Blocks = 0
    held: list[BlockKey] = field(default_factory=list)
    depths: dict[BlockKey, Blocks] = field(default_factory=dict)


class Holding:
    """One engine's queue, its running requests and their blocks."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.replay = replay_for(settings)
        self.pool = Pool()
        self.windows = Windows()
        self.flights: dict[RequestId, Flight] = {}
        self._unread, self._dropped = lost_to_eagle(settings)

    @property
    def queued_tokens(self) -> Tokens:
        """Prompt tokens that are not computed yet, of all in flight, whatever may be cached."""
        return sum(
            seq.target - seq.computed for seq in (*self.replay.prefilling, *self.replay.waiting)
        )

    def _computed(self, seq: Seq) -> Tokens:
        if seq.id in self.replay.decoding:
            return seq.computed + self.replay.tick - seq.base
        return seq.computed

    def lookup(self, seq: Seq) -> Hit:
        """Look up what `seq` finds cached if it is admitted in the next step."""
        most = self.readable(seq)
        if not most:
            return NOTHING
        depth = self.pool.depth(seq.keys, most)
        flight = self.flights.get(seq.id)
        if flight is not None and flight.blocks_seen and seq.cached is not None:
            depth = min(most, seq.cached // self.settings.block_size)
        pinned = self.pool.pinned(seq.keys, depth)
        for request, common in seq.kin:
            other = self.flights.get(request) if common > pinned else None
            if other is not None and other.seq.computed:
                tokens = findable(self.replay, request, other.seq.computed)
                stored = min(common, tokens // self.settings.block_size, most)
                depth, pinned = max(depth, stored), max(pinned, stored)
        if flight is None or not flight.blocks_seen:
            depth = max(self.usable(seq.keys, depth), min(seq.reach, most))
        return Hit(depth * self.settings.block_size, min(pinned, depth))

    def _believe(self, flight: Flight, tokens: Tokens) -> None:
        """Note what a request is believed to find now, unless that was noted before."""
        if flight.believed is None:
            keys, most = flight.seq.keys, self.readable(flight.seq)
            depth = self.pool.claimed(keys, most) if self.pool.doubted else 0
            claimed = self.usable(keys, depth) * self.settings.block_size
            flight.believed, flight.claimed = tokens, max(tokens, claimed)

    def usable(self, keys: list[BlockKey], depth: Blocks) -> Blocks:
        """Count the blocks that are used of so many that the first cache group has.

        Every group must be able to go on from there.
        """
        return max(0, self.windows.usable(keys, depth) - self._dropped)

    def readable(self, seq: Seq) -> Blocks:
        """Count the blocks that `seq` could find cached at most: never its last token."""
        if not (seq.reads_cache and self.settings.enable_prefix_caching):
            return 0
        most = (seq.target - 1 - self._unread) // self.settings.block_size
        return max(0, min(most, len(seq.keys)))

    def free_blocks(self) -> Blocks:
        """Count the blocks that no running request holds, cached or not.

        What a running request has beyond the blocks that events told of was given to it since.
        """
        replay, size, flights, untold = self.replay, self.settings.block_size, self.flights, 0
        for seq in (*replay.prefilling, *replay.decoding.values()):
            computed, flight = self._computed(seq), flights.get(seq.id)
            told = computed // size if flight is None else len(flight.held)
            untold += max(computed % size > 0, -(-computed // size) - told)
        return max(0, self.settings.num_blocks - len(self.pool.pins) - untold)

    def blocks_to_give(self) -> tuple[Blocks, Blocks]:
        """Count the blocks that the next step may give out, and those of them that hold nothing."""
        free = self.free_blocks() - self.replay.lingering
        return free, max(0, free - len(self.pool.free))

    def _hold(self, seq: Seq, keys: list[BlockKey]) -> None:
        flight = self.flights.get(seq.id)
        if flight is not None:
            self.pool.pin(keys)
            flight.held += keys

    def _move_blocks(self, event: Stored | Removed | Cleared) -> None:
        self.windows.move(event)
        if isinstance(event, Cleared):
            if event.tier in (None, GPU):
                self.pool.clear()
                for flight in self.flights.values():
                    flight.held.clear()
        elif event.tier == GPU:
            keys = event.keys.tolist()
            if isinstance(event, Removed):
                self.pool.remove(keys)
                return
            self.pool.note_stored(keys)
            if event.session is not None and RequestId(event.session) in self.flights:
                self._hold(self.flights[RequestId(event.session)].seq, keys)
            else:
                self.pool.keep(keys)
