"""Requests that an engine serves and nobody told us of: they came around Leadsman.

They take slots, budget and blocks all the same. An engine that repeats session ids in its events
gives them away: blocks are stored for a session that no grant names. Each such request becomes a
*ghost* in the mirror, a flight like any other, anchored by its events:

- blocks stored for one session, or for none, go on its ghost whose prompt is being computed, since
  one prompt at a time is cut by the budget; else they begin a new one, or, one block alone, are a
  decoding one's;
- a prompt that was the last in its step, and filled what there was, is not over, and what is left
  of it is guessed to be as much as was there, as of lengths spread evenly over their logarithm;
  any other is;
- its answer is as long as anybody's;
- where its session is granted after all, another picker's grant came late: the request takes its
  place, and what the ghost proved of strangers is void;
- it is gone when somebody who waited for its slot is seen to run, or when the engine says that
  fewer run; of two such reports in a row the one that changes less is believed, since a report is
  older than it says.

Once a stranger has been seen, those reports also tell of ghosts that wait, or that run and were not
told of: they have prompts as long as ours. Ignored: what a ghost found cached; two strangers of
whom one follows the other in the same step, who look like one; and ghosts on engines whose events
name no sessions, where a stranger cannot be told from us.
"""

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final

from leadsman.engine import EngineSettings
from leadsman.holding import Flight
from leadsman.records import GPU, KvEvents, LoadSample, Stored
from leadsman.sequence import Seq
from leadsman.stepping import Stepping
from leadsman.steptime import StepLearner
from leadsman.units import BlockKey, RequestId, Seconds, Tokens

PROVEN_FOR: Final[Seconds] = 60.0
"""For so long after a stranger was seen, the engine's own counts may tell of more."""

REMEMBERED: Final = 1024
"""Ended requests whose last events may still come."""

_TYPICAL_STEP: Final = 0.05
"""How fast the mean of our prompts' lengths follows them."""


