"""Pickers without prediction, to compare with and to test the virtual fleet by."""

from collections import Counter

from leadsman.prediction import Admitted, Decision, Reason, Refused
from leadsman.records import Ended, Record, WorkerSeen
from leadsman.request import Request
from leadsman.units import Seconds, Tokens, WorkerId

ANSWER: Tokens = 4096
"""Room for an answer that a worker must have beside the prompt."""


class LeastLoaded:
    """Sends each request to the ready worker with the fewest in flight; admits all."""

    def __init__(self) -> None:
        self.in_flight: Counter[WorkerId] = Counter()
        self._seen: dict[WorkerId, WorkerSeen] = {}

    def apply(self, record: Record, now: Seconds) -> None:
        """Take in a record of fleet state."""
        del now
        if isinstance(record, WorkerSeen):
            self._seen[record.worker] = record
        elif isinstance(record, Ended):
            self.in_flight[record.worker] -= 1

    def decide(self, request: Request, now: Seconds) -> Decision:
        """Take the least loaded worker whose context holds the prompt and an answer."""
        del now
        fitting = [
            seen
            for seen in self._seen.values()
            if seen.ready and request.prompt_tokens + ANSWER <= seen.settings.max_model_len
        ]
        if not fitting:
            return Refused(
                request=request.id,
                reason=Reason.NO_ENDPOINT,
                status=503,
                retry_after=5.0,
                should_retry=True,
            )
        chosen = min(fitting, key=lambda seen: (self.in_flight[seen.worker], seen.worker))
        self.in_flight[chosen.worker] += 1
        return Admitted(
            request=request.id,
            worker=chosen.worker,
            endpoint=chosen.endpoint,
            prediction=None,
            because="least_loaded",
        )

    def wants_witness(self, worker: WorkerId) -> bool:
        """Read no stream beyond its first chunk."""
        del worker
        return False
