"""Which workers there are, and which is the least loaded: picking without a prediction.

The prediction needs the body, its tokens, and the whole fleet state. A request that has none of
these (a bodiless GET, an unknown path), or whose decision failed or took too long, still has to
go somewhere sensible: to the ready worker with the fewest requests, ties broken at random. Load
is the larger of what this picker has in flight there and what the engine last said of itself,
so that neither a silent engine nor traffic from elsewhere looks idle.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from leadsman.records import LoadSample, Record, WorkerGone, WorkerSeen
from leadsman.units import WorkerId


@dataclass(slots=True)
class Workers:
    """The workers that the fleet stream has named, with their last load samples."""

    _seen: dict[WorkerId, WorkerSeen] = field(default_factory=dict)
    _said: dict[WorkerId, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._seen)

    def apply(self, record: Record) -> None:
        """Take in a record of the fleet stream; all but three kinds are of no concern here."""
        match record:
            case WorkerSeen():
                self._seen[record.worker] = record
            case LoadSample():
                self._said[record.worker] = record.running + record.waiting
            case WorkerGone():
                self._seen.pop(record.worker, None)
                self._said.pop(record.worker, None)
            case _:
                pass

    def at(self, endpoint: str) -> WorkerSeen | None:
        """Return a worker that serves at this `ip:port`, if one does."""
        return next((seen for seen in self._seen.values() if seen.endpoint == endpoint), None)

    def endpoints(self) -> set[str]:
        """List where workers serve, each once."""
        return {seen.endpoint for seen in self._seen.values()}

    def of(self, worker: WorkerId) -> WorkerSeen | None:
        """Return what was last said of this worker."""
        return self._seen.get(worker)

    def any_ready(self) -> bool:
        """Whether some worker can take a request."""
        return any(seen.ready for seen in self._seen.values())

    def least_loaded(
        self, among: frozenset[str] | None, in_flight: Mapping[WorkerId, int], rng: Random
    ) -> WorkerSeen | None:
        """Pick the ready worker with the least load; None where none is eligible.

        among: the only endpoints that are eligible; None: all.
        """
        ready = [
            seen
            for seen in self._seen.values()
            if seen.ready and (among is None or seen.endpoint in among)
        ]
        if not ready:
            return None
        loads = [max(in_flight.get(s.worker, 0), self._said.get(s.worker, 0)) for s in ready]
        least = min(loads)
        return rng.choice([seen for seen, load in zip(ready, loads, strict=True) if load == least])