class Ghosts(Stepping):
    """The strangers among an engine's flights; see the module."""

    def __init__(self, settings: EngineSettings, learner: StepLearner) -> None:
        super().__init__(settings, learner)
        self._names_sessions = False
        self._ended: OrderedDict[RequestId, None] = OrderedDict()
        self._strange: dict[str | None, Seconds] = {}
        self._surplus: tuple[int, int] | None = None
        self._typical_prompt: Tokens = 0
        self._ghosts = 0

    @property
    def ghosts(self) -> list[Flight]:
        """Who is believed to have come around Leadsman, oldest first."""
        return [flight for flight in self.flights.values() if flight.is_ghost]

    def _note_prompt(self, tokens: Tokens) -> None:
        before = self._typical_prompt
        self._typical_prompt = (
            round(before + _TYPICAL_STEP * (tokens - before)) if before else tokens
        )

    def _forget(self, request: RequestId) -> None:
        """A request is over; what its last step stored may be told later."""
        self._ended[request] = None
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)

    # -- told by events ----------------------------------------------------------------------------

    def _whose(self, event: Stored) -> Flight | None:
        """Find whose blocks were stored, if that was one of ours."""
        session = None if event.session is None else RequestId(event.session)
        if session is not None and (flight := self.flights.get(session)) is not None:
            self._names_sessions |= not flight.is_ghost
            return flight
        return None

    def _strangers(self, batch: KvEvents) -> dict[int, Flight]:
        """Give each event that tells of a stranger to a ghost, by the event's identity."""
        found: dict[int, Flight] = {}
        if not self._names_sessions:
            return found
        size = self.settings.block_size
        whole = left = self.settings.max_num_batched_tokens - len(self.replay.decoding)
        over: list[Flight] = []
        last: Flight | None = None
        for event in batch.events:
            if not isinstance(event, Stored) or event.tier != GPU or not len(event.keys):
                continue
            if left < size:  # two steps in one batch: an asynchronous engine's first
                left, last = whole, None
            flight = self._whose(event)
            if self._is_strange(event):
                self._strange[event.session] = batch.received_at
                flight = self._ghost_of(event, over, found.values())
                flight.session = event.session
                found[id(event)] = flight
            if flight is None or not self._is_at_its_prompt(flight):
                continue
            if last is not None and last.is_ghost:
                self._lengthen(last, [], is_cut=False)
                over.append(last)
            stored = len(event.keys) * size
            if flight.is_ghost:
                self._lengthen(flight, event.keys.tolist(), is_cut=stored > left - size)
            last, left = flight, left - stored
        return found

    def _is_at_its_prompt(self, flight: Flight) -> bool:
        if flight.is_ghost:
            return flight.seq.id not in self.replay.decoding
        return flight.blocks_seen < len(flight.seq.keys)

    def _is_strange(self, event: Stored) -> bool:
        if event.session is None:
            return True
        request = RequestId(event.session)
        return request not in self.flights and request not in self._ended

    def _ghost_of(self, event: Stored, over: Sequence[Flight], told: Collection[Flight]) -> Flight:
        """Choose whose blocks these are, of all but those whose prompt is `over`.

        told: whom the batch told of before: they run.
        """
        replay, size = self.replay, self.settings.block_size
        waiting = [one for one in self.ghosts if one.seq in replay.waiting]
        ghosts = [
            one
            for one in self.ghosts
            if one not in over
            and (one.session == event.session or (one.session is None and one in waiting))
        ]
        at_prompt = [one for one in ghosts if self._is_at_its_prompt(one)]
        if at_prompt:
            return min(at_prompt, key=lambda one: one in waiting)
        if ghosts and len(event.keys) == 1:
            fills = {one.seq.id: (self._computed(one.seq) + size // 2) % size for one in ghosts}
            return min(ghosts, key=lambda one: abs(fills[one.seq.id] - size // 2))
        if replay.slots_used >= self.settings.max_num_seqs:
            self._lay_one([*over, *told])
        return self._raise(size)

    def _raise(self, prompt: Tokens) -> Flight:
        """Add a ghost that stands before all who wait."""
        self._ghosts += 1
        seq = Seq(RequestId(f"ghost-{self._ghosts}"), prompt, self.replay.clock - 1.0)
        seq.limit = max(1, self.settings.max_model_len - prompt)
        flight = Flight(seq=seq, granted_at=-math.inf, is_ghost=True)
        self.flights[seq.id] = flight
        for other in self.flights.values():
            other.is_alone = False
        self.replay.waiting.appendleft(seq)
        return flight

    def _unmask(self, request: RequestId) -> Flight | None:
        """Give the ghost of a request that was granted after all, by another picker."""
        self._strange.pop(request, None)
        first: Flight | None = None
        for ghost in self.ghosts:
            if ghost.session == request and first is None:
                first = ghost
            elif ghost.session == request:
                self._lay(ghost)
        return first

    def _lengthen(self, flight: Flight, keys: list[BlockKey], *, is_cut: bool) -> None:
        """A ghost's prompt goes on with these blocks, and further if it was cut."""
        seq, size = flight.seq, self.settings.block_size
        if keys and not flight.blocks_seen:
            flight.first_key = keys[0]
        for key in keys:
            seq.keys.append(key)
            flight.depths[key] = len(seq.keys)
        stored = len(seq.keys) * size
        guess = min(stored, self.free_blocks() * size // 2) if is_cut else 0
        seq.prompt = min(stored + max(guess, size // 2), self.settings.max_model_len - 1)
        seq.computed = min(seq.computed, stored)

    def _hear_silence(self, told: Sequence[Flight]) -> None:
        """Draw conclusions from whom a batch tells of, and from whom it does not.

        One of ours that runs although all slots seem to be taken has a ghost's. A ghost whose
        prompt was being computed, and that nothing is told of, was through before; or, if nothing
        ever was, does not run.
        """
        replay = self.replay
        for flight in told:
            if flight.seq in replay.waiting and replay.slots_used >= self.settings.max_num_seqs:
                self._lay_one(told)
        for flight in self.ghosts:
            seq = flight.seq
            if flight in told or seq not in replay.prefilling:
                continue
            if not flight.blocks_seen:
                self._lay(flight)
            else:
                seq.prompt = max(seq.computed, 1)
                replay.place(seq, seq.prompt)

    # -- told by counts ----------------------------------------------------------------------------

    def saw_load(self, sample: LoadSample) -> None:
        """Hold the engine's own counts against ours."""
        replay, ghosts = self.replay, self.ghosts
        self._strange = {
            session: at for session, at in self._strange.items() if sample.at - at < PROVEN_FOR
        }
        is_proven = bool(self._strange)
        if not (ghosts or is_proven):
            self._surplus = None
            return
        waiting = [ghost for ghost in ghosts if ghost.seq in replay.waiting]
        running = len(ghosts) - len(waiting)
        ours = sum(seq.visible_at <= sample.at for seq in replay.waiting) - len(waiting)
        surplus = sample.running - (replay.slots_used - running), sample.waiting - ours
        before, self._surplus = self._surplus or surplus, surplus
        for _ in range(running - max(0, before[0], surplus[0])):
            self._lay_one()
        for ghost in waiting[max(0, before[1], surplus[1]) :]:
            self._lay(ghost)
        if is_proven:
            for _ in range(min(before[0], surplus[0]) - running):
                self._seat_one()
            for _ in range(min(before[1], surplus[1]) - len(waiting)):
                self._queue(sample.at)

    def _queue(self, at: Seconds) -> None:
        """Add a ghost that waits behind those who were there at `at`."""
        flight = self._raise(max(1, self._typical_prompt))
        waiting = self.replay.waiting
        waiting.remove(flight.seq)
        place = sum(seq.visible_at <= at for seq in waiting)
        waiting.insert(place, flight.seq)

    def _seat_one(self) -> None:
        """Add a ghost that runs, and that no event told of: it decodes."""
        seq = self._raise(max(1, self._typical_prompt)).seq
        self.replay.place(seq, seq.prompt)

    def _lay_one(self, told: Collection[Flight] = ()) -> None:
        """A ghost that ran is gone: of those that nothing is told of, the one longest at it."""
        replay = self.replay
        ran = [one for one in self.ghosts if one.seq not in replay.waiting and one not in told]
        if ran:
            self._lay(max(ran, key=lambda one: replay.generated(one.seq)))

    def _lay(self, flight: Flight) -> None:
        """A ghost is gone: its slot and its blocks are free."""
        del self.flights[flight.seq.id]
        self.replay.drop(flight.seq)
        self.pool.unpin(flight.held)
