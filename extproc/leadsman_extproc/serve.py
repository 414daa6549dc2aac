"""The picker put together: fleet records in, requests decided, what is seen told to all.

Three directions of records. What comes by the fleet stream goes into the fleet and the table of
workers (`take`). What a decision reserves is in the fleet already, and is only reported to the
other replicas. What is seen of responses goes both ways: into the fleet here, and to the others.
"""

import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from leadsman.records import Record
from leadsman.units import Seconds

from leadsman_extproc.grants import Grant, Grants
from leadsman_extproc.metrics import Counts
from leadsman_extproc.outcomes import Outcomes
from leadsman_extproc.page import Recent
from leadsman_extproc.picking import Picking
from leadsman_extproc.ports import BudgetFor, Keeps, Picker, Reads, Traces
from leadsman_extproc.rows import Hides
from leadsman_extproc.server import Server, serving
from leadsman_extproc.settings import Settings
from leadsman_extproc.watch import Watching
from leadsman_extproc.workers import Workers


@dataclass(slots=True, kw_only=True)
class Service:
    """One picker. Give `take` every record of the fleet stream; `run` serves until left.

    report: tells a record to the other replicas; must not block.
    is_abreast: whether all was taken that was said before this picker came; no readiness before.
    secret: the deployment's; keys the hashes of names in records. traces: of sampled requests.
    """

    fleet: Picker
    reads: Reads
    budget_for: BudgetFor
    report: Callable[[Record], None]
    is_abreast: Callable[[], bool] = lambda: True
    settings: Settings = field(default_factory=Settings)
    clock: Callable[[], Seconds] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)
    secret: bytes = b""
    traces: Traces | None = None
    counts: Counts = field(default_factory=Counts)
    workers: Workers = field(default_factory=Workers)
    grants: Grants = field(init=False)
    picking: Picking | None = None
    outcomes: Outcomes = field(init=False)
    keeps: Keeps = field(init=False)

    def __post_init__(self) -> None:
        self.outcomes = Outcomes(
            counts=self.counts,
            folder=self.settings.journal,
            recording=self.settings.recording,
            key=self.secret,
            signals=self.fleet.signals,
        )
        self.keeps = self.outcomes
        if self.settings.page is not None:
            hides = Hides(names=self.settings.recording.names, key=self.secret)
            self.keeps = Recent(beside=self.outcomes, hides=hides)
        self.grants = Grants(emit=self._tell, on_end=self._end)

    def take(self, record: Record) -> None:
        """Take a record of the fleet stream."""
        self.workers.apply(record)
        self._apply(record)

    def _apply(self, record: Record) -> None:
        self.fleet.apply(record, self.clock())
        if self.picking is not None:
            self.picking.waiting.stir()

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Server]:
        """Serve until left; see `server.serving`."""
        self.picking = picking = Picking(
            reads=self.reads,
            picker=self.fleet,
            budget_for=self.budget_for,
            keeps=self.keeps,
            report=self.report,
            grants=self.grants,
            workers=self.workers,
            settings=self.settings,
            counts=self.counts,
            clock=self.clock,
            rng=self.rng,
            traces=self.traces,
        )
        watching = Watching(
            grants=self.grants, workers=self.workers, wants_witness=self.fleet.wants_witness
        )
        with self.outcomes:
            async with serving(picking, watching, self._is_ready) as server:
                yield server

    def _is_ready(self) -> bool:
        return self.workers.any_ready() and self.is_abreast()

    def _tell(self, record: Record) -> None:
        self._apply(record)
        self.report(record)

    def _end(self, grant: Grant) -> None:
        self.keeps.ended(grant)
        if self.traces is not None:
            self.traces.ended(grant)
        request, prompt_tokens = grant.request, grant.usage.prompt_tokens
        self.reads.learn(grant)
        if request.tokens_are_exact and prompt_tokens and prompt_tokens != request.prompt_tokens:
            self.reads.doubt(request.model)
