"""Requests that are held: their verdicts come later, when the fleet says whose turn it is.

The core says who goes next, and when to ask again (`lobby`); here are the clock that asks, and the
callers that wait. Whatever becomes of a request, its verdict is made at the turn itself, in which
its grant is opened: between a decision and its grant nothing may come. A call that is gone lets go
of its request at once; if its grant was opened a moment before, that ends too.

When a picker is to end, nobody is held any longer, and nobody new.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from leadsman.lobby import Held, Settled
from leadsman.prediction import Admitted
from leadsman.records import Outcome
from leadsman.units import RequestId, Seconds

from leadsman_extproc.grants import Grants
from leadsman_extproc.metrics import Counts
from leadsman_extproc.ports import Picker
from leadsman_extproc.verdict import SendOn, Verdict

SENT: Final = "sent"
PUSHED: Final = "sent_at_the_end"
REFUSED: Final = "refused"
GONE: Final = "client_gone"

Settle = Callable[[Settled], Verdict]


@dataclass(slots=True)
class Caller:
    """Who waits for a verdict, and what makes it of a decision."""

    held: Held
    settle: Settle
    verdict: asyncio.Future[Verdict]


@dataclass(slots=True, kw_only=True)
class Waiting:
    """The calls of all held requests of one picker."""

    picker: Picker
    grants: Grants
    counts: Counts
    clock: Callable[[], Seconds]
    rng: Random
    is_closed: bool = False
    _callers: dict[RequestId, Caller] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None
    _due: Seconds | None = None

    def __len__(self) -> int:
        return len(self._callers)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._callers

    def verdict(self, held: Held, settle: Settle) -> Awaitable[Verdict]:
        """Give the verdict to come on a held request; settle makes it, at its turn."""
        caller = Caller(held, settle, asyncio.get_running_loop().create_future())
        self._callers[held.request.id] = caller
        self.stir()
        return self._verdict_of(caller)

    async def _verdict_of(self, caller: Caller) -> Verdict:
        try:
            return await caller.verdict
        except asyncio.CancelledError:
            self._give_up(caller)
            raise

    def stir(self) -> None:
        """Look when a turn is due: something was told to the fleet."""
        if not self._callers:
            return
        due = self.picker.next_turn()
        if due is None or (self._timer is not None and due == self._due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        later = max(0.0, due - self.clock())
        self._timer = asyncio.get_running_loop().call_later(later, self._turn)

    def close(self) -> None:
        """Hold nobody any longer: all are placed or refused now, and newcomers are not held."""
        self.is_closed = True
        self._take(self.picker.turn(self.clock(), self.rng, everyone=True))
        if self._timer is not None:
            self._timer.cancel()

    def _turn(self) -> None:
        self._timer = None
        self._take(self.picker.turn(self.clock(), self.rng))
        self.stir()

    def _take(self, settled: list[Settled]) -> None:
        for one in settled:
            caller = self._callers.pop(one.request.id)
            held = one.decision.held_for or 0.0
            self.counts.held_for(_outcome(one, caller.held), held)
            try:
                caller.verdict.set_result(caller.settle(one))
            except Exception as error:  # noqa: BLE001  # of one verdict: whoever awaits it says so
                caller.verdict.set_exception(error)

    def _give_up(self, caller: Caller) -> None:
        request, now = caller.held.request.id, self.clock()
        if self._callers.pop(request, None) is not None:
            self.picker.let_go(request)
            self.counts.held_for(GONE, now - caller.held.at)
        elif caller.verdict.done() and not caller.verdict.cancelled():
            verdict = caller.verdict.result()
            if isinstance(verdict, SendOn):
                self.grants.end(verdict.grant, Outcome.CLIENT_GONE, now)


def _outcome(settled: Settled, held: Held) -> str:
    if not isinstance(settled.decision, Admitted):
        return REFUSED
    return PUSHED if settled.request.arrived_at >= held.until else SENT
