"""A fleet in virtual time: simulated engines, and what a picker gets to see of them.

No sockets and no waiting: the loop goes from one request's arrival to the next, lets every engine
run up to that moment, hands the picker what has been seen by then, and asks it to decide. Engines
run no further, since the next decision may send them work. While a picker holds requests, the loop
goes in slices of `TURN`, and after each asks whose turn it is. Where callers act on what they got
(the next call of an agent, a retry, `callers`), the loop looks for them every `STEP` as well.

The picker sees what it would see live: the first chunk of every stream, all chunks of the streams
that it wants as witnesses, the last chunk's usage, KV events with the engine's own time, a load
sample each half second; each a little late, in the order of its connection. An SGLang's events name
no request, since it heeds no header that could carry the name. The picker is told of settings
when a worker comes, and of a restart by a sequence that begins again.

Ignored: loss of events (engines/ has its tests), traffic that does not come through the picker.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Protocol, assert_never, runtime_checkable

import numpy as np
from leadsman.lobby import Held, Settled
from leadsman.prediction import Admitted, Decision, Refused
from leadsman.records import (
    Cleared,
    Ended,
    KvEvent,
    KvEvents,
    LoadSample,
    Outcome,
    Record,
    Removed,
    Stored,
    TokensSeen,
    Trust,
    TrustChanged,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.units import RequestId, Seconds, Tokens, WorkerId
from leadsman_engines.simulated.blocks import BlocksRemoved, BlocksStored, CacheCleared, CacheEvent
from leadsman_engines.simulated.make import engine_of
from leadsman_engines.simulated.sequences import SimulatedRequest
from leadsman_engines.simulated.steps import StepOutput

from leadsman_bench.scenario import DOWN_FOR, Incident, WorkerSpec, reconfigured

LOAD_EVERY: Seconds = 0.5
NETWORK: Seconds = 0.0005
"""From one machine to another, the least."""

CHUNK_LATE: Seconds = 0.0005
EVENTS_LATE: Seconds = 0.001
"""Means of the exponential part of a delay: proxy and picker, publisher and collector."""

STEP: Seconds = 0.05
"""How late a call may be that follows from another's end."""

NOTICED_AFTER: Seconds = 0.5
"""Until a collector knows that an engine is gone."""


TURN: Seconds = 0.02
"""How late, at most, a turn among held requests comes; a live picker's are no later than 0.01."""


class Picker(Protocol):
    """What decides: the core's Fleet with its budget and chance, or a baseline."""

    def apply(self, record: Record, now: Seconds) -> None:
        """Take in a record of fleet state."""
        ...

    def decide(self, request: Request, now: Seconds) -> Decision:
        """Admit the request on one worker, or refuse it."""
        ...

    def wants_witness(self, worker: WorkerId) -> bool:
        """Whether one more stream of this worker should be read chunk by chunk."""
        ...


@runtime_checkable
class Holder(Protocol):
    """A picker that may hold requests: what it does not decide, it settles at one of its turns."""

    def apply(self, record: Record, now: Seconds) -> None:
        """Take in a record of fleet state."""
        ...

    def wants_witness(self, worker: WorkerId) -> bool:
        """Whether one more stream of this worker should be read chunk by chunk."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A request of the run, as the picker sees it, and how long its answer will be.

    former_output: of the conversation's turn before it; None for a first.
    """

    request: Request
    output_tokens: Tokens
    former_output: Tokens | None = None


@dataclass(slots=True, kw_only=True)
class Stream:
    """A request that was sent to a worker, and what happened to it.

    started_at: when the engine was found to have begun with it, looked at each arrival.
    """

    offer: Offer
    admitted: Admitted
    block_size: Tokens
    sent_at: Seconds
    started_at: Seconds | None = None
    first_at: Seconds | None = None
    ended_at: Seconds | None = None
    reused: Tokens | None = None
    tokens: Tokens = 0
    is_witness: bool = False
    seen_at: Seconds = 0.0
    outcome: Outcome | None = None

    @property
    def ttft(self) -> Seconds | None:
        """Seconds from the pick to the first chunk; None where none came."""
        return None if self.first_at is None else self.first_at - self.sent_at


class Keeper(Protocol):
    """What keeps a run's results; nothing else holds a request once it is over."""

    def ended(self, stream: Stream) -> None:
        """Keep how a stream ended."""
        ...

    def refused(self, offer: Offer, refused: Refused) -> None:
        """Keep a refusal."""
        ...

    def gone(self, offer: Offer, now: Seconds) -> None:
        """Keep that a caller went away whose request was held."""
        ...


@dataclass(frozen=True, slots=True)
class HangUp:
    """The caller of a request goes away."""

    request: RequestId


