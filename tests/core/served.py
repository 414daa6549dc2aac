"""An engine that serves one prompt after another, and says of its cache what a test lets it say."""

from dataclasses import replace
from random import Random

import numpy as np
from leadsman.budget import Budget
from leadsman.engine import EngineSettings
from leadsman.fleet import Fleet
from leadsman.records import (
    Ended,
    KvEvents,
    LoadSample,
    Outcome,
    Stored,
    TokensSeen,
    Trust,
    TrustChanged,
    WorkerSeen,
)
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId

W = WorkerId("w:8000")
SIZE, BLOCKS = 16, 64
PROMPT = SIZE * BLOCKS + 5
SETTINGS = EngineSettings(
    model="m",
    version="0.33.0",
    max_num_batched_tokens=4096,
    max_num_seqs=8,
    max_model_len=100_000,
    block_size=SIZE,
    num_blocks=10_000,
    async_scheduling=False,
)


def keys(seed, blocks=BLOCKS):
    return np.random.default_rng(seed).integers(1, 2**64, blocks, dtype=np.uint64)


class Engine:
    """An engine that keeps every prompt, and says of it what a test lets it say."""

    def __init__(self, *, trust=Trust.LIVE, reports_usage=True, counts_hits=False, **settings):
        self.fleet = Fleet()
        self.settings = replace(SETTINGS, **settings)
        self.fleet.apply(WorkerSeen(worker=W, endpoint=W, settings=self.settings), 0.0)
        self.reports_usage, self.counts_hits = reports_usage, counts_hits
        self.cached, self.hits, self.now, self.batch, self.sent = {}, 0, 1.0, 0, 0
        if trust is not None:
            self.tell_trust(trust)
        self.sample()

    @property
    def state(self):
        return self.fleet.workers[W]

    def tell(self, record):
        self.fleet.apply(record, self.now)

    def tell_trust(self, trust):
        self.tell(TrustChanged(worker=W, trust=trust, reason="told"))

    def events(self, *events):
        self.batch += 1
        self.tell(
            KvEvents(
                worker=W,
                sequence=self.batch,
                engine_time=self.now,
                received_at=self.now,
                events=events,
            )
        )

    def sample(self):
        hits = self.hits if self.counts_hits else None
        self.tell(LoadSample(worker=W, at=self.now, running=0, waiting=0, prefix_hits=hits))

    def work_on(self):
        """Run another request, that never ends."""
        self.sent += 1
        request = Request(
            id=RequestId(f"r{self.sent}"), model="m", prompt_tokens=9, arrived_at=self.now, keys={}
        )
        self.fleet.decide(request, Budget(), self.now, Random(1))
        self.tell(TokensSeen(worker=W, request=request.id, at=self.now + 0.1, tokens=1))
        self.now += 0.2

    def lose_its_cache(self):
        """What a reset of an idle engine does: it says nothing."""
        self.cached.clear()

    def serve(self, seed, *, says=True, found=None, ttft=1.0, ends=True):
        """Serve one prompt alone; returns (tokens credited, tokens found)."""
        named, self.sent = keys(seed), self.sent + 1
        self.now += 1.0
        request = Request(
            id=RequestId(f"r{self.sent}"),
            model="m",
            prompt_tokens=PROMPT,
            arrived_at=self.now,
            keys={SIZE: named},
        )
        admitted = self.fleet.decide(request, Budget(), self.now, Random(1))
        self.price = admitted.prediction.price
        if found is None:
            found = SIZE * BLOCKS if seed in self.cached else 0
        self.hits += found
        self.now += ttft
        if not found:
            self.cached[seed] = True
            if says:
                self.events(Stored(keys=named, session=request.id))
        self.tell(TokensSeen(worker=W, request=request.id, at=self.now, tokens=1))
        self.now += 0.5
        if ends:
            self._end(request, found)
        self.now += 1.0
        self.sample()
        return self.price.cached_tokens, found

    def _end(self, request, found):
        self.tell(
            Ended(
                worker=W,
                request=request.id,
                at=self.now,
                outcome=Outcome.FINISHED,
                completion_tokens=8,
                cached_tokens=found if self.reports_usage else None,
            )
        )

    def credit(self, seed):
        """What the index and the replay credit a prompt, which agree."""
        named = keys(seed)
        depth = int(self.fleet.index.match(named, [W]).gpu[0])
        assert self.state.mirror.pool.depth(named.tolist(), BLOCKS) == depth
        self.fleet.index.check()
        self.state.mirror.pool.check()
        return SIZE * depth
