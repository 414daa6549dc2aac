"""KvSequence: what to make of numbered event batches that may be lost, late, or from a new engine.

The question: which batches to apply, in which order, and how far to believe the result. An
engine numbers its batches from 0 and keeps the last thousands for whoever asks. No socket is in
here: the caller tells what came, and does what the returned actions say.

    connected      ask for the history: from 0 the first time, then from the last batch applied
    live, in turn  apply
    live, ahead    a gap: hold it and what follows, and ask for what is missing
    live, behind   an echo of what the replay brought already, else a new engine: forget all
    replayed       apply; the first must be the last batch applied before, byte for byte,
                   else a new engine answers
    replay over    apply what was held; where batches are missing still, be suspect
    cleared        the engine holds nothing from before: suspicion has no object any more

Batches missing from before the first one seen are no gap: what was stored in them is not
credited, and a removal of it does nothing. Without a replay socket a lost connection makes the
view suspect until the next batch in turn shows that nothing was missed.

Source: vLLM 0.32 distributed/kv_events.py, ZmqEventPublisher.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from leadsman.records import Trust

HELD_LIMIT: Final = 10_000


class Apply(NamedTuple):
    """Apply this batch now: nearly all that is ever to be done."""

    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Forget:
    """The engine is a new one: nothing from before is there."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask for all batches from `start` on; an answer still under way is void."""

    start: int


@dataclass(frozen=True, slots=True)
class Believe:
    """Believe the worker's view this far from here on."""

    trust: Trust
    reason: str


Action: TypeAlias = Apply | Forget | AskReplay | Believe


class KvSequence:
    """Puts batches in order. Each method returns what is to be done, in order."""

    def __init__(self, *, can_replay: bool) -> None:
        self.is_replaying = False
        self.trust: Trust | None = None
        self._can_replay = can_replay
        self._next: int | None = None
        self._last = 0
        self._unverified = False
        self._unsure = False
        self._held: list[tuple[int, bytes]] = []
        self._echoes: dict[int, int] = {}

    def connected(self) -> list[Action]:
        """Note that the live socket is connected, for the first time or again.

        What was held is let go: if the engine is the same, the replay brings it.
        """
        if self._can_replay:
            self._held.clear()
            return self._ask("connected")
        if self._next is None:
            return self._believe(Trust.LIVE, "no history to ask for")
        self._unsure |= self.trust is not Trust.SUSPECT
        return self._believe(Trust.SUSPECT, "connection was lost, and there is no replay")

    def live(self, sequence: int, payload: bytes) -> list[Action]:
        """Take a batch from the live socket."""
        if self.is_replaying:
            self._held.append((sequence, payload))
            if len(self._held) > HELD_LIMIT:
                return self.replay_over("too many batches came meanwhile")
            return []
        if self._can_replay and sequence > 0 and self._is_foreign(sequence, payload):
            self._held.append((sequence, payload))
            return self._start_over(f"batch {sequence} came again")
        if self._can_replay and self._next is not None and sequence > self._next:
            self._held.append((sequence, payload))
            return self._ask(f"batches {self._next} to {sequence - 1} are missing")
        return self._take(sequence, payload)

    def replayed(self, sequence: int, payload: bytes) -> list[Action]:
        """Take a batch from the replay socket."""
        if self._next is None:
            return self._apply(sequence, payload, echoes=True)
        if self._unverified and sequence == self._next - 1:
            self._unverified = False
            if hash(payload) != self._last:
                return self._start_over("the last batch is another one now")
            return []
        unverified, self._unverified = self._unverified, False
        if sequence < self._next:
            return []
        doubt: list[Action] = []
        if unverified and sequence == self._next:
            self._unsure = False
            doubt = self._believe(Trust.SUSPECT, "history no longer reaches back")
        return doubt + self._apply(sequence, payload, echoes=True)

    def replay_over(self, problem: str | None = None) -> list[Action]:
        """Note that the replay ended, or failed because of `problem`."""
        if self._unverified and problem is None:
            return self._start_over("the last batch is unknown to it")
        self.is_replaying = self._unverified = False
        actions: list[Action] = []
        if problem is not None and self._next is not None:
            self._unsure |= self.trust is not Trust.SUSPECT
            actions += self._believe(Trust.SUSPECT, f"replay failed: {problem}")
        held, self._held = self._held, []
        for sequence, payload in held:
            actions += self._take(sequence, payload)
        if self.trust is Trust.REPLAYING:
            actions += self._believe(Trust.LIVE, "history is complete")
        return actions

    def cleared(self) -> list[Action]:
        """Note that the engine said that it holds nothing."""
        self._unsure = False
        return self._believe(Trust.LIVE, "cleared") if self.trust is Trust.SUSPECT else []

    def lost(self, reason: str) -> list[Action]:
        """Note that a batch could not be understood."""
        self._unsure = False
        return self._believe(Trust.SUSPECT, reason)

    def check(self) -> None:
        """Assert every invariant."""
        assert self._can_replay or not self.is_replaying
        assert self.is_replaying or not (self._held or self._unverified)
        assert not self._unsure or self.trust is Trust.SUSPECT
        assert all(self._next is not None and echo < self._next for echo in self._echoes)
        assert self.trust is not Trust.REPLAYING or self.is_replaying

    def _ask(self, reason: str) -> list[Action]:
        self.is_replaying = True
        self._unverified = self._next is not None
        start = 0 if self._next is None else self._next - 1
        actions: list[Action] = []
        if self.trust is not Trust.SUSPECT:
            actions += self._believe(Trust.REPLAYING, reason)
        return [*actions, AskReplay(start)]

    def _start_over(self, reason: str) -> list[Action]:
        """Forget a former engine while a replay is under way, and ask the new one for its own."""
        self._restart()
        return [Forget(f"engine is new: {reason}"), *self._ask("engine is new")]

    def _restart(self) -> None:
        self._next, self._unverified, self._unsure = None, False, False
        self._echoes.clear()
        self.trust = None

    def _is_foreign(self, sequence: int, payload: bytes) -> bool:
        """Tell whether a batch is behind the last one and not known from a replay."""
        behind = self._next is not None and sequence < self._next
        return behind and self._echoes.get(sequence) != hash(payload)

    def _take(self, sequence: int, payload: bytes) -> list[Action]:
        """Apply a live batch without asking for what may be missing before it."""
        if self._is_foreign(sequence, payload):
            self._restart()
            forget = Forget(f"engine is new: batch {sequence} came again")
            live = self._believe(Trust.LIVE, "engine is new")
            return [forget, *live, *self._apply(sequence, payload)]
        while self._echoes and (oldest := next(iter(self._echoes))) <= sequence:
            del self._echoes[oldest]
        if self._next is not None and sequence < self._next:
            return []
        return self._apply(sequence, payload)

    def _apply(self, sequence: int, payload: bytes, *, echoes: bool = False) -> list[Action]:
        actions: list[Action] = []
        if self._next is not None and sequence > self._next:
            self._unsure = False
            lost = f"batches {self._next} to {sequence - 1} are lost"
            actions += self._believe(Trust.SUSPECT, lost)
        elif self._unsure:
            self._unsure = False
            actions += self._believe(Trust.LIVE, "nothing was missed")
        self._next, self._last = sequence + 1, hash(payload)
        if echoes:
            self._echoes[sequence] = self._last
        return [*actions, Apply(sequence, payload)]

    def _believe(self, trust: Trust, reason: str) -> list[Action]:
        if trust is self.trust and trust is not Trust.SUSPECT:
            return []
        self.trust = trust
        return [Believe(trust, reason)]
