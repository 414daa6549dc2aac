"""Who of several operators does what, where they share the work: each has a seat, a Lease.

Every replica renews the Lease of its own seat and reads those of all others. What is to be done
has a name; it falls to the seat that scores highest for that name (rendezvous hashing), among the
seats that are taken. So a replica that goes moves its own share alone, evenly to the others.

Nothing is ever done by two. Say that i and j both did a thing, for which i scores higher. Then j
does not count i as seated: either j saw i's Lease unchanged for as long as it promises to hold, and
i, who could not renew it, stopped well before that; or i sat down just now, and j has not read it
yet. So whoever sits down begins only when it has read its own Lease, and all others that are there
say in theirs that they see it (they let go before they say so); or when so much time has passed
that whoever has not read meanwhile has stopped. A seat that was lost and is found again is another
seating, with a name of its own.

Source: D. Thaler, C. Ravishankar, "A Name-Based Mapping Scheme for Rendezvous" (1996).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from leadsman.units import Seconds

from leadsman_operator.lease import LeaseSpec, LeaseTiming

SEATS: Final = 16
"""How many replicas can share; the same in every version, or two might do the same thing."""
_SOON: Final[Seconds] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a seat's Lease says; sees: the seatings that its holder knows of and made way for."""

    spec: LeaseSpec = field(default_factory=LeaseSpec)
    sees: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Who does what, as one replica knows. mine: its own seat; None: it does nothing."""

    mine: int | None = None
    taken: frozenset[int] = frozenset()

    def owns(self, name: str) -> bool:
        """Say whether this is ours to do."""
        return self.mine is not None and self.mine == max(
            self.taken | {self.mine}, key=lambda seat: _score(seat, name)
        )


def _score(seat: int, name: str) -> bytes:
    return blake2b(f"{seat} {name}".encode(), digest_size=8).digest()


@dataclass(slots=True, kw_only=True)
class Sitter:
    """One that wants a seat; knows no I/O. name: of this process, of no other ever."""

    name: str
    timing: LeaseTiming = field(default_factory=LeaseTiming)
    seat: int | None = None
    _seatings: int = 0
    _read: Mapping[int, Seat] = field(default_factory=dict)
    _seen_at: dict[int, Seconds] = field(default_factory=dict)
    _held_at: Seconds = 0.0
    _begins_at: Seconds = 0.0
    _has_begun: bool = False

    @property
    def identity(self) -> str:
        """How the present seating, or the next, is called."""
        return f"{self.name}.{self._seatings}"

    def read(self, seats: Mapping[int, Seat], now: Seconds) -> None:
        """Take in what all Leases say."""
        for seat, said in seats.items():
            was = self._read.get(seat)
            if was is None or was.spec != said.spec:
                self._seen_at[seat] = now
        self._read = seats
        if self.seat is None:
            return
        if seats.get(self.seat, Seat()).spec.holder_identity != self.identity:
            self._stand_up()
            return
        others = self._others(now)
        self._has_begun |= all(self.identity in said.sees for said in others.values())

    def left(self, now: Seconds) -> Seconds:
        """Say for how much longer the seat is ours, if nothing more is heard."""
        if self.seat is None:
            return 0.0
        return max(0.0, self._held_at + self.timing.leading - now)

    def shares(self, now: Seconds) -> Shares:
        """Say who does what. Whatever is not ours by it has to end before `claim` is written."""
        if self.left(now) <= 0:
            return Shares()
        begins = self._has_begun or now >= self._begins_at
        return Shares(mine=self.seat if begins else None, taken=frozenset(self._others(now)))

    def claim(self, now: Seconds, wall: str) -> tuple[int, Seat] | None:
        """Say what to write, and to which seat; None where no seat is free."""
        if self.seat is not None and self.left(now) <= 0:
            self._stand_up()
        others = self._others(now)
        seat = self.seat
        if seat is None:
            seat = next((seat for seat in range(SEATS) if seat not in others), None)
        if seat is None:
            return None
        was = self._read.get(seat, Seat()).spec
        is_new = was.holder_identity != self.identity
        spec = LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self.timing.duration,
            acquire_time=wall if is_new else was.acquire_time,
            renew_time=wall,
            lease_transitions=(was.lease_transitions or 0) + is_new,
        )
        sees = (said.spec.holder_identity for said in others.values())
        return seat, Seat(spec=spec, sees=frozenset(one for one in sees if one))

    def written(self, seat: int, *, asked_at: Seconds, now: Seconds) -> None:
        """Note that a claim was written; asked_at: before the Leases were read.

        A seat that ran out meanwhile is lost: others may have stopped counting it.
        """
        if self.seat is not None and self.left(now) <= 0:
            self._stand_up()
            return
        if self.seat is None:
            self.seat, self._begins_at = seat, now + self.timing.duration
        self._held_at = asked_at

    def pause(self, now: Seconds) -> Seconds:
        """Say how long nothing changes but by what others write; then read again."""
        waits = [self.left(now), *(self._runs_out_at(seat) - now for seat in self._read)]
        is_waiting = self.seat is not None and not self._has_begun
        most = _SOON if is_waiting else self.timing.renew
        return min([most, *(wait for wait in waits if wait > 0)])

    def resign(self) -> tuple[int, Seat] | None:
        """Say what to write to give the seat back; None where there is none."""
        if self.seat is None:
            return None
        spec = LeaseSpec(holder_identity="", lease_duration_seconds=1)
        seat = self.seat
        self._stand_up()
        return seat, Seat(spec=spec)

    def _stand_up(self) -> None:
        self.seat, self._has_begun = None, False
        self._seatings += 1

    def _others(self, now: Seconds) -> dict[int, Seat]:
        """Give the seats that others have; one that this process had before counts as free."""
        return {
            seat: said
            for seat, said in self._read.items()
            if (holder := said.spec.holder_identity)
            and holder.rpartition(".")[0] != self.name
            and now < self._runs_out_at(seat)
        }

    def _runs_out_at(self, seat: int) -> Seconds:
        return self._seen_at[seat] + (self._read[seat].spec.lease_duration_seconds or 0)
