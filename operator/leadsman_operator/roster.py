"""What was said of one endpoint's workers, so that only changes are said."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from leadsman.records import (
    Cleared,
    KvEvents,
    LoadSample,
    Trust,
    TrustChanged,
    WorkerGone,
    WorkerSeen,
)
from leadsman.units import Seconds, WorkerId

from leadsman_operator.endpoint import Publish


class Roster:
    """The workers of one endpoint, as they say they are; told as ready only while it is open.

    told: what another said of them before; said again, by whoever speaks for them now.
    """

    def __init__(
        self,
        publish: Publish,
        clock: Callable[[], Seconds],
        told: Mapping[WorkerId, WorkerSeen] | None = None,
    ) -> None:
        self.told: dict[WorkerId, WorkerSeen] = dict(told or {})
        self.workers = dict(self.told)
        self._taken_over = set(self.told)
        self._is_open = True
        self._loads: dict[WorkerId, LoadSample] = {}
        self._publish = publish
        self._clock = clock
        for seen in self.told.values():
            publish(seen)

    def call(self, present: Mapping[WorkerId, WorkerSeen]) -> None:
        """Say who is there at the start of an engine's life, and who is no more.

        Whoever was there before has lost its cache, unless another followed it so far.
        """
        for worker in self.workers.keys() - present.keys():
            self._forget(worker)
        for worker, seen in present.items():
            was_there = worker in self.workers and worker not in self._taken_over
            self._say(seen)
            if was_there:
                self.clear(worker, "engine started anew")
        self._taken_over.clear()

    def clear(self, worker: WorkerId, reason: str) -> None:
        """Say that nothing is known to be in a worker's cache any more."""
        self.trust(worker, Trust.SUSPECT, reason)
        self.empty(worker)

    def empty(self, worker: WorkerId) -> None:
        """Say that nothing is in a worker's cache any more."""
        self._publish(replace(self.nothing(worker), events=(Cleared(),)))

    def nothing(self, worker: WorkerId) -> KvEvents:
        """Make a batch in which nothing happens."""
        return KvEvents(
            worker=worker, sequence=0, engine_time=0.0, received_at=self._clock(), events=()
        )

    def trust(self, worker: WorkerId, trust: Trust, reason: str) -> None:
        """Say how far a worker's cache view can be believed."""
        self._publish(TrustChanged(worker=worker, trust=trust, reason=reason))

    def load(self, sample: LoadSample) -> None:
        """Say a worker's load, unless it is idle and was so before."""
        before = self._loads.get(sample.worker)
        is_idle = sample.running + sample.waiting == 0
        if is_idle and before is not None and replace(before, at=sample.at) == sample:
            return
        self._loads[sample.worker] = sample
        self._publish(sample)

    def be_ready(self, *, ready: bool) -> None:
        """Say whether the endpoint can take requests."""
        for seen in list(self.workers.values()):
            self._say(replace(seen, ready=ready))

    def open(self, *, is_open: bool) -> None:
        """Say whether new requests may go there, whatever the engine says of itself."""
        if is_open != self._is_open:
            self._is_open = is_open
            for seen in list(self.workers.values()):
                self._say(seen)

    def leave(self) -> None:
        """Say that all of them are gone."""
        for worker in list(self.workers):
            self._forget(worker)

    def _say(self, seen: WorkerSeen) -> None:
        self.workers[seen.worker] = seen
        told = replace(seen, ready=seen.ready and self._is_open)
        if self.told.get(seen.worker) != told:
            self.told[seen.worker] = told
            self._publish(told)

    def _forget(self, worker: WorkerId) -> None:
        del self.workers[worker]
        del self.told[worker]
        self._loads.pop(worker, None)
        self._publish(WorkerGone(worker=worker))