class Source(Protocol):
    """Where offers come from. heeds: whether more of them may follow from what became of others."""

    heeds: bool

    def due(self) -> Seconds | None:
        """Say when the next one is due; None: none, unless another follows from those sent."""
        ...

    def take(self, now: Seconds) -> Offer | HangUp:
        """Give the one that is due."""
        ...


class OpenLoop:
    """Offers that come when they come, whatever became of those before."""

    heeds = False

    def __init__(self, offers: Iterator[Offer]) -> None:
        self._offers = offers
        self._next = next(offers, None)

    def due(self) -> Seconds | None:
        """Say when the next offer comes."""
        return None if self._next is None else self._next.request.arrived_at

    def take(self, now: Seconds) -> Offer:
        """Give it."""
        del now
        offer, self._next = self._next, next(self._offers, None)
        assert offer is not None, "taken only when due"
        return offer


class Onlooker(Protocol):
    """Who sees what no picker does, and touches nothing."""

    def sent(self, stream: Stream, worker: "VirtualWorker") -> None:
        """See a request that has just been sent, and the worker as it is now."""
        ...


class VirtualWorker:
    """One engine and its streams; what can be seen of it goes to `see(at, record)`."""

    def __init__(
        self, spec: WorkerSpec, rng: Random, see: Callable[[Seconds, Record], None]
    ) -> None:
        self.spec = spec
        self.id = WorkerId(spec.name)
        self.rng = rng
        self.streams: dict[str, Stream] = {}
        self._queued: set[str] = set()
        self.down_until: Seconds | None = None
        self._see = see
        self.engine = engine_of(spec.settings, spec.hardware, rng)
        self._sequence = 0
        self._events_seen_at: Seconds = 0.0
        self._clock_ahead = rng.uniform(-0.002, 0.002)

    def announce(self, at: Seconds, *, ready: bool = True) -> None:
        """Say that the worker is there, or not ready."""
        self._see(
            at,
            WorkerSeen(
                worker=self.id, endpoint=self.spec.name, settings=self.spec.reported, ready=ready
            ),
        )
        if ready:
            told = TrustChanged(worker=self.id, trust=Trust.LIVE, reason="history is complete")
            self._see(at, told)

    def submit(self, stream: Stream, now: Seconds) -> None:
        """Send a request to the engine. Where it is down, the request is lost at once."""
        request = stream.offer.request
        if self.down_until is not None:
            self._lose(stream, now)
            return
        keys = request.keys[self.spec.settings.block_size]
        self.streams[request.id] = stream
        self._queued.add(request.id)
        self.engine.submit(
            SimulatedRequest(
                id=request.id,
                prompt_tokens=request.prompt_tokens,
                prompt_hashes=keys.tolist(),
                output_tokens=stream.offer.output_tokens,
                max_tokens=request.max_tokens,
                session_id=request.id if self.spec.engine == "vllm" else None,
                priority=request.priority,
                reads_cache=request.reads_cache,
            ),
            now + NETWORK,
        )

    def advance(self, until: Seconds, wants_witness: Callable[[WorkerId], bool]) -> list[Stream]:
        """Let the engine run, and return the streams that ended."""
        moment = self.engine.next_time()
        if moment is None or moment > until:
            return []
        ended: list[Stream] = []
        for output in self.engine.advance(until):
            self._see_events(output)
            for request_id, reused in output.first.items():
                stream = self.streams[request_id]
                stream.reused = reused
                stream.is_witness = wants_witness(self.id)
                self._queued.discard(request_id)
            self._see_tokens(output)
            ended += [self._finish(self.streams.pop(done)) for done in output.finished]
        self._note_started(until)
        return ended

    def sample(self, now: Seconds) -> None:
        """Report the engine's load."""
        if self.down_until is not None:
            return
        engine = self.engine
        self._see(
            now + NETWORK,
            LoadSample(
                worker=self.id,
                at=now + NETWORK,
                running=engine.running,
                waiting=engine.waiting,
                kv_usage=engine.kv_usage,
                prefix_hits=engine.scheduler.cache.hit_tokens,
            ),
        )

    def stop(self, now: Seconds) -> list[Stream]:
        """Kill the engine: every stream breaks; return them."""
        lost = [self.streams.pop(request_id) for request_id in self.engine.restart()]
        for stream in lost:
            self._lose(stream, now)
        self._queued.clear()
        self.down_until = now + DOWN_FOR
        self.announce(now + NOTICED_AFTER, ready=False)
        return lost

    def abandon(self, request: RequestId, now: Seconds) -> Stream | None:
        """Break off a stream at its caller's end; None where it is not here any more."""
        stream = self.streams.pop(request, None)
        if stream is None:
            return None
        self._queued.discard(request)
        self.engine.abort(request, now)
        self._end(stream, Outcome.CLIENT_GONE, max(stream.seen_at, now + NETWORK))
        return stream

    def start(self, now: Seconds, spec: WorkerSpec) -> None:
        """Start the engine again with an empty cache; its events count from 0 again."""
        self.spec, self.down_until, self._sequence = spec, None, 0
        self.engine = engine_of(spec.settings, spec.hardware, self.rng)
        self.announce(now)
        self._publish((Cleared(),), now)

    def slow_down(self, factor: float) -> None:
        """Stretch the engine's steps from now on."""
        self.engine.slowdown = factor

    def _note_started(self, now: Seconds) -> None:
        """Note which queued requests the engine has begun with; no picker sees this."""
        if not self._queued:
            return
        for tracked in self.engine.scheduler.running:
            if tracked.request.id in self._queued:
                self._queued.discard(tracked.request.id)
                self.streams[tracked.request.id].started_at = now

    def _see_events(self, output: StepOutput) -> None:
        if output.events:
            self._publish(tuple(map(_core_event, output.events)), output.ended_at)

    def _publish(self, events: tuple[KvEvent, ...], at: Seconds) -> None:
        late = NETWORK + self.rng.expovariate(1 / EVENTS_LATE)
        self._events_seen_at = seen_at = max(self._events_seen_at, at + late)
        record = KvEvents(
            worker=self.id,
            sequence=self._sequence,
            engine_time=at + self._clock_ahead,
            received_at=seen_at,
            events=events,
        )
        self._sequence += 1
        self._see(seen_at, record)

    def _see_tokens(self, output: StepOutput) -> None:
        """Count the tokens of an output's steps; of most streams none but the first is seen."""
        seen: list[Stream] = []
        steps, ended_at = len(output.ends), output.ended_at
        for request_id in output.tokens:
            stream = self.streams[request_id]
            stream.ended_at = ended_at
            if stream.is_witness or not stream.tokens:
                seen.append(stream)
            else:
                stream.tokens += steps
        if seen:
            for moment in output.ends:
                for stream in seen:
                    stream.tokens += 1
                    if stream.tokens == 1 or stream.is_witness:
                        self._see_token(stream, moment)

    def _see_token(self, stream: Stream, moment: Seconds) -> None:
        late = NETWORK + self.rng.expovariate(1 / CHUNK_LATE)
        stream.seen_at = at = max(stream.seen_at, moment + late)
        if stream.tokens == 1:
            stream.first_at = at
        request = stream.offer.request.id
        self._see(at, TokensSeen(worker=self.id, request=request, at=at, tokens=stream.tokens))

    def _finish(self, stream: Stream) -> Stream:
        assert stream.ended_at is not None
        late = NETWORK + self.rng.expovariate(1 / CHUNK_LATE)
        self._end(stream, Outcome.FINISHED, max(stream.seen_at, stream.ended_at + late))
        return stream

    def _lose(self, stream: Stream, now: Seconds) -> None:
        self._end(stream, Outcome.ENGINE_GONE, max(stream.seen_at, now + NETWORK))

    def _end(self, stream: Stream, outcome: Outcome, at: Seconds) -> None:
        stream.outcome, stream.ended_at = outcome, at
        finished = outcome is Outcome.FINISHED
        self._see(
            at,
            Ended(
                worker=self.id,
                request=stream.offer.request.id,
                at=at,
                outcome=outcome,
                completion_tokens=stream.tokens if finished else None,
                cached_tokens=stream.reused if finished else None,
            ),
        )


