"""Predictions beside what became of them, kept off the request path.

The request path appends to a bounded queue (a full one drops, and counts the drop); a thread of
its own writes `decisions.jsonl` and `outcomes.jsonl` a few times a second, and lets the event
loop run after every few lines. Neither file holds a word of a prompt.

A grant that is over is `Served`: the predicted time to first token beside the real one, and
the credited cache beside the reused one. Times are seconds on the picker's own clock.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeAlias

import msgspec
from leadsman.prediction import Admitted, Decision, Refused
from leadsman.records import Outcome
from leadsman.request import Request
from leadsman.units import RequestId, Seconds, Tokens, WorkerId

from leadsman_extproc.grants import Grant
from leadsman_extproc.metrics import Counts

FLUSH_EVERY: Final[Seconds] = 0.25
CAPACITY: Final = 50_000
BATCH: Final = 16
"""Lines written before the event loop may go on: 0.3 ms. Every hand-over costs some 20 us."""
Row: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One granted request: what was predicted, and what it really was; None is not known.

    ttft_bound: what the real time was not to exceed, at the budget's confidence.
    """

    request: RequestId
    worker: WorkerId
    model: str
    prompt_tokens: Tokens
    sent_at: Seconds
    ended_at: Seconds
    outcome: Outcome
    because: str
    curve: str | None
    trust: str | None
    max_queue_wait: Seconds | None
    predicted_ttft: Seconds | None
    ttft_bound: Seconds | None
    predicted_queue_wait: Seconds | None
    ttft: Seconds | None
    predicted_cached: Tokens | None
    cached_tokens: Tokens | None
    completion_tokens: Tokens | None
    engine_said: str | None


def served(grant: Grant) -> Served:
    """Put a grant that is over beside its prediction; one that was moved has none any more."""
    request, admitted, prediction = grant.request, grant.admitted, grant.admitted.prediction
    stayed = prediction is not None and grant.worker == admitted.worker
    price = prediction.price if prediction is not None and stayed else None
    assert grant.outcome is not None
    assert grant.ended_at is not None
    return Served(
        request=request.id,
        worker=grant.worker,
        model=request.model,
        prompt_tokens=request.prompt_tokens,
        sent_at=grant.sent_at,
        ended_at=grant.ended_at,
        outcome=grant.outcome,
        because=admitted.because,
        curve=prediction.curve if prediction is not None and stayed else None,
        trust=prediction.trust if prediction is not None and stayed else None,
        max_queue_wait=request.max_queue_wait,
        predicted_ttft=price.ttft if price else None,
        ttft_bound=prediction.ttft_bound if prediction is not None and stayed else None,
        predicted_queue_wait=price.queue_wait if price else None,
        ttft=grant.ttft,
        predicted_cached=price.cached_tokens if price else None,
        cached_tokens=grant.usage.cached_tokens,
        completion_tokens=grant.usage.completion_tokens,
        engine_said=grant.engine_said,
    )


@dataclass(frozen=True, slots=True)
class _Decided:
    request: Request
    decision: Decision
    at: Seconds

    def row(self) -> Row:
        request, decision = self.request, self.decision
        return {
            "request": request.id,
            "at": self.at,
            "kind": "admitted" if isinstance(decision, Admitted) else "refused",
            "model": request.model,
            "prompt_tokens": request.prompt_tokens,
            "tokens_are_exact": request.tokens_are_exact,
            "blocks": {str(size): len(keys) for size, keys in request.keys.items()},
            "max_tokens": request.max_tokens,
            "priority": request.priority,
            "tenant": request.tenant,
            "session": request.session,
            "objective": request.objective,
            "waited": request.waited,
            "max_queue_wait": request.max_queue_wait,
            "ttft_objective": request.ttft_objective,
            "decision": decision,
        }


@dataclass(slots=True)
class Outcomes:
    """Counts and grades every grant that ends; writes files where a folder is given.

    Use as a context manager: leaving writes what is left. `served` and `refusals` stay empty
    unless they are to be kept.
    """

    counts: Counts
    folder: Path | None = None
    keeps_served: bool = False
    served: list[Served] = field(default_factory=list)
    refusals: list[Refused] = field(default_factory=list)
    _decided: deque[_Decided] = field(default_factory=deque)
    _ended: deque[Grant] = field(default_factory=deque)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._thread = threading.Thread(target=self._write_for_ever, args=(self.folder,))
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def decided(self, request: Request, decision: Decision, now: Seconds) -> None:
        """Keep a decision with all its inputs."""
        if self.keeps_served and isinstance(decision, Refused):
            self.refusals.append(decision)
        if self._has_room(self._decided):
            self._decided.append(_Decided(request, decision, now))

    def ended(self, grant: Grant) -> None:
        """Keep how a granted request ended, and count how good its prediction was."""
        assert grant.outcome is not None
        self.counts.outcomes[grant.outcome] += 1
        prediction = grant.admitted.prediction
        if prediction is not None and grant.ttft is not None and grant.worker == prediction.worker:
            self.counts.grade(prediction.price.ttft, grant.ttft)
        if self.keeps_served:
            self.served.append(served(grant))
        if self._has_room(self._ended):
            self._ended.append(grant)

    def _has_room(self, waiting: deque[_Decided] | deque[Grant]) -> bool:
        if self.folder is None:
            return False
        if len(waiting) < CAPACITY:
            return True
        self.counts.journal_dropped += 1
        return False

    def _write_for_ever(self, folder: Path) -> None:
        encode = msgspec.json.Encoder().encode
        with (
            (folder / "decisions.jsonl").open("ab") as decisions,
            (folder / "outcomes.jsonl").open("ab") as outcomes,
        ):
            last_round = False
            while not last_round:
                last_round = self._stop.wait(FLUSH_EVERY)
                while self._decided or self._ended:
                    for _ in range(min(BATCH, len(self._decided))):
                        decisions.write(encode(self._decided.popleft().row()) + b"\n")
                    for _ in range(min(BATCH, len(self._ended))):
                        outcomes.write(encode(served(self._ended.popleft())) + b"\n")
                    time.sleep(0)
                decisions.flush()
                outcomes.flush()
