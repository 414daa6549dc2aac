"""Sessions as the unit of admission: one that is in gets its calls through, another waits whole.

An agent's task is dozens of calls that depend on each other. Where two tasks compete for room for
one, a fair split of the calls lets neither finish. So a session is judged by its first call; while
it is in, its calls go through whatever the policy says, up to a number of calls and until it idles;
a session that is not let in is deferred whole, all of its calls to one moment.

How many may be in at once nobody knows beforehand, since what a session will bring is not known.
The window is learned as CONCUR does: each call of a session that is in is put to the policy as
well, and what the policy says of it only moves the window. Where it would refuse, the window is cut
by a factor, once a while; where it would not, and the window is full, it grows by one over itself,
so by one session for as many calls as there are sessions. Until the first cut it grows by one with
each call, as TCP's does, but no more than twofold in a while: what was let in before has to show.

A window learns of too many sessions when they are in and cannot be sent away, so beside it a
session must find room in the caches, with all that those which are in will still grow to
(`contexts`).

Deferred sessions are given the moments at which places come free, one after another, and go before
newcomers when they are back. A session that has been quiet for longer than sessions are between two
calls holds no place any more; should it go on, its calls still go through.

Source: CONCUR, arXiv 2601.22705 (the window); the A and B of two tasks with 20 calls each in the
AdmitPerf talk. Ignored: how much a session computes; sessions that never end hold a place each.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from leadsman.admit import Excess
from leadsman.contexts import Contexts, Needs
from leadsman.prediction import Reason
from leadsman.route import Choice
from leadsman.units import RequestId, Seconds, Tokens

FIRST_WINDOW = 2.0
"""Sessions a worker that may be in before anything is known; grows within seconds. Chosen."""

CUT = 0.75
PAUSE: Seconds = 5.0
"""Between two cuts, at least: the calls that were let in before the first must have shown."""

FIRST_LIFE: Seconds = 60.0
"""How long a session is in, until one has ended. Chosen."""

FILLED = 0.9
"""Share of the caches that sessions may fill; answers, and what is read once, lie there too.
Chosen."""

LONGER, SHORTER = 1.5, 0.995
"""What a pause makes of the one that is taken for an end: one in a hundred is longer, then."""

_STEP = 0.1
_SWEEP: Seconds = 1.0
GRACE: Seconds = 5.0
"""How much later than told a deferred session may come back and still find its place."""


@dataclass(slots=True)
class Visit:
    """A session that is in: since when, its calls, those that run, and the last sign of it.

    shared: tokens that its first call found cached, which others brought. own: of its context, all
    others.
    """

    since: Seconds
    last: Seconds
    calls: int = 0
    running: int = 0
    shared: Tokens = 0
    own: Tokens = 0

    def grow(self, needs: Needs | None) -> None:
        """Take in what a call brings."""
        if needs is None:
            return
        if self.calls <= 1:
            self.shared = needs.cached
        self.own = max(self.own, needs.tokens - self.shared)


class Sessions:
    """Which sessions of one budget are in, and which were told when to come.

    most_calls, idle: after so many calls, or so long without any, a session is judged anew.
    """

    def __init__(self, most_calls: int, idle: Seconds) -> None:
        self._most_calls, self._idle = most_calls, idle
        self.window: float | None = None
        self._in: dict[str, Visit] = {}
        self._told: dict[str, Seconds] = {}
        self._calls: dict[RequestId, str] = {}
        self._life = FIRST_LIFE
        self._free_at: Seconds = 0.0
        self._cut_at: Seconds | None = None
        self._round: tuple[Seconds, float] = (0.0, 0.0)
        self._swept_at: Seconds = 0.0
        self._contexts = Contexts()
        self._quiet = idle

    def __len__(self) -> int:
        return len(self._in)

    def __contains__(self, session: str) -> bool:
        return session in self._in

    def admit(  # noqa: PLR0913  # who asks, for what, and what is said of it
        self,
        session: str,
        verdict: Choice | Excess,
        choice: Choice,
        *,
        now: Seconds,
        workers: int,
        needs: Needs | None = None,
    ) -> Choice | Excess:
        """Say what becomes of one call.

        verdict: the policy's. choice: where the call goes in spite of it. needs: what it brings to
        the caches; None where caches are no bound.
        """
        self._sweep(now)
        if self.window is None:
            self.window = FIRST_WINDOW * workers
        visit = self._in.get(session)
        if visit is not None and visit.calls < self._most_calls:
            self._learn_pause(visit, now)
            visit.calls, visit.last = visit.calls + 1, now
            visit.grow(needs)
            self._heed(verdict, self.holding(now), now)
            return choice if isinstance(verdict, Excess) else verdict
        if visit is not None:
            self._leave(session, now)
        return self._judge(session, verdict, needs, now)

    def _judge(
        self, session: str, verdict: Choice | Excess, needs: Needs | None, now: Seconds
    ) -> Choice | Excess:
        told = self._told.get(session)
        if told is not None and now < told:
            return self._deferred(told - now)
        active = list(self._active(now))
        self._heed(verdict, len(active), now)
        if isinstance(verdict, Excess):
            self._told[session] = now + max(1.0, verdict.seconds)
            return verdict
        assert self.window is not None
        expected = 0 if told is not None else sum(at <= now for at in self._told.values())
        newcomer = Visit(since=now, last=now, calls=1)
        newcomer.grow(needs)
        is_full = len(active) + expected + 1 > self.window
        if is_full or not self._has_room(active, newcomer, needs, expected):
            return self._deferred(self._next_place(session, len(active), now))
        self._told.pop(session, None)
        self._in[session] = newcomer
        return verdict

    def holding(self, now: Seconds) -> int:
        """Count those that are in and hold a place."""
        return sum(1 for _ in self._active(now))

    def _active(self, now: Seconds) -> Iterator[Visit]:
        """Give those that are in and hold a place."""
        for one in self._in.values():
            if one.running or now - one.last <= self._quiet:
                yield one

    def _has_room(
        self, active: list[Visit], newcomer: Visit, needs: Needs | None, expected: int
    ) -> bool:
        """Whether one more, and who was told to come now, will find room in the caches."""
        room = needs.room() if needs is not None and active else None
        if room is None:
            return True
        sizes = [one.own for one in active] + [newcomer.own] * (1 + expected)
        return self._contexts.most(sizes) <= FILLED * room - newcomer.shared

    def _learn_pause(self, visit: Visit, now: Seconds) -> None:
        """Learn how long sessions are quiet between two calls."""
        if not visit.running:
            factor = LONGER if now - visit.last > self._quiet else SHORTER
            self._quiet = min(self._idle, max(_SWEEP, self._quiet * factor))

    def _next_place(self, session: str, places: int, now: Seconds) -> Seconds:
        """Book the next of these places that comes free; gives in how many seconds."""
        self._free_at = max(self._free_at, now) + self._life / max(1, places)
        self._told[session] = max(self._free_at, now + 1.0)
        return self._told[session] - now

    def _deferred(self, later: Seconds) -> Excess:
        return Excess(
            reason=Reason.BURST_DEFERRED,
            own_prefill=0.0,
            later=later,
            by="sessions",
            read={"sessions_in": len(self._in), "sessions_at_most": self.window or 0.0},
        )

    def _heed(self, verdict: Choice | Excess, active: int, now: Seconds) -> None:
        assert self.window is not None
        if not isinstance(verdict, Excess):
            if active >= self.window - 1:
                self._grow(now)
        elif active <= self.window and (self._cut_at is None or now - self._cut_at >= PAUSE):
            self.window = max(1.0, CUT * float(active))
            self._cut_at = now

    def _grow(self, now: Seconds) -> None:
        assert self.window is not None
        if self._cut_at is not None:
            self.window += 1.0 / max(1.0, self.window)
            return
        began, most = self._round
        if not most or now - began >= PAUSE:
            most = 2 * self.window
            self._round = now, most
        self.window = min(self.window + 1, most)

    def sent(self, session: str, request: RequestId) -> None:
        """Note that a call of a session runs."""
        visit = self._in.get(session)
        if visit is not None:
            visit.running += 1
            self._calls[request] = session

    def heard(self, session: str, request: RequestId, now: Seconds) -> None:
        """Note a call that another picker let in: its session is in here as well."""
        if request in self._calls:
            return
        visit = self._in.setdefault(session, Visit(since=now, last=now))
        visit.calls, visit.last = visit.calls + 1, now
        self._told.pop(session, None)
        self.sent(session, request)

    def ended(self, request: RequestId, now: Seconds) -> None:
        """Note that a call is over."""
        visit = self._in.get(self._calls.pop(request, ""))
        if visit is not None:
            visit.running, visit.last = max(0, visit.running - 1), now

    def _leave(self, session: str, now: Seconds) -> None:
        visit = self._in.pop(session)
        self._life += _STEP * (min(visit.last, now) - visit.since - self._life)
        if visit.own:
            self._contexts.ended(visit.own)

    def _sweep(self, now: Seconds) -> None:
        """Let those go that have idled, and forget who was told a moment and did not come."""
        if now - self._swept_at < _SWEEP:
            return
        self._swept_at = now
        idle = [
            name
            for name, one in self._in.items()
            if not one.running and now - one.last > self._idle
        ]
        for name in idle:
            self._leave(name, now)
        self._told = {name: at for name, at in self._told.items() if now - at <= GRACE}
