"""Workers whose predictions are given, for the tests of what is decided from them."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from leadsman.candidates import Candidates
from leadsman.prediction import Prediction, Price
from leadsman.records import Trust
from leadsman.steptime import StepWeights
from leadsman.units import WorkerId

WEIGHTS = StepWeights(0.01, 1e-4, 0.0, 1e-3, 0.0, 0.0)


@dataclass(kw_only=True)
class FakeWorker:
    """A worker of which every prediction is known; counts its replays."""

    name: str
    wait: float = 0.0
    prefill: float = 1.0
    cached: int = 0
    queued: int | None = None
    queued_requests: int = 1
    off_by: float = 0.0
    curve: str = "own"
    ready: bool = True
    loose: float = 0.0
    idle_since: float = np.inf
    signals: dict = field(default_factory=dict)
    weights: StepWeights = WEIGHTS
    replays: int = field(default=0, compare=False)

    @property
    def worker(self):
        return WorkerId(self.name)

    @property
    def endpoint(self):
        return f"{self.name}:8000"

    def read(self, signal, now):
        return self.signals.get(signal)

    def price(self, request, now):
        self.replays += 1
        queued = round(self.wait * 1000) if self.queued is None else self.queued
        return Price(
            worker=self.worker,
            queue_wait=self.wait,
            own_prefill=self.prefill,
            cached_tokens=self.cached,
            queued_tokens=queued,
            queued_requests=min(queued, self.queued_requests),
        )

    def predict(self, price, confidence, now):
        return Prediction(
            price=price,
            confidence=confidence,
            queue_wait_bound=price.queue_wait + self.off_by,
            ttft_bound=price.ttft + self.off_by,
            curve=self.curve,
            trust=Trust.LIVE,
            trust_reason="history is complete",
            state_age=0.1,
        )


def _candidates(workers, *, home=None):
    """Candidates whose floors are `loose` below what the workers will say, as a share of it."""
    loose = np.array([1.0 - worker.loose for worker in workers])
    return Candidates(
        workers=workers,
        cached=np.array([worker.cached for worker in workers], dtype=np.int64),
        own_floors=np.array([worker.prefill for worker in workers]) * loose,
        wait_floors=np.array([worker.wait for worker in workers]) * loose,
        measured=np.array([worker.curve != "unmeasured" for worker in workers], dtype=np.bool_),
        idle_since=np.array([worker.idle_since for worker in workers]),
        home=None if home is None else WorkerId(home),
    )


@pytest.fixture(scope="session")
def fake_worker():
    return FakeWorker


@pytest.fixture(scope="session")
def candidates_of():
    return _candidates
