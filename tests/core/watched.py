"""A simulated engine without chance, and a mirror that sees of it what a picker would.

Its steps last exactly as long as six weights say, so a mirror with those weights has no excuse.
What is seen comes late by delays that a test may set: chunks of streams, KV events, and the ends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from itertools import count
from random import Random
from zlib import crc32

import numpy as np
from leadsman.engine import EngineSettings
from leadsman.mirror import Mirror
from leadsman.pricing import forecast
from leadsman.records import (
    Cleared,
    Ended,
    Granted,
    KvEvents,
    LoadSample,
    Outcome,
    Removed,
    Stored,
)
from leadsman.steptime import StepFeatures, StepLearner, StepWeights
from leadsman.units import RequestId, WorkerId
from leadsman_engines.simulated.blocks import BlocksRemoved, BlocksStored
from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.sequences import SimulatedRequest
from leadsman_engines.simulated.settings import SimulatedSettings

WORKER = WorkerId("w:8000")
TRUE = StepWeights(0.006, 6.6e-5, 2e-8, 5e-4, 4e-7, 0.0)


class LinearHardware:
    """Steps last as long as the six weights say."""

    def __init__(self, weights):
        self.weights = weights

    def step_seconds(self, chunks, contexts):
        attention = sum(n * (before + n / 2) for n, before in chunks)
        prefill = sum(n for n, _ in chunks)
        return self.weights.seconds(
            StepFeatures(1, prefill, attention, len(contexts), sum(contexts), 0)
        )

    def decode_seconds(self, batch, context_sum, selected):
        return self.weights.seconds(StepFeatures(1, 0, 0, batch, context_sum, 0))

    def selected_sum(self, contexts):
        return 0

    def by_chance(self, seconds, rng):
        return seconds


def settings_of(**changed):
    usual = {
        "model": "m",
        "version": "0.33.0",
        "max_num_batched_tokens": 512,
        "max_num_seqs": 4,
        "max_model_len": 16_000,
        "block_size": 64,
        "num_blocks": 2000,
        "async_scheduling": False,
    }
    return EngineSettings(**usual | changed)


def simulated(settings):
    theirs = {field.name for field in fields(SimulatedSettings)}
    shared = theirs & {field.name for field in fields(EngineSettings)}
    return SimulatedSettings(
        **{name: getattr(settings, name) for name in shared},
        api_delay=0.0045,
        api_delay_per_token=0.75e-6,
    )


@dataclass
class Watched:
    """An engine, its mirror, and what is on its way from one to the other.

    chunk_late, events_late: seconds, or a function that draws them.
    """

    settings: EngineSettings
    weights: StepWeights = TRUE
    believed: StepWeights | None = None
    trust: float = 25.0
    chunk_late: float | Callable[[], float] = 0.001
    events_late: float | Callable[[], float] = 0.0005
    has_events: bool = True
    has_witnesses: bool = True
    tokens_a_chunk: int = 1
    sequence: int = 0
    mirror: Mirror = field(init=False)
    engine: SimulatedEngine = field(init=False)
    now: float = 0.0
    after_each: Callable[["Watched"], None] | None = None

    def __post_init__(self):
        self.learner = StepLearner(self.believed or self.weights, trust=self.trust)
        self.mirror = Mirror(self.settings, self.learner)
        self.engine = SimulatedEngine(
            simulated(self.settings), LinearHardware(self.weights), Random(1)
        )
        self._on_its_way, self._order = [], count()
        self.generated, self.first_at, self.cached, self.ended_at = {}, {}, {}, {}
        self._relayed = {}
        self.alias = None
        """The session that requests give which the mirror is not told of; None: one each."""

    def submit(
        self, name, prompt, output, *, keys=(), max_tokens=None, expected=None, seen=True, late=0.0
    ):
        """Send a request now; `keys` name its leading blocks.

        late: all that is said of it but the events comes so many seconds late, as of another's.
        """
        whole = [*keys][: prompt // self.settings.block_size]
        whole += [
            crc32(f"{name}/{block}".encode()) + (block << 32)
            for block in range(len(whole), prompt // self.settings.block_size)
        ]
        if seen:
            granted = self.granted(name, prompt, keys=whole, max_tokens=max_tokens)
            expected = output if expected is None else expected
            if late:
                self._relayed[name] = late
                self._later(late, self.now, lambda: self.mirror.grant(granted, expected))
            else:
                self.mirror.grant(granted, expected)
        self.engine.submit(
            SimulatedRequest(
                id=name,
                prompt_tokens=prompt,
                prompt_hashes=whole,
                output_tokens=output,
                max_tokens=max_tokens,
                session_id=name if seen or self.alias is None else self.alias,
            ),
            self.now,
        )

    def granted(self, name, prompt, *, keys=(), max_tokens=None):
        return Granted(
            worker=WORKER,
            request=RequestId(name),
            at=self.now,
            prompt_tokens=prompt,
            keys=np.array(keys, dtype=np.uint64),
            max_tokens=max_tokens,
            priority=0,
            predicted_ttft=None,
        )

    def run(self, until):
        """Let engine and mirror run up to `until`; `after_each` is called when all is delivered."""
        while True:
            step = self.engine.next_time()
            seen = self._on_its_way[0][0] if self._on_its_way else None
            moments = [at for at in (step, seen) if at is not None and at <= until]
            if not moments:
                break
            self.now = min(moments)
            if step is not None and step == self.now:
                for output in self.engine.advance(self.now):
                    self._report(output)
            while self._on_its_way and self._on_its_way[0][0] <= self.now:
                heappop(self._on_its_way)[2]()
            if self.after_each is not None and not self._on_its_way:
                self.after_each(self)
        self.now = until
        self.mirror.catch_up(until)

    def run_out(self):
        while self.engine.next_time() is not None or self._on_its_way:
            self.run(self.now + 1.0)

    def _report(self, output):
        for end in output.ends:
            self._report_events(output.events, end)
            for name in output.tokens:
                self.generated[name] = self.generated.get(name, 0) + 1
                if self.generated[name] == 1:
                    self.first_at[name] = end
                    self.cached[name] = output.first[name]
                relayed = end + self._relayed.get(name, 0.0)
                self._later(self.chunk_late, relayed, self._chunk(name, self.generated[name], end))
        for name in output.finished:
            self.ended_at[name] = output.ends[-1]
            relayed = output.ends[-1] + self._relayed.get(name, 0.0)
            self._later(self.chunk_late, relayed, self._end(name, self.generated[name]))

    def _chunk(self, name, tokens, end):
        def deliver():
            flight = self.mirror.flights.get(RequestId(name))
            is_read = self.has_witnesses and flight is not None and flight.is_witness
            if tokens == 1 or (is_read and tokens % self.tokens_a_chunk == 0):
                self.mirror.saw_tokens(RequestId(name), tokens, self.now)

        return deliver

    def _end(self, name, tokens):
        return lambda: self.mirror.saw_end(
            Ended(
                worker=WORKER,
                request=RequestId(name),
                at=self.now,
                outcome=Outcome.FINISHED,
                completion_tokens=tokens,
            )
        )

    def _report_events(self, events, end):
        if not (events and self.has_events):
            return
        told = tuple(map(event_of, events))
        self.sequence += 1
        sequence = self.sequence

        def deliver():
            self.mirror.saw_events(
                KvEvents(
                    worker=WORKER,
                    sequence=sequence,
                    engine_time=end,
                    received_at=self.now,
                    events=told,
                )
            )

        self._later(self.events_late, end, deliver)

    def _later(self, late, at, deliver):
        late = late() if callable(late) else late
        heappush(self._on_its_way, (at + late, next(self._order), deliver))

    def tell_load(self):
        """Say what the engine's metrics say now."""
        scheduler = self.engine.scheduler
        self.mirror.saw_load(
            LoadSample(
                worker=WORKER,
                at=self.now,
                running=len(scheduler.running),
                waiting=len(scheduler.waiting),
            )
        )

    def ask(self, name, prompt, output, *, keys=()):
        """Predict a request that is sent now: (seconds to the first token, tokens cached)."""
        self.mirror.catch_up(self.now)
        seq = self.mirror.sequence(self.granted(name, prompt, keys=keys), output)
        found = forecast(self.mirror, seq, self.learner.weights, self.now)
        return found.first_token_at - self.now, found.cached_tokens

    # -- what is true, and what is believed ----------------------------------------------------

    def truth(self, ahead):
        """Computed tokens of all that run, when `ahead` more steps than have ended are done."""
        steps = list(self.engine._steps)[ahead:]
        return {
            tracked.id: tracked.computed - sum(step.tokens.get(tracked, 0) for step in steps)
            for tracked in self.engine.scheduler.running
        }

    def believed_state(self):
        replay = self.mirror.replay
        running = [*replay.prefilling, *replay.decoding.values()]
        return {seq.id: self.mirror._computed(seq) for seq in running}

    @property
    def ahead(self):
        return len(self.mirror._unsettled)


