"""One recorded decision, as it was: read from its row, and decided again by what stands in it.

The worker of a record knows what was predicted of it then; its price is its floor too. Of one that
was not asked only floors are known, and that routing took it for no better than the best of those
that were; that is given as its price, so whoever decides for it has decided on less than a replay
would have said, and `guessed` says so. At another confidence than the recorded one a bound
is not known: it is what the worker's recorded errors before that moment give (`Residuals`), which
is how it was made.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from leadsman.candidates import Candidates
from leadsman.prediction import Prediction, Price, Provenance
from leadsman.records import Trust
from leadsman.request import Request
from leadsman.residuals import Residuals
from leadsman.steptime import StepWeights
from leadsman.units import Seconds, Tokens, WorkerId
from leadsman_extproc.columns import DECISIONS
from leadsman_extproc.decided import Row, Survey, Told

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WORSE: Final[Seconds] = 1e-6
"""What keeps who was not asked behind the best of those who were."""

NOT_READ: Final = {"blocks", "signals", "allowed_queue_wait", "allowed_ttft"}
COLUMNS: Final = tuple(name for name in DECISIONS if name not in NOT_READ)


@dataclass(slots=True, kw_only=True)
class KnownWorker:
    """A candidate of which all that is known was recorded; `Candidate` of the core.

    told: its prediction; None where it was not asked. residuals: of its errors before that moment.
    guessed: whether it was asked for what was not recorded.
    """

    worker: WorkerId
    floors: tuple[Seconds, Seconds]
    cached: Tokens
    is_measured: bool
    told: Prediction | None
    residuals: "WorkerErrors"
    guessed: bool = False

    @property
    def endpoint(self) -> str:
        """Where its requests go, as far as its name says."""
        return self.worker.partition("#")[0]

    @property
    def ready(self) -> bool:
        """Who was no candidate was not recorded."""
        return True

    @property
    def weights(self) -> StepWeights:
        """Nobody recorded them."""
        return StepWeights(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def read(self, signal: str, now: Seconds) -> None:
        """No signal was recorded."""

    def price(self, request: Request, now: Seconds) -> Price:  # noqa: ARG002  # known already
        """Give the recorded price, else the floors as one."""
        if self.told is not None:
            return self.told.price
        self.guessed = True
        own, wait = self.floors
        return Price(
            worker=self.worker,
            queue_wait=wait,
            own_prefill=own,
            cached_tokens=self.cached,
            queued_tokens=0,
            queued_requests=0,
        )

    def predict(self, price: Price, confidence: float, now: Seconds) -> Prediction:  # noqa: ARG002
        """Give the recorded prediction where it is of this confidence."""
        told = self.told
        if told is not None and abs(told.confidence - confidence) < 1e-9:
            return told
        curve: Provenance = "own" if self.is_measured else "unmeasured"
        return Prediction(
            price=price,
            confidence=confidence,
            queue_wait_bound=self.residuals.waits.bound(price.queue_wait, confidence),
            ttft_bound=self.residuals.ttfts.bound(price.ttft, confidence),
            curve=curve if told is None else told.curve,
            trust=Trust.BLIND if told is None else told.trust,
            trust_reason="" if told is None else told.trust_reason,
            state_age=None if told is None else told.state_age,
        )


@dataclass(slots=True)
class WorkerErrors:
    """The errors of one worker's predictions so far."""

    waits: Residuals = field(default_factory=Residuals)
    ttfts: Residuals = field(default_factory=Residuals)


def candidates_of(row: Row, errors: Mapping[WorkerId, WorkerErrors]) -> Candidates:
    """Give the candidates as they were then: those that were surveyed, and all that were asked."""
    told = {one.price.worker: one for one in row.decision.candidates}
    survey = row.decision.survey
    names = list(dict.fromkeys([*(survey.workers if survey else ()), *told]))
    best = min((one.price.ttft for one in row.decision.candidates), default=0.0)
    known = [_known(WorkerId(name), told.get(WorkerId(name)), survey, best) for name in names]
    for one in known:
        one.residuals = errors.get(one.worker) or WorkerErrors()
    home = survey.home if survey is not None else None
    return Candidates(
        workers=known,
        cached=np.array([one.cached for one in known], dtype=np.int64),
        own_floors=np.array([one.floors[0] for one in known]),
        wait_floors=np.array([one.floors[1] for one in known]),
        measured=np.array([one.is_measured for one in known], dtype=np.bool_),
        idle_since=np.array([_looked_at(row, one) for one in known]),
        all_ready=True,
        home=None if home is None else WorkerId(home),
    )


def _looked_at(row: Row, one: KnownWorker) -> Seconds:
    """Say since when a worker idles, as far as it mattered: one that was looked at, for ever."""
    return -math.inf if row.because == "look" and one.worker == row.worker else math.inf


def _known(
    worker: WorkerId, told: Prediction | None, survey: Survey | None, best: Seconds
) -> KnownWorker:
    if survey is not None and worker in survey.workers:
        place = survey.workers.index(worker)
        wait = survey.wait_floors[place]
        floors = max(survey.own_floors[place], best + WORSE - wait), wait
        cached, is_measured = survey.cached[place], survey.measured[place]
    else:
        assert told is not None, "who was not surveyed was asked"
        cached, is_measured = told.price.cached_tokens, told.curve != "unmeasured"
    if told is not None:
        floors = told.price.own_prefill, told.price.queue_wait
    return KnownWorker(
        worker=worker,
        floors=floors,
        cached=cached,
        is_measured=is_measured,
        told=told,
        residuals=WorkerErrors(),
    )


def rows(database: "DuckDBPyConnection", where: str, told: Mapping[str, Any]) -> "Sequence[Row]":
    """Read the decisions of which `where` holds, in the order of time."""
    names = ", ".join(f'"{name}"' for name in COLUMNS)
    query = f"SELECT {names} FROM decisions WHERE {where} ORDER BY time"  # noqa: S608
    found = database.execute(query, dict(told)).fetchall()
    return [row_of(dict(zip(COLUMNS, values, strict=True))) for values in found]


def row_of(values: Mapping[str, Any]) -> Row:
    """Read one row: its decision is JSON."""
    decision = msgspec.json.decode(values["decision"] or "{}", type=Told)
    return msgspec.convert({**values, "decision": decision}, Row)
