"""Follows one engine step by step, from what is seen of it.

The mirror is a `Replay` of the past: it commits a step only when something shows that the step is
over: a token of a stream, a first token, an end, a batch of KV events (which carries the engine's
own time and, per session, how far each prompt has come). So all that was known at the step's start
is known when it is committed, and little has to be undone. Steps that nobody can see are committed
by the clock. A prediction runs on from the mirror's state and leaves it as it is.

What keeps it honest (each was measured as a fault on a real engine):
- only the first sight of a step sets its end; later chunks of the same step do not;
- a late event, older than the last confirmed step, moves nothing back;
- only what an event or a stream shows to be wrong is moved, and only the request it is about, but
  for the few steps that a witness takes back for all;
- no more steps are committed for a sighting than the time since the last end allows;
- steps are learned from busy stretches between two observed ends only, never across idle time.
"""

import math
from collections.abc import Callable
from itertools import count
from operator import itemgetter
from typing import TypeAlias

from leadsman.engine import EngineSettings
from leadsman.ghosts import Ghosts
from leadsman.holding import Flight
from leadsman.records import GPU, Ended, Granted, KvEvents, Stored
from leadsman.schedulers import prompts_go_first, replay_for, tells_early
from leadsman.sequence import Seq
from leadsman.steptime import StepLearner, StepWeights
from leadsman.units import BlockKey, Blocks, RequestId, Seconds, Tokens

MOST_REWOUND = 4
"""A witness that lacks more steps was preempted; the others were not."""

WITNESSES = 2
"""Streams a worker that are read chunk by chunk: as good as reading all, one is not enough."""

ARRIVAL_DELAY: Seconds = 0.0045
ARRIVAL_DELAY_PER_TOKEN: Seconds = 0.75e-6
"""From a request's grant until the engine's scheduler sees it: API server, checks, hand-over.
Source: measured on vLLM 0.32 with prompts of token ids."""


Told: TypeAlias = tuple[Flight, list[BlockKey]]