def event_of(event):
    if isinstance(event, BlocksStored):
        return Stored(keys=np.array(event.hashes, dtype=np.uint64), session=event.session_id)
    if isinstance(event, BlocksRemoved):
        return Removed(keys=np.array(event.hashes, dtype=np.uint64))
    return Cleared()


@dataclass
class Asked:
    """One request of a run: what was predicted of it, and what came."""

    name: str
    at: float
    predicted: tuple[float, int]
    ttft: float = 0.0
    cached: int = 0

    @property
    def error(self):
        return abs(self.predicted[0] - self.ttft)


def conversations(watched, *, requests=40, rate=1.5, seed=1, families=6, unseen=0.0):
    """Play turns of some conversations through an engine, each predicted first; returns them.

    unseen: the share that the mirror is not told of; those are not returned. Where there are any,
    the engine's metrics are read at every arrival, and twice at the end.
    """
    rng, asked, prefixes = Random(seed), [], {}
    for number in range(requests):
        watched.run(watched.now + rng.expovariate(rate))
        if unseen:
            watched.tell_load()
        family = rng.randrange(families)
        known = prefixes.get(family, [])
        prompt = min(8000, len(known) * 64 + rng.randint(70, 900))
        keys = known + [rng.getrandbits(60) for _ in range(prompt // 64 - len(known))]
        prefixes[family] = keys if rng.random() < 0.7 else []
        name, output, seen = f"r{number}", rng.randint(3, 80), rng.random() >= unseen
        if seen:
            predicted = watched.ask(name, prompt, output, keys=keys)
            asked.append(Asked(name, watched.now, predicted))
        watched.submit(name, prompt, output, keys=keys, seen=seen)
    watched.run_out()
    for _ in range(2 if unseen else 0):
        watched.tell_load()
    for one in asked:
        one.ttft, one.cached = watched.first_at[one.name] - one.at, watched.cached[one.name]
    return asked
