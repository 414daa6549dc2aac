"""One worker as a picker knows it: its mirror, its speed, its record of being right.

A `WorkerState` prices requests and learns from their outcomes. Its speed has two sets of weights:
the prior from the isolated curve, and the learned ones; both are asked for each granted request and
graded when its first token comes, and the one that has lately been right prices the next.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from leadsman.curve import CurveLearner, KnownCurve, PrefillCurve, fingerprint
from leadsman.ends import joint_ends
from leadsman.engine import EngineSettings
from leadsman.findings import NOTHING_SEEN, Seen, counted_by, late_by, lookup_of, seen_by
from leadsman.firstcome import Forecast
from leadsman.followers import Followers
from leadsman.holding import Flight
from leadsman.lengths import Floats, Lengths, beyond
from leadsman.lower import OTHERS, Claim, LowerTiers, Reach
from leadsman.mirror import ARRIVAL_DELAY, Mirror
from leadsman.prediction import Prediction, Price, Provenance
from leadsman.pricing import forecast
from leadsman.records import (
    GPU,
    Cleared,
    Ended,
    Granted,
    KvEvents,
    Learned,
    LoadSample,
    Outcome,
    TokensSeen,
)
from leadsman.request import Request
from leadsman.residuals import PROMISED, BetterOf, Residuals
from leadsman.schedulers import steps_together
from leadsman.signals import REPORTED, HitRate, Signal, reported
from leadsman.steptime import StepLearner, StepWeights
from leadsman.trust import CacheTrust
from leadsman.units import BlockKey, Blocks, Keys, RequestId, Seconds, Tokens, WorkerId

if TYPE_CHECKING:
    from leadsman.records import WorkerSeen

NO_KEYS: Keys = np.empty(0, dtype=np.uint64)

MEASURED_WINDOWS = 20
"""Busy windows with prefill in them after which the step model counts as measured."""

GUESS, CURVE, CALIBRATED = 0.003, 20.0, 25.0
"""How many windows a prior counts as: a default, a measured curve, one with a decode table."""

UNCAPPED: Tokens = 1 << 40
"""Tokens that an answer may have where nothing bounds it."""

NOBODY = RequestId("")
"""The name of a request that nobody made."""

NEVER: Seconds = 1e6
"""Seconds of wait for a request that the engine can never admit."""


@dataclass(slots=True)
class Expectation:
    """What was predicted of a granted request, to be graded at its first token.

    claim: what the tiers below the GPU claimed; None where there are none. promised: bounds of its
    wait and its TTFT, at a confidence of `residuals.PROMISED`. ttft: the real one.
    """

    price: Price
    prior_ttft: Seconds
    learned_ttft: Seconds
    family: BlockKey | None
    claim: Claim | None
    promised: tuple[Seconds, Seconds]
    ttft: Seconds | None = None


class WorkerState:
    """Everything known of one worker. `lengths` is shared by all workers of a model.

    beside: the other ranks of its server, where all of them step together.
    claims: counts the leading blocks that it holds on its GPU or in a tier, by its fleet's index;
    of all: or anybody in a tier below the GPU.
    changed: where it puts itself when something happens to it; its fleet says which set.
    """

    def __init__(self, seen: "WorkerSeen", lengths: Lengths, known: KnownCurve) -> None:
        self.worker: WorkerId = seen.worker
        self.endpoint = seen.endpoint
        self.settings: EngineSettings = seen.settings
        self.ready = seen.ready
        self.belief = CacheTrust()
        self.lower = LowerTiers()
        self.claims: Callable[[WorkerId, Keys, str], Blocks] | None = None
        self.of_all: Callable[[WorkerId, Keys], Blocks] | None = None
        self.curves = CurveLearner(fingerprint(seen.settings))
        self.lengths = lengths
        self.known = known
        self.learner = StepLearner(
            prior_weights(known.curve), GUESS, seen.settings.max_num_batched_tokens
        )
        self.mirror = Mirror(seen.settings, self.learner)
        self.waits, self.ttfts = Residuals(), Residuals()
        self.better = BetterOf(first="learned")
        self.load: LoadSample | None = None
        self.hits = HitRate()
        self.heard_at: Seconds | None = None
        self.asked_at: Seconds = -math.inf
        self._expectations: dict[RequestId, Expectation] = {}
        self.followers = Followers()
        self._below: dict[RequestId, Floats] = {}
        self._crowd: int | None = None
        self._sequence: int | None = None
        self.missed_batches = 0
        self._is_calibrated = False
        self._last_wait: tuple[Seconds, Seconds] = (0.0, 0.0)
        self.changed: set[WorkerState] = set()
        self.beside: list[WorkerState] = []
        self.lessons = 0

    # -- prices --------------------------------------------------------------------------------

    @property
    def weights(self) -> StepWeights:
        """The step weights that price now."""
        if self.provenance != "unmeasured" and self.better.best == "prior":
            return self.learner.prior
        return self.learner.weights

    @property
    def provenance(self) -> Provenance:
        """Where the speed comes from: learned steps count as much as a learned curve."""
        return "own" if self.learner.prefill_windows >= MEASURED_WINDOWS else self.known.provenance

    @property
    def steps_together(self) -> bool:
        """Whether it steps together with the other ranks of its server."""
        return steps_together(self.settings)

    def price(self, request: Request, now: Seconds) -> Price:
        """Replay this worker with the request behind all that it has; moves the mirror to `now`."""
        price = self._price(request, self._as_granted(request, now), self.weights)
        self._last_wait = (now, 0.9 * price.queue_wait)
        return price

    def queue(self, now: Seconds) -> Price:
        """Say what a prompt of one token would meet; nothing that a decision reads is changed.

        Moves the mirror to `now`.
        """
        least = Request(id=NOBODY, model=self.settings.model, prompt_tokens=1, arrived_at=now)
        return self._price(least, self._as_granted(least, now), self.weights)

    def predict(self, price: Price, confidence: float, now: Seconds) -> Prediction:
        """Add to a price how far off it may be, and what it rests on."""
        return Prediction(
            price=price,
            confidence=confidence,
            queue_wait_bound=self.waits.bound(price.queue_wait, confidence),
            ttft_bound=self.ttfts.bound(price.ttft, confidence),
            curve=self.provenance,
            trust=self.belief.trust,
            trust_reason=self.belief.reason,
            state_age=None if self.heard_at is None else max(0.0, now - self.heard_at),
            weights=self.weights,
            block_size=self.settings.block_size,
        )

    def read(self, signal: str, now: Seconds) -> float | None:
        """Read a signal for a policy; None where nobody tells it now."""
        flights, load = self.mirror.flights, self.load
        if signal == Signal.IN_FLIGHT:
            return float(sum(not flight.is_ghost for flight in flights.values()))
        if signal == Signal.HIT_RATE:
            return self.hits.share
        if signal not in REPORTED:
            own = self.settings
            known = {
                Signal.QUEUED_TOKENS: self.mirror.queued_tokens,
                Signal.SLOTS: own.max_num_seqs,
                Signal.STEP_TOKENS: own.max_num_batched_tokens,
                Signal.KV_TOKENS: own.num_blocks * own.block_size
                if own.enable_prefix_caching
                else None,
            }
            return known.get(Signal(signal))
        if load is None:
            return None
        sent = sum(flight.granted_at > load.at for flight in flights.values())
        ended = max(0, load.running + load.waiting - (len(flights) - sent))
        return reported(Signal(signal), load, sent - ended, now)

    def standing(self) -> tuple[float, ...]:
        """Give what bears on its floors, so until it is among the `changed`.

        (s, a, b / 2, t0) of its weights and the tokens of a step; until when it is surely busy, or
        the last replay's wait lasted; whether it was measured; when it was asked last, infinite
        while it works.
        """
        weights, (at, wait) = self.weights, self._last_wait
        return (
            weights.s,
            weights.a,
            0.5 * weights.b,
            weights.t0,
            self.settings.max_num_batched_tokens,
            max(self.mirror.busy_until(weights), at + wait),
            self.provenance != "unmeasured",
            math.inf if self.mirror.flights else self.asked_at,
        )

    def _price(self, request: Request, granted: Granted, weights: StepWeights) -> Price:
        mirror, settings, size = self.mirror, self.settings, self.settings.block_size
        self.changed.add(self)
        self.catch_up(granted.at)
        for other in self.beside:
            other.catch_up(granted.at)
        mirror.beside = [(other.mirror, other.weights) for other in self.beside]
        reach = self._reach(self._claim(granted), weights)
        listed = partial(request.key_list, size) if reach is None else None
        asked = mirror.sequence(granted, expected=1, listed=listed)
        asked.reach = 0 if reach is None else reach.blocks
        found = forecast(mirror, asked, weights, granted.at, self.followers.next_after(granted.at))
        if found is None:
            found = Forecast(granted.at + NEVER, granted.at + NEVER, 0)
        load = 0.0 if reach is None else reach.seconds
        rest = weights.alone(granted.prompt_tokens - asked.prompt, settings.max_num_batched_tokens)
        return Price(
            worker=self.worker,
            queue_wait=found.scheduled_at - granted.at,
            own_prefill=found.first_token_at - found.scheduled_at + load + rest,
            cached_tokens=found.cached_tokens,
            queued_tokens=mirror.queued_tokens,
            queued_requests=len(mirror.replay.waiting),
            loaded_tokens=0 if reach is None else reach.tokens,
            load=load,
        )

    def _claim(self, granted: Granted) -> Claim | None:
        """Ask what tiers below the GPU claim of a request, others' too; None where none does."""
        if self.claims is None or self.of_all is None or not granted.reads_cache:
            return None
        keys = granted.keys[: (granted.prompt_tokens - 1) // self.settings.block_size]
        claims = {name: self.claims(self.worker, keys, name) for name in self.lower.names}
        of_all = self.of_all(self.worker, keys)
        if not claims and not of_all:
            return None
        gpu = self.claims(self.worker, keys, GPU)
        if of_all > max(gpu, *claims.values(), 0):
            claims[OTHERS] = of_all
        return Claim(gpu=gpu, with_tier=claims) if claims else None

    def _reach(self, claim: Claim | None, weights: StepWeights) -> Reach | None:
        if claim is None:
            return None
        return self.lower.reach(claim, self.settings.block_size, weights.a)

    def catch_up(self, now: Seconds) -> None:
        """Commit the steps that nothing shows, and expect ends anew where the crowd changed."""
        self.mirror.catch_up(now)
        replay = self.mirror.replay
        if replay.decoding and (replay.crowd != self._crowd or replay.has_overdue):
            self._crowd = replay.crowd
            self._foresee_ends()

    def _foresee_ends(self) -> None:
        """Expect the ends of all that decode anew."""
        replay = self.mirror.replay
        seqs = list(replay.decoding.values())
        # Of a stranger nothing was asked, nor of who decodes still where its end is known already.
        are_known = all(seq.id in self._below for seq in seqs)
        anybody = None if are_known else self.lengths.below()
        below = np.array([self._below.get(seq.id, anybody) for seq in seqs])
        generated = [replay.generated(seq) for seq in seqs]
        room = [(seq.limit or UNCAPPED) - made for seq, made in zip(seqs, generated, strict=True)]
        ends = joint_ends(below, generated, room).tolist()
        replay.expect_all({seq.id: left for seq, left in zip(seqs, ends, strict=True)})

    def _as_granted(self, request: Request, now: Seconds) -> Granted:
        return Granted(
            worker=self.worker,
            request=request.id,
            at=now,
            prompt_tokens=request.prompt_tokens,
            keys=request.keys.get(self.settings.block_size, NO_KEYS),
            max_tokens=request.max_tokens,
            min_tokens=request.min_tokens,
            priority=request.priority,
            predicted_ttft=None,
            reads_cache=request.reads_cache,
        )

    # -- the ledger ----------------------------------------------------------------------------

    def reserve(
        self, request: Request, price: Price, now: Seconds, family: BlockKey | None = None
    ) -> None:
        """Take a request in at the moment of its pick.

        family: names the requests whose answers tend to be as long as this one's; None: unknown.
        """
        granted = self._as_granted(request, now)
        prior, learned = self.learner.prior, self.learner.weights
        priced_by_prior = self.weights is prior
        other_ttft = price.ttft
        if prior != learned:
            other = learned if priced_by_prior else prior
            other_ttft = self._price(request, granted, other).ttft
        prior_ttft = price.ttft if priced_by_prior else other_ttft
        learned_ttft = other_ttft if priced_by_prior else price.ttft
        claim = self._claim(granted)
        promised = (
            self.waits.bound(price.queue_wait, PROMISED),
            self.ttfts.bound(price.ttft, PROMISED),
        )
        expectation = Expectation(price, prior_ttft, learned_ttft, family, claim, promised)
        self._expectations[request.id] = expectation
        self._take(granted, claim, family)

    def take(self, granted: Granted) -> None:
        """Take another picker's grant in."""
        self._take(granted, self._claim(granted))

    def _take(self, granted: Granted, claim: Claim | None, family: BlockKey | None = None) -> None:
        self.changed.add(self)
        if granted.request not in self.mirror.flights:
            self.asked_at = max(self.asked_at, granted.at)
            below = self.lengths.below(family, granted.max_tokens, granted.min_tokens)
            self._below[granted.request] = below
            flight = self.mirror.grant(granted, round(beyond(below, 0)))
            reach = self._reach(claim, self.weights)
            flight.seq.reach = 0 if reach is None else reach.blocks
            self.followers.came(granted.at)

    def saw_tokens(self, seen: TokensSeen) -> bool:
        """Tokens of a granted request came; the first of them grades its prediction.

        Says whether they were a sample of the worker's curve.
        """
        flight = self.mirror.flights.get(seen.request)
        if flight is None:
            return False
        is_first = flight.first_at is None
        self.changed.add(self)
        self.mirror.saw_tokens(seen.request, seen.tokens, seen.at)
        if is_first:
            if (lookup := lookup_of(flight)) is not None:
                self.belief.admitted(lookup)
            self.followers.prefilled(flight.seq.prompt - (flight.seq.cached or 0))
        return is_first and self._grade(flight, seen)

    def saw_end(self, ended: Ended) -> Seen:
        """A granted request is over; returns what it showed of the cache."""
        self.changed.add(self)
        flight = self.mirror.saw_end(ended)
        if flight is not None and flight.first_at is None:
            # What gives up in the queue makes it shorter than time alone would.
            self._last_wait = (0.0, 0.0)
        expectation = self._expectations.pop(ended.request, None)
        self._below.pop(ended.request, None)
        if flight is not None and ended.outcome is Outcome.FINISHED and ended.completion_tokens:
            family = None if expectation is None else expectation.family
            if ended.completion_tokens > flight.min_tokens:
                self.lengths.add(ended.completion_tokens, family, flight.max_tokens)
        if flight is None:
            return NOTHING_SEEN
        found = ended.cached_tokens
        if found is not None:
            self.hits.add(found, flight.seq.prompt, ended.at)
        if expectation is not None and expectation.claim is not None and found is not None:
            late = None
            if expectation.ttft is not None:
                late = late_by(expectation.price, expectation.ttft, found, self.weights)
            size = self.settings.block_size
            self.lower.judge(expectation.claim, found // size, late, size)
        seen = seen_by(flight, ended, self.belief, self.settings.block_size)
        self.belief.ended(ended.request)
        return seen

    def saw_events(self, batch: KvEvents) -> None:
        """Take a batch of KV events; a sequence that falls back is a restarted engine."""
        self.heard_at = batch.received_at
        self.lower.note(batch.events)
        if self._sequence is not None and batch.sequence <= self._sequence:
            self.restarted()
        elif self._sequence is not None and not _says_all(batch):
            self.missed_batches += batch.sequence - self._sequence - 1
        self._sequence = batch.sequence
        self.changed.add(self)
        self.mirror.saw_events(batch)

    def saw_load(self, sample: LoadSample) -> Seen:
        """Keep what the engine said of its own load; returns what it shows of the cache."""
        self.load = sample
        self.heard_at = sample.at
        self.mirror.saw_load(sample)
        return counted_by(self.mirror.flights.values(), sample, self.belief)

    def restarted(self) -> None:
        """The engine began anew: nothing runs there; what was learned of its speed stays."""
        self.mirror.reset()
        self._sequence = None
        self.changed.add(self)

    def _grade(self, flight: Flight, seen: TokensSeen) -> bool:
        actual = seen.at - flight.granted_at
        expectation = self._expectations.get(seen.request)
        if expectation is not None:
            price, expectation.ttft = expectation.price, actual
            wait, whole = expectation.promised
            self.ttfts.add(price.ttft, actual, whole)
            self.waits.add(price.queue_wait, max(0.0, actual - price.own_prefill), wait)
            self.better.add(
                prior=expectation.prior_ttft, learned=expectation.learned_ttft, actual=actual
            )
        is_sample = flight.is_alone and flight.seq.cached == 0 and actual > 0
        if is_sample:
            self.curves.add(flight.seq.prompt, actual)
        return is_sample

    def adopt(self, learned: Learned) -> bool:
        """Take over what was learned of this worker before; False where nothing of it is news."""
        if learned.fingerprint != self.curves.fingerprint:
            return False
        self.changed.add(self)
        if learned.step_weights is not None:
            self._is_calibrated = True
            self.learner.lean_on(StepWeights(*learned.step_weights), CALIBRATED)
        return self.curves.adopt(learned)

    def relearn(self, known: KnownCurve) -> None:
        """Take a better curve as the prior of the step model."""
        if known != self.known:
            self.known = known
            self.changed.add(self)
            if self._is_calibrated:
                return
            trust = GUESS if known.provenance == "unmeasured" else CURVE
            self.learner.lean_on(prior_weights(known.curve), trust)


def prior_weights(curve: PrefillCurve) -> StepWeights:
    """Step weights of an isolated curve, without a decode table: decoding is not in it."""
    overhead = max(curve.overhead - ARRIVAL_DELAY, 1e-4)
    return StepWeights(0.0, curve.a, 2.0 * curve.b, 0.0, 0.0, overhead)


def _says_all(batch: KvEvents) -> bool:
    """Whether it says all that is held, as to whoever connects anew: what came before is in it."""
    first = batch.events[0] if batch.events else None
    return isinstance(first, Cleared) and first.tier is None
