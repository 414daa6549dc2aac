"""One ext_proc stream, without I/O: what Envoy says goes in, what to answer comes out.

A session is one HTTP request. It gathers the request until it is whole, and then *asks*: the
driver reads the body, decides, and tells the session to send it on, pass it, or refuse it. From
there on it watches the response for the first token and the end.

    OPEN ── headers ──> BODY ── end of stream ──> ASKING ── send_on / pass_on ──> SENT
                          │                         └─ refuse ──> OVER              │
                          └── a response that is Envoy's own ──> RESPONSE <── headers ┘

Rule 1. The request is over at its *first* end of stream, which may be in the headers, in a piece
of the body, or in the trailers; anything that comes of the request later is ignored.
Source: envoyproxy/envoy#46237 (a duplicate of the last piece, Envoy 1.35 to 1.37).

Rule 2. In full duplex nothing is answered until the request is whole; then the headers, the body
in pieces, and the trailers, in this order. Envoy keeps no copy: what is not given back is lost.
Too big a body is refused only then: a client that is still writing would see a reset.

Rule 3. In full duplex the stream is never ended early: what is in flight is lost, and answers hang
or come empty. With a BUFFERED request and a STREAMED response it is ended after the first content
chunk, unless this stream is a witness; with no response body, after the response headers. Then
the access log says when the request is over. Measured on Envoy 1.40: 5,760 of 5,760 whole.

Rule 4. A stream that is gone is judged by the events that were seen: end of file, cancellation
and a closed generator are the same thing.

What the table cannot express: an answer to the *request* is due only once asked for (ASKING), and
the driver gives it; the table only says that nothing which Envoy sends meanwhile changes it.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from leadsman.units import Seconds

from leadsman_extproc import wire
from leadsman_extproc.events import (
    BodyMode,
    Event,
    Profile,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from leadsman_extproc.gather import Gathered
from leadsman_extproc.grants import Grant
from leadsman_extproc.refusals import Reply
from leadsman_extproc.shapes import Asked
from leadsman_extproc.watch import Watch

Answers: TypeAlias = Sequence[bytes]
NOTHING: Answers = ()

READABLE = frozenset({BodyMode.BUFFERED, BodyMode.FULL_DUPLEX_STREAMED})
"""The request modes that show the whole body before the request goes on; in any other the
request is routed by load at its headers."""

_NO_RESPONSE = ResponseHeaders(0, "", from_upstream=False, served=None, end_of_stream=False)


def go_on(_: ResponseHeaders) -> bytes:
    """Let a response pass."""
    return wire.GO_ON_RESPONSE_HEADERS


class State(Enum):
    """Where a session stands."""

    OPEN = auto()
    BODY = auto()
    ASKING = auto()
    SENT = auto()
    RESPONSE = auto()
    OVER = auto()


class Session:
    """The state of one stream. `receive` and the three verdicts return what to send, in order.

    max_body: bytes of a request body above which it is refused.
    ends_early: whether the gateway bears it, and sends us its access log (Rule 3).
    watching: makes the watch of a response, from the grant and the response's headers.
    on_response: what to answer to a response's headers.
    """

    def __init__(
        self,
        *,
        max_body: int,
        ends_early: bool,
        watching: Callable[[Grant, ResponseHeaders, Seconds], Watch],
        on_response: Callable[[ResponseHeaders], bytes] = go_on,
    ) -> None:
        self.state = State.OPEN
        self._max_body = max_body
        self._ends_early = ends_early
        self._watching = watching
        self._on_response = on_response
        self._profile = Profile()
        self._request: Gathered | None = None
        self._grant: Grant | None = None
        self._watch: Watch | None = None

    @property
    def is_asking(self) -> bool:
        """Whether the request is whole and waits for a verdict."""
        return self.state is State.ASKING

    @property
    def is_over(self) -> bool:
        """Whether the stream is to be ended by us, once the answers are sent."""
        return self.state is State.OVER

    def receive(self, event: Event, now: Seconds) -> Answers:
        """Take one event of the stream; return what to answer, which may be nothing."""
        handler = TRANSITIONS.get((self.state, type(event)))
        return handler(self, event, now) if handler else NOTHING

    def asked(self) -> Asked:
        """Hand the whole request out, for a verdict."""
        assert self._request is not None
        return self._request.whole()

    def send_on(
        self, grant: Grant, headers: Mapping[str, str], fallbacks: Sequence[str] = ()
    ) -> Answers:
        """Let the request go to the grant's endpoint, with these headers set on it.

        fallbacks: endpoints that the gateway may try after it, in order.
        """
        self._grant = grant
        return self.pass_on(",".join([grant.endpoint, *fallbacks]), headers)

    def pass_on(self, endpoint: str, headers: Mapping[str, str]) -> Answers:
        """Let the request go to `endpoint` without a grant: nothing of it is watched."""
        request, self._request, self.state = self._request, None, State.SENT
        assert request is not None
        has_body = not request.head.end_of_stream
        if has_body and self._profile.request is BodyMode.BUFFERED:
            return [wire.routed(endpoint, headers, answers="body")]
        first = wire.routed(endpoint, headers, answers="headers")
        return [first, *request.given_back()] if self._is_duplex else [first]

    def refuse(self, reply: Reply) -> Answers:
        """Answer the client now; the stream is over."""
        self._request, self.state = None, State.OVER
        return [wire.immediate(reply.status, reply.headers, reply.body, reply.details)]

    def leave(self, now: Seconds) -> None:
        """Take leave of a stream that is gone, for whatever reason: ends the grant if nobody did.

        A grant whose stream we ended ourselves lives on until the access log speaks of it.
        """
        grant, ended_by_us = self._grant, self.is_over
        self._request, self.state = None, State.OVER
        if grant is None or grant.is_over or ended_by_us:
            return
        watch = self._watch or self._watching(grant, _NO_RESPONSE, now)
        watch.gone(now, response_was_unseen=self._profile.response is BodyMode.NONE)

    @property
    def _is_duplex(self) -> bool:
        return self._profile.request is BodyMode.FULL_DUPLEX_STREAMED

    def _open(self, event: RequestHeaders, _now: Seconds) -> Answers:
        self._profile, self._request = event.profile, Gathered(event, self._max_body)
        if event.end_of_stream or event.profile.request not in READABLE:
            self.state = State.ASKING
            return NOTHING
        self.state = State.BODY
        return NOTHING if self._is_duplex else [wire.GO_ON_REQUEST_HEADERS]

    def _gather(self, event: RequestBody, _now: Seconds) -> Answers:
        assert self._request is not None
        self._request.add(event.data)
        if event.end_of_stream:
            self.state = State.ASKING
        return NOTHING

    def _end_by_trailers(self, _event: RequestTrailers, _now: Seconds) -> Answers:
        assert self._request is not None
        self._request.has_trailers = True
        self.state = State.ASKING
        return NOTHING

    def _late_body(self, _event: RequestBody, _now: Seconds) -> Answers:
        awaited = self._profile.request not in READABLE
        return [wire.GO_ON_REQUEST_BODY] if awaited else NOTHING

    def _late_trailers(self, _event: RequestTrailers, _now: Seconds) -> Answers:
        return NOTHING if self._is_duplex else [wire.GO_ON_REQUEST_TRAILERS]

    def _respond(self, event: ResponseHeaders, now: Seconds) -> Answers:
        self._request, self.state = None, State.RESPONSE
        if self._grant is not None:
            self._watch = self._watching(self._grant, event, now)
            if event.end_of_stream:
                self._watch.end(now)
        if self._profile.response is BodyMode.NONE:
            self._end_early()
        return [self._on_response(event)]

    def _watch_body(self, event: ResponseBody, now: Seconds) -> Answers:
        watch = self._watch
        if watch is not None:
            watch.feed(event.data, now)
            if event.end_of_stream:
                watch.end(now)
        if self._profile.response is BodyMode.FULL_DUPLEX_STREAMED:
            end = event.end_of_stream
            return list(wire.streamed("response", event.data, end_of_stream=end))
        if self._profile.response is BodyMode.STREAMED and (watch is None or watch.has_seen_enough):
            self._end_early()
        return [wire.GO_ON_RESPONSE_BODY]

    def _end_response(self, _event: ResponseTrailers, now: Seconds) -> Answers:
        if self._watch is not None:
            self._watch.end(now)
        return [wire.GO_ON_RESPONSE_TRAILERS]

    def _end_early(self) -> None:
        if self._ends_early and self._profile.request is BodyMode.BUFFERED:
            self.state = State.OVER


TRANSITIONS: Final[Mapping[tuple[State, type], Callable[[Session, Any, Seconds], Answers]]] = {
    (State.OPEN, RequestHeaders): Session._open,
    (State.BODY, RequestBody): Session._gather,
    (State.BODY, RequestTrailers): Session._end_by_trailers,
    (State.BODY, ResponseHeaders): Session._respond,
    (State.SENT, RequestBody): Session._late_body,
    (State.SENT, RequestTrailers): Session._late_trailers,
    (State.SENT, ResponseHeaders): Session._respond,
    (State.RESPONSE, RequestBody): Session._late_body,
    (State.RESPONSE, RequestTrailers): Session._late_trailers,
    (State.RESPONSE, ResponseBody): Session._watch_body,
    (State.RESPONSE, ResponseTrailers): Session._end_response,
}
"""What each event does in each state. A pair that is absent is ignored."""
