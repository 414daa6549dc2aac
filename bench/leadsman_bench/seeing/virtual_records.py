"""The records that a picker would have left of a run in virtual time, written as a picker does.

Wrapped around a run's picker and its keeper; everything else stays as it is. `time` is the wall
clock's as it is now, moved by virtual seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from leadsman.lobby import Held, Settled
from leadsman.prediction import Decision, Refused
from leadsman.records import Record
from leadsman.request import Request
from leadsman.units import RequestId, Seconds, WorkerId
from leadsman_extproc.grants import Grant, Usage
from leadsman_extproc.ports import Keeps

from leadsman_bench.virtual import Keeper, Offer, Stream


class Picks(Protocol):
    """A run's picker."""

    def apply(self, record: Record, now: Seconds) -> None:
        """Take in a record of fleet state."""
        ...

    def decide(self, request: Request, now: Seconds) -> Decision | Held:
        """Admit the request on one worker, hold it, or refuse it."""
        ...

    def next_turn(self) -> Seconds | None:
        """Say when a turn is due; None while nobody is held."""
        ...

    def turn(self, now: Seconds) -> Sequence[Settled]:
        """Decide on those that are held, where it is their turn."""
        ...

    def let_go(self, request: RequestId) -> None:
        """Hold a request no longer, as its caller is gone."""
        ...

    def wants_witness(self, worker: WorkerId) -> bool:
        """Whether one more stream of this worker should be read chunk by chunk."""
        ...


@dataclass(slots=True)
class Recorded:
    """A picker and a keeper that record what passes them."""

    picker: Picks
    keeper: Keeper
    outcomes: Keeps

    def apply(self, record: Record, now: Seconds) -> None:
        """Take in a record of fleet state."""
        self.picker.apply(record, now)

    def decide(self, request: Request, now: Seconds) -> Decision | Held:
        """Decide, and record it; who is held is recorded at its turn."""
        decision = self.picker.decide(request, now)
        if not isinstance(decision, Held):
            self.outcomes.decided(request, decision, now)
        return decision

    def next_turn(self) -> Seconds | None:
        """Say when a turn is due; None while nobody is held."""
        return self.picker.next_turn()

    def turn(self, now: Seconds) -> Sequence[Settled]:
        """Settle those whose turn it is, and record it."""
        settled = self.picker.turn(now)
        for one in settled:
            self.outcomes.decided(one.request, one.decision, now)
        return settled

    def let_go(self, request: RequestId) -> None:
        """Hold a request no longer; nothing was decided on it, so nothing is recorded."""
        self.picker.let_go(request)

    def wants_witness(self, worker: WorkerId) -> bool:
        """Whether one more stream of this worker should be read chunk by chunk."""
        return self.picker.wants_witness(worker)

    def ended(self, stream: Stream) -> None:
        """Record how a stream ended."""
        self.outcomes.ended(
            Grant(
                request=stream.offer.request,
                admitted=stream.admitted,
                worker=stream.admitted.worker,
                endpoint=stream.admitted.endpoint,
                sent_at=stream.sent_at,
                first_token_at=stream.first_at,
                tokens=stream.tokens,
                ended_at=stream.ended_at,
                outcome=stream.outcome,
                usage=Usage(cached_tokens=stream.reused, completion_tokens=stream.tokens),
            )
        )
        self.keeper.ended(stream)

    def refused(self, offer: Offer, refused: Refused) -> None:
        """Pass a refusal on; it was recorded as it was decided."""
        self.keeper.refused(offer, refused)

    def gone(self, offer: Offer, now: Seconds) -> None:
        """Pass on that a held request's caller went away."""
        self.keeper.gone(offer, now)
