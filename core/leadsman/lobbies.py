"""The lobbies of all models, and what of a budget's rules bears on who is held."""

import math
from collections.abc import Iterator
from functools import partial

from leadsman.admit import OWN, Excess
from leadsman.budget import Budget
from leadsman.candidates import Soundings
from leadsman.decide import Holds
from leadsman.gate import Gates
from leadsman.lobby import Held, Lobby, Over
from leadsman.records import Ended, Record, TokensSeen, WorkerGone, WorkerSeen
from leadsman.route import Choice
from leadsman.shares import NOBODY
from leadsman.units import BlockKey, RequestId, Seconds


class Lobbies:
    """A lobby for each model that has held requests, or had; costs nothing while none is held.

    longest: for which anybody may be held.
    """

    def __init__(self, gates: Gates, longest: Seconds) -> None:
        self._gates = gates
        self._longest = longest
        self._of: dict[str, Lobby] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    @property
    def next_turn(self) -> Seconds | None:
        """When a turn is due; None while nobody is held."""
        due = min((lobby.next_turn for lobby in self._of.values()), default=math.inf)
        return due if math.isfinite(due) else None

    def holds(self, budget: Budget, family: BlockKey | None) -> Holds | None:
        """Give what says whether a budget's request is held; None where none of its is."""
        if budget.hold is None or budget.mode != "enforce":
            return None
        return partial(self._enter, family)

    def _enter(
        self,
        family: BlockKey | None,
        soundings: Soundings,
        verdict: Choice | Excess,
        choice: Choice,
        budget: Budget,
    ) -> Held | Excess | None:
        gate = self._gates.of(budget)
        # A session that is in gets its calls through: their bounds refuse none of them.
        binds = gate is None or gate.sessions is None
        if not isinstance(verdict, Excess):
            choice = verdict
        elif not binds or verdict.by != OWN:
            return None
        lobby = self._of.setdefault(soundings.request.model, Lobby(self._longest))
        over = self.over(soundings.now)
        return lobby.enter(soundings, choice, budget, family, over, binds=binds)

    def hold(self, held: Held) -> None:
        """Take a request in."""
        self._of[held.request.model].hold(held)

    def drop(self, request: RequestId) -> None:
        """Let a request go whose client is gone."""
        for lobby in self._of.values():
            lobby.drop(request)

    def heed(self, record: Record, model: str, now: Seconds) -> None:
        """Take in a record of a model's worker: it may have come free by it."""
        lobby = self._of.get(model)
        if lobby is not None and _may_free(record):
            lobby.stir(now)

    def due(self, now: Seconds, *, everyone: bool) -> Iterator[tuple[str, Lobby]]:
        """Yield the lobbies whose turn it is."""
        for model, lobby in list(self._of.items()):
            if len(lobby) and (everyone or lobby.next_turn <= now):
                yield model, lobby

    def over(self, now: Seconds) -> Over:
        """Give what says how many times its share a tenant has had by now; asked once for each."""
        known: dict[tuple[str, str], float] = {}

        def over(held: Held) -> float:
            name = held.request.tenant or NOBODY
            key = held.budget.name, name
            if key not in known:
                gate = self._gates.of(held.budget)
                shares = None if gate is None else gate.shares
                known[key] = 1.0 if shares is None else shares.standing(name, now).over
            return known[key]

        return over


def _may_free(record: Record) -> bool:
    """Say whether a worker may have room by what it tells; a first token ends a prefill."""
    if isinstance(record, TokensSeen):
        return record.tokens == 1
    return isinstance(record, Ended | WorkerSeen | WorkerGone)
