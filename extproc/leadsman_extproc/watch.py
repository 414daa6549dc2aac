"""What is seen of one response: its first token, its tokens where it is a witness, and its end.

The response's headers come before the first token (an engine sends them at once), so only the
first *content* chunk counts: a role-only, empty or usage chunk is no token. A body that is not a
stream of events has no visible first token, unless that is all there is: what ends with its
prefill (an embedding, an answer of one token) is answered at its first token. Reading every chunk
costs 45 us each, so after the first token only a witness is scanned on; of any other stream only
the last bytes are kept, for the usage that an engine reports at the end. Two witnesses a worker are
as good as seeing all.

An error status ends the grant. It is the engine's own if it came from upstream (Envoy then adds
its service time); otherwise it is Envoy's local reply for an engine that could not be reached.
"""

from collections.abc import Callable

from leadsman.records import Outcome
from leadsman.units import Seconds, WorkerId

from leadsman_extproc.events import ResponseHeaders
from leadsman_extproc.grants import Grant, Grants
from leadsman_extproc.sse import ResponseScan
from leadsman_extproc.workers import Workers

TAIL = 8192
"""Bytes kept of a stream's end: a usage event is at most some 500, and [DONE] follows it."""


class Watch:
    """The watch over one response; tells `grants` what it sees."""

    def __init__(
        self, grant: Grant, head: ResponseHeaders, now: Seconds, *, watching: "Watching"
    ) -> None:
        self._grant = grant
        self._grants = watching.grants
        self._wants_witness = watching.wants_witness
        self._scan = ResponseScan(head.content_type)
        self._is_stream = head.content_type.startswith("text/event-stream")
        self._status = head.status
        self._is_witness = False
        self._tail = b""
        self._is_cut = False
        watching.settle_place(grant, head, now)
        if head.status >= 400:
            self._grants.end(grant, _why(head), now)
        elif head.status >= 200 and not self._is_stream and grant.request.max_tokens == 1:
            self._grants.see(grant, 1, now)

    @property
    def has_seen_enough(self) -> bool:
        """Whether nothing but the end is left to be learned from this response."""
        is_waiting = self._is_stream and self._grant.first_token_at is None
        return self._grant.is_over or not (is_waiting or self._is_witness)

    def feed(self, piece: bytes, now: Seconds) -> None:
        """Look at a piece of the body."""
        if self._grant.is_over:
            return
        if self._is_stream and self.has_seen_enough:
            self._tail += piece
            self._is_cut = self._is_cut or len(self._tail) > TAIL
            self._tail = self._tail[-TAIL:]
            return
        tokens = self._scan.feed(piece)
        if tokens:
            if self._grant.first_token_at is None:
                self._is_witness = self._wants_witness(self._grant.worker)
            self._grants.see(self._grant, self._grant.tokens + tokens, now)

    def end(self, now: Seconds) -> None:
        """Take the response as whole."""
        if self._grant.is_over:
            return
        if self._tail:
            # Where nothing is missing, the event that the scan has begun goes on in the tail.
            (self._scan.resume if self._is_cut else self._scan.feed)(self._tail)
        self._scan.finish()
        self._grant.response = self._scan.response
        self._grant.engine_said = self._scan.error
        outcome = Outcome.ENGINE_REFUSED if self._scan.error else Outcome.FINISHED
        self._grants.end(self._grant, outcome, now, self._scan.usage)

    def gone(self, now: Seconds, *, response_was_unseen: bool) -> None:
        """End the watch of a stream that is gone; where no body is shown, that is the end.

        An engine that is gone before its response is a local reply, so then the client left; in
        the middle of a response nothing tells the two apart.
        """
        if response_was_unseen and self._status:
            self.end(now)
        else:
            outcome = Outcome.CUT_OFF if self._status else Outcome.CLIENT_GONE
            self._grants.end(self._grant, outcome, now, self._scan.usage)


def _why(head: ResponseHeaders) -> Outcome:
    unreachable = head.status in {502, 503, 504} and not head.from_upstream
    return Outcome.ENGINE_GONE if unreachable else Outcome.ENGINE_REFUSED


class Watching:
    """Makes the watch of each response; holds what all of them share."""

    def __init__(
        self,
        *,
        grants: Grants,
        workers: Workers,
        wants_witness: Callable[[WorkerId], bool],
    ) -> None:
        self.grants = grants
        self.wants_witness = wants_witness
        self._workers = workers

    def __call__(self, grant: Grant, head: ResponseHeaders, now: Seconds) -> Watch:
        """Begin to watch the response of this grant."""
        return Watch(grant, head, now, watching=self)

    def settle_place(self, grant: Grant, head: ResponseHeaders, now: Seconds) -> None:
        """Move the grant to where the gateway really sent the request, where it says so.

        To a worker of another pool it cannot be moved: it ends, and ours is free of it.
        """
        if head.served is None or head.served == grant.endpoint:
            return
        served = self._workers.at(head.served)
        if served is None:
            self.grants.end(grant, Outcome.SERVED_ELSEWHERE, now)
        else:
            self.grants.move(
                grant, (served.worker, served.endpoint, served.settings.block_size), now
            )
