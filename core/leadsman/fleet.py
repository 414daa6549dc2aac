"""All that one picker knows, and the one place where it decides.

A `Fleet` is fed with records, whoever wrote them, and asked for decisions. A decision reserves its
work at the moment of the pick, so that the next request of a burst sees it.
"""

from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import assert_never

import numpy as np

from leadsman.budget import Budget
from leadsman.candidates import Candidates, Ints
from leadsman.curve import DEFAULT_CURVE, KnownCurve, best_known, fingerprint
from leadsman.decide import decide
from leadsman.families import Families
from leadsman.index import CacheIndex
from leadsman.lengths import Lengths
from leadsman.prediction import Admitted, Decision
from leadsman.records import (
    Ended,
    Granted,
    KvEvents,
    Learned,
    LoadSample,
    Record,
    TokensSeen,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.returns import Returns
from leadsman.standing import Standing
from leadsman.units import Seconds, Tokens, WorkerId
from leadsman.worker import WorkerState

MOST_HOMES = 100_000
"""Sessions whose home is remembered; the least lately used is forgotten first."""


class Fleet:
    """Workers, their caches, and the sessions that live on them.

    lengths: makes what is believed of the answers of one model.
    """

    def __init__(self, lengths: Callable[[], Lengths] = Lengths) -> None:
        self._new_lengths = lengths
        self.workers: dict[WorkerId, WorkerState] = {}
        self.index = CacheIndex()
        self._lengths: dict[str, Lengths] = {}
        self._returns: defaultdict[str, Returns] = defaultdict(Returns)
        self._homes: dict[str, WorkerId] = {}
        self._families = Families()
        self._standings: dict[str, Standing] = {}
        self._lessons = 0

    # -- what is asked of it -------------------------------------------------------------------

    def decide(self, request: Request, budget: Budget, now: Seconds, rng: Random) -> Decision:
        """Admit the request on one worker and reserve its work there, or refuse it."""
        candidates = self.candidates(request, now)
        family = self._families.of(request, candidates.cached)
        decision = decide(request, candidates, budget, now, rng)
        if isinstance(decision, Admitted):
            state = self.workers[decision.worker]
            assert decision.prediction is not None, "decide always predicts what it admits"
            state.reserve(request, decision.prediction.price, now, family)
            self._settle(request.session, decision.worker)
        return decision

    def candidates(self, request: Request, now: Seconds) -> Candidates:
        """List the workers that could serve the request, with what is known without a replay."""
        standing = self._standing(request.model)
        cached = self._credited(request, standing)
        own, wait, measured = standing.floors(request.prompt_tokens, cached, now)
        everyone = Candidates(
            workers=standing.states,
            cached=cached,
            own_floors=own,
            wait_floors=wait,
            measured=measured,
            all_ready=standing.all_ready,
            home=self._homes.get(request.session) if request.session is not None else None,
            returns=self._returns[request.model],
        )
        return everyone.at(standing.able(request.prompt_tokens, request.endpoints))

    def block_sizes(self, model: str) -> tuple[Tokens, ...]:
        """Say which block sizes the workers of a model have."""
        return tuple(self._standing(model).by_size)

    def wants_witness(self, worker: WorkerId) -> bool:
        """Whether one more stream of this worker should be read chunk by chunk."""
        state = self.workers.get(worker)
        return state is not None and state.mirror.wants_witness

    def in_flight(self) -> dict[WorkerId, int]:
        """Count the requests that are granted and not over by worker; any thread may ask."""
        return {worker: len(state.mirror.flights) for worker, state in list(self.workers.items())}

    def _standing(self, model: str) -> Standing:
        standing = self._standings.get(model)
        if standing is None:
            states = [s for s in self.workers.values() if s.settings.model == model]
            standing = self._standings[model] = Standing(states)
            for state in states:
                state.changed = standing.changed
        return standing

    def _credited(self, request: Request, standing: Standing) -> Ints:
        """Prompt tokens that each worker is known to hold now, never the last one."""
        cached = np.zeros(len(standing.states), dtype=np.int64)
        if not request.reads_cache:
            return cached
        for size, keys in request.keys.items():
            places, workers = standing.by_size.get(size, (None, ()))
            if places is not None and len(keys):
                most = (request.prompt_tokens - 1) // size
                cached[places] = self.index.match(keys[:most], workers).gpu * size
        return cached

    def _settle(self, session: str | None, worker: WorkerId) -> None:
        if session is not None:
            self._homes.pop(session, None)
            self._homes[session] = worker
            if len(self._homes) > MOST_HOMES:
                del self._homes[next(iter(self._homes))]

    # -- what it is told -----------------------------------------------------------------------

    def apply(self, record: Record, now: Seconds) -> None:  # noqa: ARG002, C901  # one case a record
        """Take in one record; records of workers that are not there are dropped."""
        if isinstance(record, WorkerSeen):
            self._see(record)
            return
        state = self.workers.get(record.worker)
        if state is None:
            return
        match record:
            case WorkerGone():
                self._forget(record.worker)
            case KvEvents():
                self.index.apply(record.worker, record.events)
                state.saw_events(record)
            case TrustChanged():
                self.index.set_trust(record.worker, record.trust)
                state.trust = record.trust
            case LoadSample():
                state.saw_load(record)
            case Granted():
                state.take(record)
            case TokensSeen():
                self._lessons += state.saw_tokens(record)
                self._relearn(state)
            case Ended():
                state.saw_end(record)
            case Learned():
                if state.adopt(record):
                    self._lessons += 1
                    self._relearn(state)
            case _:
                assert_never(record)

    def _see(self, seen: WorkerSeen) -> None:
        state = self.workers.get(seen.worker)
        if state is not None and fingerprint(state.settings) == fingerprint(seen.settings):
            if state.ready != seen.ready:
                self._standings.clear()
            state.ready, state.endpoint = seen.ready, seen.endpoint
            if state.settings == seen.settings:
                return
        lengths = self._lengths.setdefault(seen.settings.model, self._new_lengths())
        fresh = WorkerState(seen, lengths, KnownCurve(curve=DEFAULT_CURVE, provenance="unmeasured"))
        if state is not None:
            fresh.trust = state.trust
        self.workers[seen.worker] = fresh
        self._standings.clear()
        self._lessons += 1
        self._relearn(fresh)

    def _forget(self, worker: WorkerId) -> None:
        del self.workers[worker]
        self.index.purge(worker)
        self._standings.clear()
        self._lessons += 1

    def _relearn(self, state: WorkerState) -> None:
        """Let a worker take the best curve there is, where some curve has changed since it did."""
        if state.lessons != self._lessons:
            state.lessons = self._lessons
            peers = (other.curves for other in self.workers.values())
            state.relearn(best_known(state.curves, peers))