class Mirror(Ghosts):
    """The state of one engine, as far as it was seen; see the module for what it promises.

    beside: the mirrors of those that step together with it, and how long their steps last.
    """

    def __init__(self, settings: EngineSettings, learner: StepLearner) -> None:
        super().__init__(settings, learner)
        self.beside: list[tuple[Mirror, StepWeights]] = []
        self._offset: Seconds | None = None
        self.event_lag: Seconds | None = None
        self._arrivals = 0
        self._granted_until: Seconds = -math.inf

    # -- what is asked of it -----------------------------------------------------------------------

    @property
    def wants_witness(self) -> bool:
        """Whether one more stream should be read chunk by chunk."""
        return sum(flight.is_witness for flight in self.flights.values()) < WITNESSES

    def busy_until(self, weights: StepWeights) -> Seconds:
        """Give a moment before which no request that comes now is scheduled, far back if unknown.

        Ahead of it in a first-come queue are all prompts, but for what was cached when they came,
        and for one step that it may share.
        """
        budget, replay = self.settings.max_num_batched_tokens, self.replay
        if not self.settings.is_first_come or self.settings.long_prefill_token_threshold:
            return -math.inf
        ahead = sum([seq.target - seq.computed for seq in replay.prefilling]) - budget
        ahead += sum([seq.uncached for seq in replay.waiting if seq.cached is None])
        if ahead <= 0:
            return -math.inf
        return replay.clock + weights.a * ahead + weights.t0 * -(-ahead // budget)

    # -- what comes from outside -------------------------------------------------------------------

    def grant(self, granted: Granted, expected: Tokens) -> Flight:
        """Add a request at the moment of the pick, or when another picker's is heard of.

        expected: its output tokens, as believed.
        """
        ghost = self._unmask(granted.request)
        computed = 0 if ghost is None else self._computed(ghost.seq)
        if ghost is not None:
            del self.flights[ghost.seq.id]
            self.replay.drop(ghost.seq)
        seq = self.sequence(granted, expected)
        self._arrivals += 1
        seq.arrival = self._arrivals
        found = self.pool.depth(seq.keys, self.readable(seq))
        found = max(found, *(common for _, common in seq.kin)) if seq.kin else found
        seq.uncached = seq.prompt - found * self.settings.block_size
        flight = Flight(
            seq=seq,
            granted_at=granted.at,
            max_tokens=granted.max_tokens,
            min_tokens=granted.min_tokens,
            is_alone=not self.flights,
            first_key=seq.keys[0] if seq.keys else None,
        )
        for other in self.flights.values():
            other.is_alone = other.is_alone and other.first_at is not None
        self.flights[granted.request] = flight
        self._note_prompt(seq.prompt)
        self.replay.add(seq)
        if granted.at < self._granted_until:
            self._fall_in(flight)
        self._granted_until = max(self._granted_until, granted.at)
        if ghost is not None:
            self._take_over(flight, ghost, computed)
        return flight

    def _fall_in(self, flight: Flight) -> None:
        """A grant was heard of late: whoever came since stands, and finds its blocks, behind it."""
        seq = flight.seq
        self._call_up(seq)
        for request, common in seq.kin:
            other = self.flights[request]
            if other.granted_at > flight.granted_at:
                other.seq.kin.append((seq.id, common))
                other.seq.kin.sort(key=itemgetter(1), reverse=True)

    def _take_over(self, flight: Flight, ghost: Flight, computed: Tokens) -> None:
        """Put a request to where its ghost was, which had computed so many tokens.

        A ghost's count leaves out what was found cached, and its prompt's length was a guess.
        """
        seq, size, flight.held = flight.seq, self.settings.block_size, ghost.held
        if not ghost.held:
            return
        depth = self._note_stored(flight, ghost.held)
        assert flight.believed is not None, "noting what was stored notes what was believed"
        found = seq.cached or 0
        # By now its own blocks are there too: what it found is what its first event left out.
        flight.believed, flight.claimed = min(flight.believed, found), min(flight.claimed, found)
        made, whole = ghost.seq.generated, len(seq.keys)
        if depth > whole:
            self.replay.place(seq, max(found + computed, depth * size))
        elif depth == whole and made:
            self.replay.place(seq, seq.prompt + made - 1)
        else:
            self.replay.place(seq, depth * size)

    def sequence(
        self,
        granted: Granted,
        expected: Tokens,
        listed: Callable[[], list[BlockKey]] | None = None,
    ) -> Seq:
        """Make what the replay knows of a request; adds nothing.

        No engine has more of one prompt than its context holds: what is longer is several prompts,
        or refused, and as one it would never be admitted, nor anybody behind it.

        listed: gives its keys, of one that is only priced; it is not asked where nothing here
        begins as the prompt does, since a list of keys is what costs most.
        """
        delay = ARRIVAL_DELAY + ARRIVAL_DELAY_PER_TOKEN * granted.prompt_tokens
        prompt = min(granted.prompt_tokens, self.settings.longest_prompt)
        seq = Seq(granted.request, prompt, granted.at + delay)
        first = int(granted.keys[0]) if len(granted.keys) else None
        relatives = [
            (request, flight.seq.keys)
            for request, flight in self.flights.items()
            if flight.first_key == first is not None
        ]
        if listed is None:
            seq.keys = granted.keys.tolist()
        elif relatives or (first is not None and first in self.pool):
            seq.keys = listed()
        common = 0
        for request, keys in relatives:
            common = _common(seq.keys, keys, common)
            seq.kin.append((request, common))
        seq.kin.sort(key=itemgetter(1), reverse=True)
        seq.limit = max(1, self.settings.max_model_len - prompt)
        if granted.max_tokens is not None:
            seq.limit = min(seq.limit, granted.max_tokens)
        seq.expected = min(max(1, expected), seq.limit)
        seq.priority, seq.reads_cache = granted.priority, granted.reads_cache
        seq.arrival = self._arrivals + 1
        return seq

    def saw_tokens(self, request: RequestId, tokens: Tokens, at: Seconds) -> None:
        """`tokens` output tokens of a request had come by `at`."""
        flight = self.flights.get(request)
        if flight is None:
            return
        if flight.first_at is None:
            flight.is_witness = self.wants_witness
            flight.first_at = at
        self._saw_decoded(flight.seq, tokens, at)

    def saw_end(self, ended: Ended) -> Flight | None:
        """A request is over: its slot and its blocks are free. Returns it, None if unknown."""
        flight = self.flights.pop(ended.request, None)
        if flight is None:
            return None
        seq = flight.seq
        if ended.completion_tokens is not None and flight.first_at is not None:
            self._saw_decoded(seq, ended.completion_tokens, ended.at)
        self._forget(seq.id)
        self.replay.drop(seq)
        self.pool.unpin(flight.held)
        return flight

    def saw_events(self, batch: KvEvents) -> None:
        """Take what one engine step did to its cache; anchors the mirror, then moves the blocks."""
        self.follows_events = True
        offset = batch.received_at - batch.engine_time
        self._offset = offset if self._offset is None else min(self._offset, offset)
        self.event_lag = offset - self._offset
        at = batch.engine_time + self._offset
        is_late = self._is_late(at)
        haunted = self._strangers(batch)
        told = [
            (flight, event.keys.tolist())
            for event in batch.events
            if isinstance(event, Stored) and event.tier == GPU and len(event.keys)
            if (flight := haunted.get(id(event)) or self._whose(event)) is not None
        ]
        if not is_late:
            self._hear_silence([flight for flight, _ in told])
        for together in self._by_step(told):
            depths = [(flight.seq, self._note_stored(flight, keys)) for flight, keys in together]
            if not is_late:
                self._saw_depths(depths, at)
        for event in batch.events:
            if isinstance(event, Stored) and id(event) in haunted:
                self._hold(haunted[id(event)].seq, event.keys.tolist())
            else:
                self._move_blocks(event)

    def reset(self) -> None:
        """The engine restarted: nothing runs, nothing is cached. Flights stay until they end."""
        self.replay = replay_for(self.settings)
        self.pool.clear()
        for flight in self.ghosts:
            del self.flights[flight.seq.id]
        self.windows.clear()
        for flight in self.flights.values():
            flight.held.clear()
        self._unsettled, self._last_end, self._offset = [], None, None
        self.follows_events = False
        self.learner.interrupt()

    # -- anchoring on tokens -----------------------------------------------------------------------

    def _saw_decoded(self, seq: Seq, tokens: Tokens, at: Seconds) -> None:
        """`seq` had `tokens` output tokens when a step ended at `at`."""
        replay, unsettled = self.replay, len(self._unsettled)
        steps = unsettled - self._steps_after(seq, tokens)  # since the last settled end
        if seq.id not in replay.decoding:
            if seq.generated and steps != unsettled:
                replay.place(seq, seq.prompt + tokens - 1)
            elif not seq.generated:
                self._saw_first(seq, tokens, at)
        elif self._is_same_moment(at) or self._is_late(at):
            # The step is known already: if it does not fit, this sequence's own count was wrong.
            if steps > 0 or (steps < -1 and not self._is_late(at)):
                replay.place(seq, self._computed(seq) + steps)
        elif self._is_plausible(steps, seq, at):
            if steps <= unsettled:
                self._settle(at, left=unsettled - steps)
            else:
                self._saw_first(seq, tokens, at)
        elif steps or self._is_watched(seq):
            self._correct(seq, tokens, steps, at)

    def _is_plausible(self, steps: int, seq: Seq, at: Seconds) -> bool:
        """Say whether so many steps may have ended by `at` since the last settled end.

        A witness is believed within wide limits; while there is one, others must fit the time.
        """
        if steps <= 0:
            return False
        shortest = self._last_seconds if self.replay.prefilling else self._decode_step()
        if self._last_end is None or not shortest:
            return True
        expected = (at - self._last_end) / shortest
        if self._is_watched(seq) or not self._has_witness:
            return steps <= 2.0 + 1.5 * expected
        return steps <= 1.5 + 1.2 * expected

    def _correct(self, seq: Seq, tokens: Tokens, steps: int, at: Seconds) -> None:
        """A step ended at `at`, but not as many as `seq` makes it: a count was wrong.

        A witness was right a moment ago: if it now lacks a few steps, all have run ahead. Where no
        end was seen yet, as after a restart, there was no such moment.
        """
        if self._last_end is None:
            self.replay.place(seq, seq.prompt + tokens - 1)
            self._lose_track(at)
            return
        if self._is_watched(seq) and -MOST_REWOUND < steps <= 0:
            if at - self._last_end < 0.6 * self._last_seconds:
                return
            self.learner.interrupt()
            self.replay.rewind(1 - steps)
        if self._unsettled or self._commit() is not None:
            self._settle(at, left=len(self._unsettled) - 1)
            ahead = len(self._unsettled)
            if self.replay.generated(seq) != tokens + ahead:
                self.replay.place(seq, seq.prompt + tokens - 1 + ahead)

    def _saw_first(self, seq: Seq, tokens: Tokens, at: Seconds) -> None:
        """Commit what must have happened for `seq` to have `tokens` output tokens by `at`."""
        replay = self.replay
        self._call_up(seq)
        most = max(1, tokens - replay.generated(seq))
        if seq.id not in replay.decoding or prompts_go_first(self.settings):
            most += self._steps_to_first()
        if self._commit_until(lambda: replay.generated(seq) >= tokens, at, most):
            self._settle(at)
        elif seq.limit is None or tokens < seq.limit:
            replay.place(seq, seq.prompt + tokens - 1)
            self._lose_track(at)

    # -- anchoring on stored blocks ----------------------------------------------------------------

    def _by_step(self, told: list[Told]) -> list[list[Told]]:
        """Part what a batch tells by the step that it is about.

        With async scheduling, answers tell of the step that ended, and prompts of the one that
        begins: noted too early, a prompt would be taken into the step that ended.
        """
        if not self.settings.async_scheduling:
            return [told]
        parts: list[list[Told]] = [[], []]
        for flight, keys in told:
            parts[flight.blocks_seen < len(flight.seq.keys)].append((flight, keys))
        return parts

    def _note_stored(self, flight: Flight, keys: list[BlockKey]) -> Blocks:
        """Note what an event says of a request: that it runs, from where, how deep it is."""
        seq, start = flight.seq, flight.blocks_seen
        if flight.believed is None:
            self._believe(flight, self.lookup(seq).tokens)
        depths = flight.depths = flight.depths or dict(zip(seq.keys, count(1), strict=False))
        if not start and (first := depths.get(keys[0])):
            start = first - 1
            # What a lower tier brought is stored on the GPU anew, and was not computed.
            found = max(start, min(seq.reach, start + len(keys)))
            seq.cached = found * self.settings.block_size
        elif not start and seq.id in self.replay.decoding:
            start = len(seq.keys)  # all of its prompt was cached: this is its answer's first block
        depth = depths.get(keys[-1], start + len(keys))
        if depth > len(seq.keys):
            depths[keys[-1]] = depth
        flight.blocks_seen = depth
        seq.visible_at = min(seq.visible_at, self.replay.clock - 1.0)
        return depth

    def _saw_depths(self, told: list[tuple[Seq, Blocks]], at: Seconds) -> None:
        """Anchor on how deep requests are stored: decodes first, theirs is the step that ended."""
        size = self.settings.block_size
        for seq, depth in told:
            if depth > len(seq.keys):
                self._saw_decoded(seq, depth * size - seq.prompt + 1, at)
        for seq, _ in reversed(told):
            self._call_up(seq)
        for seq, depth in told:
            if depth <= len(seq.keys):
                self._saw_prefilled(seq, depth, at)

    def _saw_prefilled(self, seq: Seq, depth: Blocks, at: Seconds) -> None:
        """A prompt is stored up to `depth` blocks by the step that ended at `at`.

        With async scheduling vLLM tells it when the step *before* that one ends.
        """
        size, told_early = self.settings.block_size, tells_early(self.settings)

        def is_there() -> bool:
            return self._computed(seq) + size - 1 >= depth * size

        if self._is_overrun(seq, depth):
            self.replay.place(seq, depth * size)
            self._lose_track(at)
        elif is_there():
            if self._unsettled and not told_early and self._computed(seq) // size == depth:
                self._settle(at)
        elif self._commit_until(is_there, at, self._steps_to_first()):
            self._settle(at, left=int(told_early))
        else:
            self.replay.place(seq, depth * size)
            self._lose_track(at)
        self._nudge(seq, depth * size)

    def _is_overrun(self, seq: Seq, depth: Blocks) -> bool:
        """Say whether `seq` is believed to decode although its prompt is stored no deeper.

        Else its whole prefill would pass for decoding, as slow as that.
        """
        if depth >= len(seq.keys) or seq.id not in self.replay.decoding:
            return False
        steps = len(self._unsettled) + tells_early(self.settings)
        most = (depth + 1) * self.settings.block_size
        return self._computed(seq) - steps * self.settings.max_num_batched_tokens >= most

    def _call_up(self, seq: Seq) -> None:
        """`seq` was seen to run: what got to the scheduler later does not stand in front of it.

        A short prompt may overtake a long one that was sent just before.
        """
        waiting = self.replay.waiting
        if not self.settings.is_first_come or seq not in waiting:
            return
        mine = self._arrival(seq)
        for place, other in enumerate(waiting):
            if other is seq:
                return
            if not other.order and self._arrival(other) > mine:
                waiting.remove(seq)
                waiting.insert(place, seq)
                return

    def _arrival(self, seq: Seq) -> Seconds:
        flight = self.flights.get(seq.id)
        sent = seq.visible_at if flight is None else flight.granted_at
        return sent + ARRIVAL_DELAY_PER_TOKEN * seq.prompt

    def _nudge(self, seq: Seq, stored: Tokens) -> None:
        """Correct how far a prefill is by what was stored: not less, and no whole block more."""
        if seq in self.replay.prefilling:
            right = max(stored, min(seq.computed, stored + self.settings.block_size - 1))
            if right != seq.computed and right < seq.target:
                seq.computed = right


def _common(ours: list[BlockKey], theirs: list[BlockKey], guess: Blocks) -> Blocks:
    """Count the leading keys that two prompts share; a key names its whole prefix, so bisect.

    guess: what the prompt shares with another: most share no more than their system prompt.
    """
    low, high = 0, min(len(ours), len(theirs))
    if 0 < guess < high and ours[guess] != theirs[guess] and ours[guess - 1] == theirs[guess - 1]:
        return guess
    while low < high:
        middle = (low + high + 1) // 2
        if ours[middle - 1] == theirs[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low
