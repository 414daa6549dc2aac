"""From a whole request to a verdict: read it, decide, and fall back where that fails.

Reading may wait for an engine's tokenizer, so there is a deadline of our own: full duplex has none
in Envoy, and a hung picker hangs the client. Past it, or where reading or deciding failed, the
request goes to the least loaded worker, is counted, and is never refused: what we could not price
we do not turn away. Only where no worker is eligible is the answer 503, always.

The grant of a fallback is an estimate of four bytes a token, without keys.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Literal, TypeAlias, assert_never

import msgspec
from leadsman.admit import no_endpoint
from leadsman.budget import Budget
from leadsman.lobby import Held, Settled
from leadsman.prediction import Admitted, Decision, Refused
from leadsman.records import Record, WorkerSeen
from leadsman.request import Request
from leadsman.units import RequestId, Seconds

from leadsman_extproc import conformance
from leadsman_extproc.bodies import api_of
from leadsman_extproc.body import Api, BadRequest, NotForUs
from leadsman_extproc.current import REQUEST
from leadsman_extproc.grants import Grants, granted
from leadsman_extproc.guesses import NOTHING, Guess
from leadsman_extproc.metrics import Counts
from leadsman_extproc.ports import (
    Arrival,
    BudgetFor,
    Keeps,
    Picker,
    Read,
    ReadRequest,
    Reads,
    Trace,
    Traces,
)
from leadsman_extproc.refusals import bad_request, refusal, too_large
from leadsman_extproc.settings import Settings
from leadsman_extproc.shapes import Asked
from leadsman_extproc.verdict import Answer, PassOn, SendOn, Verdict
from leadsman_extproc.waiting import Waiting
from leadsman_extproc.workers import Workers

REQUEST_ID = "x-request-id"
SESSION_ID = "x-session-id"
DP_RANK = "x-data-parallel-rank"
BYTES_PER_TOKEN = 4
NO_FIELDS: Mapping[bytes, bytes] = {}
LOG = logging.getLogger(__name__)


Unread: TypeAlias = Literal["deadline", "error"]
"""Why a request could not be read."""


@dataclass(slots=True, kw_only=True)
class Picking:
    """Finds the verdict on each request.

    report: tells the other replicas; a decision has reserved its work here by itself. waiting:
    those that are held. traces: of requests that the gateway samples; None: of none.
    """

    reads: Reads
    picker: Picker
    budget_for: BudgetFor
    keeps: Keeps
    report: Callable[[Record], None]
    grants: Grants
    workers: Workers
    settings: Settings
    counts: Counts = field(default_factory=Counts)
    clock: Callable[[], Seconds]
    rng: Random = field(default_factory=Random)
    traces: Traces | None = None
    waiting: Waiting = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = Waiting(
            picker=self.picker,
            grants=self.grants,
            counts=self.counts,
            clock=self.clock,
            rng=self.rng,
        )
        self.counts.held = self.waiting.__len__

    def verdict(
        self, asked: Asked, call: Mapping[bytes, bytes] = NO_FIELDS
    ) -> Verdict | Awaitable[Verdict]:
        """Read and decide one request; the verdict's grant is open when it is there.

        call: the headers of the gateway's call. It is there at once, unless reading has to wait for
        something, or the request is held.
        """
        request_id = self._identify(asked.headers)
        if asked.body is None:
            cap = self.settings.max_body
            return self._reject(too_large(api_of(asked.headers.get(":path", "")), cap), request_id)
        before = REQUEST.set(request_id)
        try:
            return self._read(self._arrival(asked, asked.body, request_id, call))
        finally:
            REQUEST.reset(before)

    def _arrival(
        self, asked: Asked, body: bytes, request_id: RequestId, call: Mapping[bytes, bytes]
    ) -> Arrival:
        now, traces = self.clock(), self.traces
        return Arrival(
            id=request_id,
            headers=asked.headers,
            body=body,
            at=now,
            subset=self._subset(asked),
            trace=None if traces is None else traces.begin(call, asked.headers, now),
        )

    def _read(self, arrival: Arrival) -> Verdict | Awaitable[Verdict]:
        if not arrival.body:
            return self._pass(arrival)
        read: Unread | Read | Awaitable[Read]
        try:
            read = self.reads.read(arrival)
        except Exception:
            LOG.exception("reading a request failed", extra={"request": arrival.id})
            self.counts.errors["read"] += 1
            read = "error"
        if isinstance(read, Awaitable):
            return self._judge_later(read, arrival)
        return self._judge(read, arrival)

    async def _judge_later(self, reading: Awaitable[Read], arrival: Arrival) -> Verdict:
        read: Unread | Read
        REQUEST.set(arrival.id)  # of this task
        try:
            async with asyncio.timeout(self.settings.decision_deadline):
                read = await reading
        except TimeoutError:
            read = "deadline"
        except Exception:
            LOG.exception("reading a request failed", extra={"request": arrival.id})
            self.counts.errors["read"] += 1
            read = "error"
        if self._is_taken(arrival.id):  # another request of this name came meanwhile
            arrival = msgspec.structs.replace(arrival, id=_new_id())
            REQUEST.set(arrival.id)
        verdict = self._judge(read, arrival)
        return await verdict if isinstance(verdict, Awaitable) else verdict

    def _judge(self, read: Unread | Read, arrival: Arrival) -> Verdict | Awaitable[Verdict]:
        match read:
            case ReadRequest():
                return self._decide(read, arrival)
            case NotForUs():
                return self._pass(arrival)
            case BadRequest():
                return self._reject(read, arrival.id)
            case "deadline" | "error":
                return self._fall_back(self._estimate(arrival), arrival, read)
            case other:
                assert_never(other)

    def _decide(self, read: ReadRequest, arrival: Arrival) -> Verdict | Awaitable[Verdict]:
        request, now = read.request, self.clock()
        if request.id != arrival.id:
            request = replace(request, id=arrival.id)
        try:
            self._measure(arrival.trace)
            budget = self._budget(request, arrival)
            decision = self.picker.decide(request, budget, now, self.rng)
        except Exception:
            LOG.exception("deciding on a request failed", extra={"request": request.id})
            self.counts.errors["decide"] += 1
            return self._fall_back(request, arrival, "error")
        self.counts.decide_seconds.observe(self.clock() - now)
        self.counts.read_seconds.observe(now - arrival.at)
        self.counts.tokens_by[read.tokens_by] += 1
        if isinstance(decision, Held):
            settle = partial(self._settle, arrival, read)
            return self.waiting.verdict(decision, settle)
        return self._told(request, decision, arrival, read)

    def _settle(self, arrival: Arrival, read: ReadRequest, settled: Settled) -> Verdict:
        return self._told(settled.request, settled.decision, arrival, read)

    def _told(
        self, request: Request, decision: Decision, arrival: Arrival, read: ReadRequest
    ) -> Verdict:
        self._keep(request, decision, arrival)
        match decision:
            case Admitted():
                return self._send(request, decision, arrival, read.guess)
            case Refused():
                return self._refuse(decision, read.api)
            case other:
                assert_never(other)

    def _measure(self, trace: Trace | None) -> None:
        """Let the phases of the next decision be noted, or nothing of it."""
        if trace is not None:
            trace.passed("read")
            self.picker.passed = trace.passed
        elif self.traces is not None:
            self.picker.passed = None

    def _keep(self, request: Request, decision: Decision, arrival: Arrival) -> None:
        now = self.clock()
        self.keeps.decided(request, decision, now)
        if arrival.trace is not None:
            arrival.trace.decided(request, decision, now)

    def _budget(self, request: Request, arrival: Arrival) -> Budget:
        budget = self.budget_for(request, arrival.headers)
        if budget.hold is not None and self.waiting.is_closed:
            return replace(budget, hold=None)
        return budget

    def _send(
        self, request: Request, admitted: Admitted, arrival: Arrival, guess: Guess = NOTHING
    ) -> SendOn:
        self.counts.admitted(request, admitted)
        now = self.clock()
        grant = self.grants.open(request, admitted, now, guess=guess)
        worker = self.workers.of(admitted.worker)
        self.report(granted(grant, worker.settings.block_size if worker else None, now))
        headers = self._headers(arrival, worker, grant.endpoint)
        return SendOn(grant, headers, self._fallbacks(admitted, worker))

    def _fallbacks(self, admitted: Admitted, worker: WorkerSeen | None) -> tuple[str, ...]:
        """Say whom the gateway may try next; a rank's header would be wrong for anybody else."""
        if worker is not None and worker.dp_rank is not None:
            return ()
        return admitted.fallbacks[: self.settings.fallbacks]

    def _refuse(self, refused: Refused, api: Api) -> Answer:
        self.counts.refused(refused)
        return Answer(refusal(refused, api))

    def _reject(self, bad: BadRequest, request: RequestId) -> Answer:
        self.counts.decisions["rejected"] += 1
        self.counts.rejects[str(bad.status)] += 1
        return Answer(bad_request(bad, request))

    def _pass(self, arrival: Arrival) -> Verdict:
        chosen = self._least_loaded(arrival)
        if chosen is None:
            return self._nowhere(arrival)
        self.counts.decisions["passed"] += 1
        return PassOn(chosen.endpoint, self._headers(arrival, None, chosen.endpoint))

    def _fall_back(self, request: Request, arrival: Arrival, cause: str) -> Verdict:
        self.counts.fallbacks[cause] += 1
        chosen = self._least_loaded(arrival)
        if chosen is None:
            return self._nowhere(arrival)
        admitted = Admitted(
            request=request.id,
            worker=chosen.worker,
            endpoint=chosen.endpoint,
            prediction=None,
            because="least_loaded",
        )
        self._keep(request, admitted, arrival)
        verdict = self._send(request, admitted, arrival)
        now = verdict.grant.sent_at
        self.picker.apply(granted(verdict.grant, chosen.settings.block_size, now), now)
        return verdict

    def _least_loaded(self, arrival: Arrival) -> WorkerSeen | None:
        return self.workers.least_loaded(arrival.subset, self.grants.in_flight, self.rng)

    def _nowhere(self, arrival: Arrival) -> Answer:
        request = self._estimate(arrival)
        refused = no_endpoint(request, self.budget_for(request, arrival.headers), self.rng)
        self._keep(request, refused, arrival)
        return self._refuse(refused, api_of(arrival.path))

    def _subset(self, asked: Asked) -> frozenset[str] | None:
        """Give the endpoints that are eligible; None: all."""
        chosen = None
        if self.settings.conformance:
            chosen = conformance.selected(asked.headers, self.workers.endpoints())
        return asked.subset if chosen is None else chosen

    def _identify(self, headers: Mapping[str, str]) -> RequestId:
        """Take the gateway's id; make one where there is none or another request has it."""
        given = RequestId(headers.get(REQUEST_ID, ""))
        return given if given and not self._is_taken(given) else _new_id()

    def _is_taken(self, request: RequestId) -> bool:
        return request in self.grants or request in self.waiting

    def _headers(
        self, arrival: Arrival, worker: WorkerSeen | None, endpoint: str
    ) -> Mapping[str, str]:
        headers: dict[str, str] = {SESSION_ID: arrival.id}
        if arrival.headers.get(REQUEST_ID) != arrival.id:
            headers[REQUEST_ID] = arrival.id
        if worker is not None and worker.dp_rank is not None:
            headers[DP_RANK] = str(worker.dp_rank)
        if self.settings.conformance:
            headers.update(conformance.echo(endpoint))
        return headers

    def _estimate(self, arrival: Arrival) -> Request:
        return Request(
            id=arrival.id,
            model="",
            prompt_tokens=max(1, len(arrival.body) // BYTES_PER_TOKEN),
            arrived_at=arrival.at,
            tokens_are_exact=False,
            endpoints=arrival.subset,
        )


def _new_id() -> RequestId:
    return RequestId(str(uuid.uuid4()))