class VirtualFleet:
    """Workers, a picker, and what the one has yet to see of the others."""

    def __init__(
        self,
        specs: Iterable[WorkerSpec],
        picker: Picker | Holder,
        keeper: Keeper,
        *,
        seed: int,
        onlooker: Onlooker | None = None,
    ) -> None:
        self.now: Seconds = 0.0
        self.records = 0
        self._picker = picker
        self._holder = picker if isinstance(picker, Holder) else None
        self._held: dict[RequestId, Offer] = {}
        self._keeper = keeper
        self._onlooker = onlooker
        self._order = count()
        self._passed: Seconds = 0.0
        self._unseen: list[tuple[Seconds, int, Record]] = []
        self._sample_at: Seconds = 0.0
        self._rng = Random(f"{seed}/incidents")
        self.workers = [
            VirtualWorker(spec, Random(f"{seed}/{spec.name}"), self._will_see) for spec in specs
        ]
        self._by_id = {worker.id: worker for worker in self.workers}
        for worker in self.workers:
            worker.announce(0.0)

    def run(
        self, offers: Iterator[Offer] | Source, incidents: Iterator[Incident]
    ) -> Iterator[Seconds]:
        """Serve the offers, and let all streams end; yield the time after each offer."""
        source = OpenLoop(offers) if isinstance(offers, Iterator) else offers
        incident = next(incidents, None)
        while (at := self._next_moment(source)) is not None:
            while incident is not None and incident.at <= at:
                self._to(incident.at)
                self._befall(incident)
                incident = next(incidents, None)
            self._to(at)
            while (due := source.due()) is not None and due <= at:
                self._meet(source.take(at), at)
                yield at
        while self._held or any(worker.streams for worker in self.workers):
            self._to(self.now + LOAD_EVERY)

    def _next_moment(self, source: Source) -> Seconds | None:
        """Say when to look next; None where nothing comes any more."""
        due = source.due()
        are_out = bool(self._held) or any(worker.streams for worker in self.workers)
        if not source.heeds or not are_out:
            return due
        return self.now + STEP if due is None else min(max(due, self.now), self.now + STEP)

    def _meet(self, met: Offer | HangUp, now: Seconds) -> None:
        if isinstance(met, Offer):
            self._serve(met, now)
            return
        held = self._held.pop(met.request, None)
        if held is not None and self._holder is not None:
            self._holder.let_go(met.request)
            self._keeper.gone(held, now)
            return
        for worker in self.workers:
            stream = worker.abandon(met.request, now)
            if stream is not None:
                self._keeper.ended(stream)

    def _will_see(self, at: Seconds, record: Record) -> None:
        heappush(self._unseen, (at, next(self._order), record))

    def _to(self, now: Seconds) -> None:
        """Let time pass up to `now`."""
        while self._sample_at <= now:
            self._pass(self._sample_at)
            for worker in self.workers:
                worker.sample(self._sample_at)
            self._sample_at += LOAD_EVERY
        self._pass(now)
        self.now = now

    def _pass(self, now: Seconds) -> None:
        """Let engines run up to `now`, and give held requests their turns."""
        passed = self._passed
        while self._held and passed < now:
            passed = min(now, passed + TURN)
            self._run_to(passed)
            self._turn(passed)
        if passed < now or not self._held:
            self._run_to(now)
        self._passed = now

    def _turn(self, now: Seconds) -> None:
        assert self._holder is not None, "who holds nobody has nobody's turn"
        due = self._holder.next_turn()
        if due is None or due > now:
            return
        for one in self._holder.turn(now):
            offer = self._held.pop(one.request.id)
            self._settle(replace(offer, request=one.request), one.decision, now)

    def _run_to(self, now: Seconds) -> None:
        wants = self._picker.wants_witness
        for worker in self.workers:
            if worker.down_until is not None:
                if worker.down_until > now:
                    continue
                worker.start(worker.down_until, worker.spec)
            for stream in worker.advance(now, wants):
                self._keeper.ended(stream)
        unseen, apply = self._unseen, self._picker.apply
        while unseen and unseen[0][0] <= now:
            at, _, record = heappop(unseen)
            apply(record, at)
            self.records += 1

    def _serve(self, offer: Offer, now: Seconds) -> None:
        decision = self._picker.decide(offer.request, now)
        if isinstance(decision, Held):
            self._held[offer.request.id] = offer
        else:
            self._settle(offer, decision, now)

    def _settle(self, offer: Offer, decision: Decision, now: Seconds) -> None:
        match decision:
            case Admitted():
                worker = self._by_id[decision.worker]
                stream = Stream(
                    offer=offer,
                    admitted=decision,
                    block_size=worker.spec.settings.block_size,
                    sent_at=now,
                )
                worker.submit(stream, now)
                if stream.outcome is not None:
                    self._keeper.ended(stream)
                elif self._onlooker is not None:
                    self._onlooker.sent(stream, worker)
            case Refused():
                self._keeper.refused(offer, decision)
            case other:
                assert_never(other)

    def _befall(self, incident: Incident) -> None:
        worker = self.workers[incident.worker]
        if incident.kind == "speed":
            worker.slow_down(incident.slowdown)
        elif incident.kind == "reset":
            worker.engine.reset_cache()
        elif worker.down_until is None:
            for stream in worker.stop(incident.at):
                self._keeper.ended(stream)
            if incident.kind == "reconfigure":
                settings = reconfigured(worker.spec.settings, self._rng)
                spec = worker.spec
                worker.spec = WorkerSpec(name=spec.name, settings=settings, hardware=spec.hardware)


def _core_event(event: CacheEvent) -> KvEvent:
    match event:
        case BlocksStored():
            keys = np.array(event.hashes, dtype=np.uint64)
            return Stored(keys=keys, tier=event.medium, session=event.session_id)
        case BlocksRemoved():
            return Removed(keys=np.array(event.hashes, dtype=np.uint64), tier=event.medium)
        case CacheCleared():
            return Cleared()
        case other:
            assert_never(other)


def request_id(number: int) -> RequestId:
    """Name the request of that number."""
    return RequestId(f"r{number}")
