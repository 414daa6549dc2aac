"""One ext_proc call: drives a session by the messages that come.

Almost every request is judged within the message that makes it whole, so the answer leaves before
anything else is looked at. Where reading has to wait (an engine's tokenizer, a thread for a long
new text), the verdict is a task; what Envoy says meanwhile is kept and taken afterwards, in order.

Whatever ends the call (its end, a reset, a lost connection, an error of ours), the session takes
leave, and the grant is released by what was seen, never by a timer.
"""

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, assert_never

from google.protobuf.message import DecodeError

from leadsman_extproc import conformance, wire
from leadsman_extproc.http2.calls import Call, Receiver, Status
from leadsman_extproc.picking import REQUEST_ID, Picking
from leadsman_extproc.session import Answers, Session, go_on
from leadsman_extproc.verdict import Answer, PassOn, SendOn, Verdict
from leadsman_extproc.watch import Watching

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Processor:
    """Serves ext_proc calls, each with a session of its own."""

    picking: Picking
    watching: Watching
    open_streams: int = 0

    def process(self, call: Call) -> Receiver:
        """Begin one call."""
        settings = self.picking.settings
        session = Session(
            max_body=settings.max_body,
            ends_early=settings.ends_early,
            watching=self.watching,
            on_response=conformance.report if settings.conformance else go_on,
        )
        self.open_streams += 1
        return Exchange(self, call, session)


class Exchange:
    """One call and its session."""

    __slots__ = (
        "_call",
        "_is_whole",
        "_judging",
        "_picking",
        "_processor",
        "_request",
        "_session",
        "_waiting",
    )

    def __init__(self, processor: Processor, call: Call, session: Session) -> None:
        self._processor = processor
        self._picking = processor.picking
        self._call = call
        self._session = session
        self._judging: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        self._is_whole = False
        self._request: str | None = None

    def message(self, raw: bytes) -> None:
        """Take the next message; while the request is judged it waits."""
        if self._judging is not None:
            self._waiting.append(raw)
            return
        try:
            self._take(raw)
        except Exception as error:  # noqa: BLE001  # of one exchange: it ends
            self._fail(error)

    def whole(self) -> None:
        """End the call, once it is judged."""
        self._is_whole = True
        if self._judging is None:
            self._call.finish()

    def gone(self) -> None:
        """Take leave."""
        if self._judging is not None:
            # Not before it has begun: what it was to wait for would never be waited for, nor ended.
            asyncio.get_running_loop().call_soon(self._judging.cancel)
        self._processor.open_streams -= 1
        self._session.leave(self._picking.clock())

    def _take(self, raw: bytes) -> None:
        session = self._session
        try:
            event = wire.read(raw)
        except DecodeError:
            self._picking.counts.errors["wire"] += 1
            self._call.finish()
            return
        if event is None:
            return
        self._answer(session.receive(event, self._picking.clock()))
        if session.is_asking:
            asked = session.asked()
            self._request = asked.headers.get(REQUEST_ID)
            verdict = self._picking.verdict(asked, self._call.fields)
            if isinstance(verdict, Awaitable):
                self._judging = asyncio.ensure_future(self._judge(verdict))
            else:
                self._answer(self._told(verdict))

    def _answer(self, answers: Answers) -> None:
        self._call.send(answers)
        if self._session.is_over:
            self._call.finish()

    async def _judge(self, later: Awaitable[Verdict]) -> None:
        try:
            self._go_on(await later)
        except Exception as error:  # noqa: BLE001  # of one exchange: it ends
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        LOG.error("an exchange failed", exc_info=error, extra={"request": self._request})
        self._call.finish(Status.UNKNOWN, "the exchange failed")

    def _go_on(self, verdict: Verdict) -> None:
        """Answer, and take what came meanwhile."""
        self._judging = None
        self._answer(self._told(verdict))
        for raw in self._waiting:
            self._take(raw)
        if self._is_whole:
            self._call.finish()

    def _told(self, verdict: Verdict) -> Answers:
        match verdict:
            case SendOn(grant, headers, fallbacks):
                return self._session.send_on(grant, headers, fallbacks)
            case PassOn(endpoint, headers):
                return self._session.pass_on(endpoint, headers)
            case Answer(reply):
                return self._session.refuse(reply)
            case other:
                assert_never(other)
