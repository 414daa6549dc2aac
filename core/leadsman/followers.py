"""Who will be next in a worker's queue, behind the request that is asked about.

A step hands out its whole budget: what a prompt leaves of its last step goes to whoever stands
behind it, and makes that step longer, by most of a second where a step holds 16,000 tokens. Nobody
stands there yet when a request is priced; but a request that waits longer than it takes the next
one to come will not be the last in the queue. So one more is put behind it: after the usual gap,
of the usual prefill, both averages over the worker's recent requests.

Ignored: who comes after that one; that gaps scatter.
"""

from leadsman.sequence import Seq
from leadsman.units import RequestId, Seconds, Tokens

STEP = 1 / 16
"""Weight of the newest request in the averages."""

NOBODY = RequestId("")


class Followers:
    """The usual gap between a worker's requests, and the tokens that they prefill."""

    def __init__(self) -> None:
        self._last: Seconds | None = None
        self._gap: Seconds | None = None
        self._prefill: float | None = None

    def came(self, at: Seconds) -> None:
        """A request was sent to the worker."""
        if self._last is not None:
            gap = max(0.0, at - self._last)
            self._gap = gap if self._gap is None else self._gap + STEP * (gap - self._gap)
        self._last = at

    def prefilled(self, tokens: Tokens) -> None:
        """So many tokens of a prompt were not cached."""
        before = tokens if self._prefill is None else self._prefill
        self._prefill = before + STEP * (tokens - before)

    def next_after(self, at: Seconds) -> Seq | None:
        """Make the one behind a request that is sent at `at`; None before two have come."""
        if self._gap is None or self._prefill is None:
            return None
        return Seq(NOBODY, max(1, round(self._prefill)), at + self._gap)
