"""The workers that could serve one request, and what is predicted of it on some of them.

A prediction costs a replay, so it is made only where it is asked for and at most once a decision:
routing and admission look at the same ones. What is cheap is known of every worker, as arrays: the
floors, below which no replay can come.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from leadsman.looks import Looks
from leadsman.prediction import Prediction, Price
from leadsman.request import Request
from leadsman.returns import Returns
from leadsman.steptime import StepWeights
from leadsman.survey import MOST_TOLD, Survey
from leadsman.units import Seconds, WorkerId

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Candidate(Protocol):
    """One worker that could serve the request."""

    @property
    def worker(self) -> WorkerId:
        """Which worker this is."""
        ...

    @property
    def endpoint(self) -> str:
        """Where its requests are sent, `host:port`."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it takes requests now."""
        ...

    @property
    def weights(self) -> StepWeights:
        """How long its steps take."""
        ...

    def read(self, signal: str, now: Seconds) -> float | None:
        """Read one of `signals.Signal`; None where nobody tells it now."""
        ...

    def price(self, request: Request, now: Seconds) -> Price:
        """Replay the worker with the request in its queue; reads only, 40-250 us."""
        ...

    def predict(self, price: Price, confidence: float, now: Seconds) -> Prediction:
        """Add to a price how far off it may be, and what it rests on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The workers that could serve one request, and what is known of them without a replay.

    Arrays have shape (workers,). cached: prompt tokens credited now. own_floors: seconds that the
    request's own prefill takes at least. wait_floors: seconds of prefill that are surely ahead of
    it. measured: False where the curve is nobody's measurement. idle_since: when each was asked
    last, infinite while it works. all_ready: True where that is known without asking each. home:
    where its session lives. returns: when callers refused by this pool come back. looks: what may
    be spent on asking who is passed over.
    """

    workers: Sequence[Candidate]
    cached: Ints
    own_floors: Floats
    wait_floors: Floats
    measured: Bools
    idle_since: Floats
    all_ready: bool = False
    home: WorkerId | None = None
    returns: Returns = field(default_factory=Returns)
    looks: Looks = field(default_factory=Looks)

    def ready(self) -> "Candidates":
        """Keep only the workers that are ready."""
        if self.all_ready:
            return self
        return self.at(np.flatnonzero([worker.ready for worker in self.workers]))

    def at(self, places: Ints | None) -> "Candidates":
        """Keep only the workers at these places; all where None."""
        if places is None:
            return self
        return Candidates(
            workers=[self.workers[place] for place in places.tolist()],
            cached=self.cached[places],
            own_floors=self.own_floors[places],
            wait_floors=self.wait_floors[places],
            measured=self.measured[places],
            idle_since=self.idle_since[places],
            all_ready=self.all_ready,
            home=self.home,
            returns=self.returns,
            looks=self.looks,
        )


class Soundings:
    """The predictions of one decision, each made at most once: routing and admission share them."""

    def __init__(
        self, request: Request, candidates: Candidates, confidence: float, now: Seconds
    ) -> None:
        self.request = request
        self.candidates = candidates
        self.now = now
        self.floors: Floats = candidates.own_floors + candidates.wait_floors
        self._confidence = confidence
        self._made: dict[int, Prediction] = {}
        self._by_floor: Ints | None = None

    def __len__(self) -> int:
        return len(self._made)

    def __contains__(self, index: int) -> bool:
        return index in self._made

    def sound(self, index: int) -> Prediction:
        """Predict the request on one worker."""
        if index not in self._made:
            worker = self.candidates.workers[index]
            price = worker.price(self.request, self.now)
            self._made[index] = worker.predict(price, self._confidence, self.now)
        return self._made[index]

    def by_ttft(self) -> list[int]:
        """List the workers sounded so far, cheapest first."""
        return sorted(self._made, key=lambda index: self._made[index].price.ttft)

    def by_floor(self) -> Ints:
        """List all candidates from the least floor of their TTFT; sorted once."""
        if self._by_floor is None:
            self._by_floor = self.floors.argsort()
        return self._by_floor

    def predictions(self) -> tuple[Prediction, ...]:
        """Give what was predicted so far, cheapest first."""
        return tuple(self._made[index] for index in self.by_ttft())

    def survey(self) -> Survey:
        """Say what is known of all without a replay; of one or more candidates."""
        told, cached = self.candidates, self.candidates.cached
        order = self.by_floor()[:MOST_TOLD]
        most = int(cached.argmax())
        return Survey(
            workers=tuple([told.workers[place].worker for place in order.tolist()]),
            cached=cached[order].tolist(),
            own_floors=told.own_floors[order].tolist(),
            wait_floors=told.wait_floors[order].tolist(),
            measured=told.measured[order].tolist(),
            ready=len(told.workers),
            held=int(cached[most]),
            holder=told.workers[most].worker,
            home=told.home,
        )

    def fallbacks(self, chosen: int, most: int = 3) -> tuple[str, ...]:
        """Endpoints to try after the chosen one: by price, then by floor where none was made."""
        by_floor = self.by_floor()[: most + 1 + len(self._made)].tolist()
        order = dict.fromkeys([chosen, *self.by_ttft(), *by_floor])
        workers = self.candidates.workers
        endpoints = dict.fromkeys(workers[index].endpoint for index in order)
        return tuple(endpoints)[1 : most + 1]
