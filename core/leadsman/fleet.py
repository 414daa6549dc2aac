"""All that one picker knows, and the one place where it decides.

A `Fleet` is fed with records, whoever wrote them, and asked for decisions. A decision reserves its
work at the moment of the pick, so that the next request of a burst sees it. Who is held is decided
at one of the turns that follow.
"""

import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import assert_never

import numpy as np

from leadsman.admit import Excess, admit
from leadsman.budget import Budget
from leadsman.candidates import Candidates, Ints, Soundings
from leadsman.condition import Condition, Outlook
from leadsman.curve import DEFAULT_CURVE, KnownCurve, best_known, fingerprint
from leadsman.decide import Judge, decide, give_up, place
from leadsman.families import Families
from leadsman.findings import Seen
from leadsman.gate import Gates
from leadsman.index import CacheIndex
from leadsman.lengths import Lengths
from leadsman.lobbies import Lobbies
from leadsman.lobby import Held, Settled, waiting
from leadsman.looks import Looks
from leadsman.prediction import Admitted, Decision
from leadsman.records import (
    GPU,
    Cleared,
    Ended,
    Granted,
    KvEvents,
    Learned,
    LoadSample,
    Record,
    StoreSeen,
    TokensSeen,
    Trust,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
    is_store,
)
from leadsman.request import Request
from leadsman.returns import Returns
from leadsman.route import Choice
from leadsman.signals import Signal, told_by
from leadsman.standing import Standing
from leadsman.trust import Finding
from leadsman.units import BlockKey, RequestId, Seconds, Tokens, WorkerId
from leadsman.worker import WorkerState

MOST_HOMES = 100_000
"""Sessions whose home is remembered; the least lately used is forgotten first."""


class Fleet:
    """Workers, their caches, and the sessions that live on them.

    gates: the rules of its budgets. longest_hold: for which a request may be held, whatever its
    budget says. passed: told when each
    phase of a decision is over: match, price, and admit unless its budget asks nobody.
    """

    def __init__(self, gates: Gates | None = None, longest_hold: Seconds = math.inf) -> None:
        self.gates = Gates() if gates is None else gates
        self.lobbies = Lobbies(self.gates, longest_hold)
        self.workers: dict[WorkerId, WorkerState] = {}
        self.stores: dict[WorkerId, StoreSeen] = {}
        self.index = CacheIndex()
        self._lengths: dict[str, Lengths] = {}
        self._returns: dict[str, Returns] = {}
        self._looks: dict[str, Looks] = {}
        self._homes: dict[str, WorkerId] = {}
        self._families = Families()
        self._standings: dict[str, Standing] = {}
        self._lessons = 0
        self.passed: Callable[[str], None] | None = None

    # -- what is asked of it -------------------------------------------------------------------

    def decide(
        self, request: Request, budget: Budget, now: Seconds, rng: Random
    ) -> Decision | Held:
        """Admit the request on one worker and reserve its work there, hold it, or refuse it."""
        candidates = self.candidates(request, now)
        family = self._families.of(request, candidates.cached)
        gate = self.gates.of(budget)
        judge: Judge = admit if gate is None else partial(gate.admit, family)
        passed = self.passed
        if passed is not None:
            passed("match")
            judge = partial(_priced, passed, judge)
        holds = self.lobbies.holds(budget, family)
        decision = decide(request, candidates, budget, now, rng, judge, holds)
        if isinstance(decision, Held):
            self.lobbies.hold(decision)
        elif isinstance(decision, Admitted):
            self._reserve(request, budget, family, decision, now)
        if passed is not None:
            passed("price" if budget.mode == "off" else "admit")
        return decision

    def turn(self, now: Seconds, rng: Random, *, everyone: bool = False) -> list[Settled]:
        """Decide on those that are held, where it is their turn; everyone: hold nobody longer."""
        settled: list[Settled] = []
        for model, lobby in self.lobbies.due(now, everyone=everyone):
            standing = self._standing(model)
            nothing = np.zeros(len(standing.states), dtype=np.int64)
            ready = np.array([state.ready for state in standing.states], dtype=np.bool_)
            _, floors, measured, _ = standing.floors(1, nothing, now)
            waits = np.where(measured, floors, 0.0)[ready]
            frees_in = float(waits.min()) if len(waits) else 0.0
            settled += lobby.turn(
                self,
                self.lobbies.over(now),
                now=now,
                rng=rng,
                frees_in=frees_in,
                workers=len(waits),
                everyone=everyone,
            )
        return settled

    def next_turn(self) -> Seconds | None:
        """Say when a turn is due; None while nobody is held."""
        return self.lobbies.next_turn

    def let_go(self, request: RequestId) -> None:
        """Hold a request no longer, as its client is gone."""
        self.lobbies.drop(request)

    def place(self, held: Held, now: Seconds, rng: Random, *, insist: bool) -> Decision | Seconds:
        """Send a held request on, or refuse it; or say how long no worker is nearly free for it."""
        held = waiting(held, now)
        decision = place(held, self.candidates(held.request, now), now, rng, insist=insist)
        if isinstance(decision, Admitted):
            self._reserve(held.request, held.budget, held.family, decision, now)
        return decision

    def give_up(self, held: Held, wait: Seconds, now: Seconds, rng: Random) -> Decision:
        """Refuse a held request, which would wait for so long still."""
        held = waiting(held, now)
        decision = give_up(held, wait, self.candidates(held.request, now), now, rng)
        if isinstance(decision, Admitted):
            self._reserve(held.request, held.budget, held.family, decision, now)
        return decision

    def _reserve(
        self,
        request: Request,
        budget: Budget,
        family: BlockKey | None,
        admitted: Admitted,
        now: Seconds,
    ) -> None:
        gate = self.gates.of(budget)
        if gate is not None:
            gate.sent(request, family, admitted, now)
        assert admitted.prediction is not None, "decide always predicts what it admits"
        state = self.workers[admitted.worker]
        state.reserve(request, admitted.prediction.price, now, family)
        self._settle(request.session, admitted.worker)

    def candidates(self, request: Request, now: Seconds) -> Candidates:
        """List the workers that could serve the request, with what is known without a replay."""
        standing = self._standing(request.model)
        cached = self._credited(request, standing)
        own, wait, measured, idle_since = standing.floors(request.prompt_tokens, cached, now)
        everyone = Candidates(
            workers=standing.states,
            cached=cached,
            own_floors=own,
            wait_floors=wait,
            measured=measured,
            idle_since=idle_since,
            all_ready=standing.all_ready,
            home=self._homes.get(request.session) if request.session is not None else None,
            returns=self._returns.get(request.model) or Returns(),
            looks=self._looks.get(request.model) or Looks(),
        )
        return everyone.at(standing.able(request.prompt_tokens, request.endpoints))

    def block_sizes(self, model: str) -> tuple[Tokens, ...]:
        """Say which block sizes the workers of a model have."""
        return tuple(self._standing(model).by_size)

    def only_model(self) -> str | None:
        """Name the model that all workers serve; None where there is none, or more than one."""
        models = {state.settings.model for state in self.workers.values()}
        return models.pop() if len(models) == 1 else None

    def wants_witness(self, worker: WorkerId) -> bool:
        """Whether one more stream of this worker should be read chunk by chunk."""
        state = self.workers.get(worker)
        return state is not None and state.mirror.wants_witness

    def signals(self, worker: WorkerId, now: Seconds) -> dict[str, float]:
        """Give what a worker's engine and answers told last of what policies read.

        What they do not tell, or told too long ago, is absent.
        """
        state = self.workers.get(worker)
        if state is None:
            return {}
        told = {} if state.load is None else told_by(state.load, now)
        hits = state.hits.share
        return told if hits is None else told | {Signal.HIT_RATE.value: hits}

    def trust(self) -> list[tuple[str, str, str]]:
        """Say of each worker how far its cache view is believed, and why."""
        beliefs = ((worker, state.belief) for worker, state in self.workers.items())
        return [(worker, belief.trust, belief.reason) for worker, belief in beliefs]

    def conditions(self) -> list[Condition]:
        """Say how every worker stands; any thread may ask."""
        return [
            Condition(
                worker=name,
                model=state.settings.model,
                ready=state.ready,
                heard_at=state.heard_at,
                load=state.load,
                provenance=state.provenance,
                curve=state.known.curve,
                samples=len(state.curves),
                event_lag=state.mirror.event_lag,
                missed_batches=state.missed_batches,
            )
            for name, state in list(self.workers.items())
        ]

    def outlook(self, worker: WorkerId, now: Seconds) -> Outlook:
        """Say what is queued and held at a worker that is there; takes a replay."""
        state = self.workers[worker]
        tiers = (GPU, *(name for name in state.lower.names if name != GPU))
        return Outlook(
            queue=state.queue(now),
            in_flight=sum(not flight.is_ghost for flight in state.mirror.flights.values()),
            slots=state.settings.max_num_seqs,
            held=tuple((tier, self.index.blocks(worker, tier)) for tier in tiers),
            room=state.settings.num_blocks,
            block_size=state.settings.block_size,
            samples=state.curves.samples,
            curve_from=state.known.provenance,
            weights=state.weights,
            step_tokens=state.settings.max_num_batched_tokens,
        )

    def in_flight(self) -> dict[WorkerId, int]:
        """Count the requests that are granted and not over by worker; any thread may ask."""
        flights = [(name, state.mirror.flights) for name, state in list(self.workers.items())]
        return {name: sum(not f.is_ghost for f in list(all_.values())) for name, all_ in flights}

    def _standing(self, model: str) -> Standing:
        """Give the workers of a model; one that nobody serves is not remembered."""
        standing = self._standings.get(model)
        if standing is None:
            states = [s for s in self.workers.values() if s.settings.model == model]
            standing = Standing(states)
            if states:
                self._standings[model] = standing
                self._returns.setdefault(model, Returns())
                self._looks.setdefault(model, Looks())
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
                found = self.index.match(keys[:most], workers)
                depths = found.gpu
                if found.any_tier is not found.gpu:
                    credited = [self.workers[worker].lower.are_credited for worker in workers]
                    depths = np.where(credited, found.any_tier, found.gpu)
                for place, worker in enumerate(workers):
                    if self.workers[worker].lower.finds_others:
                        of_all = self.index.reach_of_all(worker, keys[:most])
                        depths[place] = max(depths[place], of_all)
                cached[places] = depths * size
        return cached

    def _settle(self, session: str | None, worker: WorkerId) -> None:
        if session is not None:
            self._homes.pop(session, None)
            self._homes[session] = worker
            if len(self._homes) > MOST_HOMES:
                del self._homes[next(iter(self._homes))]

    # -- what it is told -----------------------------------------------------------------------

    def apply(self, record: Record, now: Seconds) -> None:  # noqa: C901  # one case a record
        """Take in one record; those of workers that are not there are dropped, but for stores."""
        self.gates.saw(record, now)
        if isinstance(record, WorkerSeen):
            self._see(record, now)
            self.lobbies.heed(record, record.settings.model, now)
            return
        state = self.workers.get(record.worker)
        if state is None or isinstance(record, StoreSeen):
            self._saw_stranger(record)
            return
        self.lobbies.heed(record, state.settings.model, now)
        match record:
            case WorkerGone():
                self._forget(record.worker)
            case KvEvents():
                self._saw_events(state, record)
            case TrustChanged():
                self._told_trust(state, record)
            case LoadSample():
                self._heed(state, state.saw_load(record))
            case Granted():
                state.take(record)
            case TokensSeen():
                self._lessons += state.saw_tokens(record)
                self._relearn(state)
            case Ended():
                self._heed(state, state.saw_end(record))
            case Learned():
                if state.adopt(record):
                    self._lessons += 1
                    self._relearn(state)
            case _:
                assert_never(record)

    def _saw_stranger(self, record: Record) -> None:
        """Take what is told of a shared store; who else is not there has nothing to tell."""
        match record:
            case StoreSeen():
                self.stores[record.worker] = record
            case KvEvents() if is_store(record.worker):
                self.index.apply(record.worker, record.events)
            case WorkerGone() if is_store(record.worker):
                self.stores.pop(record.worker, None)
                self.index.purge(record.worker)

    def _see(self, seen: WorkerSeen, now: Seconds) -> None:
        state = self.workers.get(seen.worker)
        if state is not None and fingerprint(state.settings) == fingerprint(seen.settings):
            if state.ready != seen.ready:
                self._standings.clear()
            state.ready, state.endpoint = seen.ready, seen.endpoint
            if state.settings == seen.settings:
                return
        lengths = self._lengths.setdefault(seen.settings.model, Lengths())
        fresh = WorkerState(seen, lengths, KnownCurve(curve=DEFAULT_CURVE, provenance="unmeasured"))
        fresh.claims, fresh.of_all = self.index.reach, self.index.reach_of_all
        fresh.asked_at = now
        if state is not None:
            fresh.belief, fresh.lower = state.belief, state.lower
            fresh.mirror.pool.set_trust(self.index.trust(seen.worker))
        self.workers[seen.worker] = fresh
        self._seat(seen.endpoint)
        self._standings.clear()
        self._lessons += 1
        self._relearn(fresh)

    def _seat(self, endpoint: str) -> None:
        """Put the ranks of one server beside each other, where they step together."""
        ranks = [state for state in self.workers.values() if state.endpoint == endpoint]
        together = [state for state in ranks if state.steps_together]
        for state in together:
            state.beside = [other for other in together if other is not state]

    # -- how far its caches are believed -----------------------------------------------------------

    def _believe(self, state: WorkerState) -> None:
        """Credit a worker's cache as its trust says; said again, what is credited is in doubt."""
        trust = state.belief.trust
        self.index.set_trust(state.worker, trust)
        state.mirror.pool.set_trust(trust)

    def _told_trust(self, state: WorkerState, told: TrustChanged) -> None:
        state.belief.told(told.trust, told.reason)
        if told.trust is Trust.SUSPECT or state.belief.trust is not self.index.trust(state.worker):
            self._believe(state)

    def _saw_events(self, state: WorkerState, batch: KvEvents) -> None:
        self.index.apply(state.worker, batch.events)
        state.saw_events(batch)
        if any(isinstance(e, Cleared) and e.tier in (None, GPU) for e in batch.events):
            state.belief.cleared(batch.received_at)
            if state.belief.trust is Trust.LIVE:
                self._believe(state)

    def _heed(self, state: WorkerState, seen: Seen) -> None:
        """Take what an outcome shows of a worker's cache."""
        pool = state.mirror.pool
        if seen.finding is Finding.SETTLED:
            self.index.give_up_doubted(state.worker)
            pool.give_up_doubted()
        elif seen.finding is Finding.VOUCHED:
            self.index.vouch_for_doubted(state.worker)
            pool.vouch_for_doubted()
        if seen.finding is Finding.DOUBTED or (seen.finding and not state.belief.is_weak):
            self._believe(state)
        if seen.certain:
            self.index.confirm(state.worker, np.array(seen.certain, dtype=np.uint64))
            gone = pool.confirm(seen.certain, state.settings.num_blocks)
            self.index.remove(state.worker, np.array(gone, dtype=np.uint64))

    def _forget(self, worker: WorkerId) -> None:
        gone = self.workers.pop(worker)
        self._seat(gone.endpoint)
        self.index.purge(worker)
        self._standings.clear()
        served = {state.settings.model for state in self.workers.values()}
        self._returns = {model: own for model, own in self._returns.items() if model in served}
        self._looks = {model: own for model, own in self._looks.items() if model in served}
        self._lessons += 1

    def _relearn(self, state: WorkerState) -> None:
        """Let a worker take the best curve there is, where some curve has changed since it did."""
        if state.lessons != self._lessons:
            state.lessons = self._lessons
            peers = (other.curves for other in self.workers.values())
            state.relearn(best_known(state.curves, peers))


def _priced(
    passed: Callable[[str], None],
    judge: Judge,
    soundings: Soundings,
    choice: Choice,
    budget: Budget,
) -> Choice | Excess:
    passed("price")
    return judge(soundings, choice, budget)
