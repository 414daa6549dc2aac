"""Predictions beside what became of them, kept off the request path.

The request path makes a line of each (`rows`) and puts it where a thread finds it (`pending`),
which is bounded in bytes (what is too much is dropped, and counted); the thread writes what has
come to files (`journal`) a few times a second. Lines, not objects, wait: what is kept alive for a
while costs the garbage collector more than making the line, and a thread that makes lines fights
for the interpreter's lock (together 16 % of the picker's time, measured).

Of ordinary requests a share is kept, chosen by their ids, so that a decision and its outcome are
kept together and all replicas choose alike; each such outcome counts for as many as it stands for.
What people ask about is always kept: refusals, what shadow mode or a probe set aside, predictions
that were off by more than `LARGE_ERROR`, and outcomes on the other side of a bound than predicted.
That a prediction was off is known only at the end; a grant still has its decision then.
"""

import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from leadsman.grade import Cell
from leadsman.prediction import Admitted, Decision
from leadsman.request import Request
from leadsman.units import RequestId, Seconds, WorkerId

from leadsman_extproc.grants import Grant
from leadsman_extproc.journal import KINDS, FullFiles, RecordFile, record_files
from leadsman_extproc.metrics import Counts
from leadsman_extproc.pending import Pending
from leadsman_extproc.rows import UNTOLD, Hides, Shared, allowed, decision_row, served
from leadsman_extproc.settings import Recording

LOG: Final = logging.getLogger(__name__)
FLUSH_EVERY: Final[Seconds] = 0.25
MOST_BYTES: Final = 32 * 1024 * 1024
"""What of each kind may wait to be written: some 10,000 decisions of a fleet of twenty."""
LARGE_ERROR: Final[Seconds] = 1.0


def _untold(_worker: WorkerId, _now: Seconds) -> Mapping[str, float]:
    return UNTOLD


@dataclass(slots=True, kw_only=True)
class Outcomes:
    """Counts and grades every grant that ends; writes files where a folder is given.

    Use as a context manager: leaving writes what is left. key: of the hashes of names.
    signals: what a worker has told last of what policies read. most_waiting: bytes of
    decisions, and of outcomes, that may wait to be written.
    """

    counts: Counts
    folder: Path | None = None
    recording: Recording = field(default_factory=Recording)
    key: bytes = b""
    signals: Callable[[WorkerId, Seconds], Mapping[str, float]] = _untold
    most_waiting: int = MOST_BYTES
    _pending: dict[str, Pending] = field(init=False)
    _shared: Shared = field(init=False)
    _stop: threading.Event = field(default_factory=threading.Event)
    _writer: threading.Thread | None = None
    _failing: set[RecordFile] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._shared = Shared(Hides(names=self.recording.names, key=self.key))
        self._pending = {kind: Pending(self.most_waiting) for kind in KINDS}

    def __enter__(self) -> Self:
        if self.folder is not None:
            self._writer = threading.Thread(target=self._write_for_ever, args=(self.folder,))
            self._writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._writer is not None:
            self._writer.join()

    def decided(self, request: Request, decision: Decision, now: Seconds) -> None:
        """Keep a decision with all its inputs."""
        if self.folder is None:
            return
        is_ordinary = isinstance(decision, Admitted) and decision.refusal is None
        if not is_ordinary or self._is_sampled(request.id):
            about = _about(decision)
            told = UNTOLD if about is None else self.signals(about, now)
            self._keep_decision(request, decision, now, told)

    def ended(self, grant: Grant) -> None:
        """Keep how a granted request ended, and count how good its prediction was."""
        telling = self._count(grant)
        if self.folder is None:
            return
        was_kept = grant.admitted.refusal is not None or self._is_sampled(grant.request.id)
        if telling and not was_kept:
            self._keep_decision(grant.request, grant.admitted, grant.sent_at, UNTOLD)
        if telling or was_kept:
            weight = _stands_for(grant, 1.0 if telling else self.recording.share)
            self._keep("outcomes", served(grant, weight=weight, epoch=_epoch()))

    def _keep_decision(
        self, request: Request, decision: Decision, at: Seconds, signals: Mapping[str, float]
    ) -> None:
        row = decision_row(request, decision, at, self._shared, epoch=_epoch(), signals=signals)
        self._keep("decisions", row)

    def _count(self, grant: Grant) -> bool:
        """Count an end; says whether it is one that is always kept."""
        assert grant.outcome is not None
        self.counts.ended(grant)
        prediction, ttft = grant.admitted.prediction, grant.ttft
        if prediction is None or ttft is None or grant.worker != prediction.worker:
            return False
        self.counts.grade(prediction, ttft, grant.usage.cached_tokens)
        cell = cell_of(grant)
        if cell is not None:
            self.counts.cells[cell] += 1
        is_broken = cell in {Cell.UNDERPREDICTED, Cell.FALSE_ALARM}
        return is_broken or abs(prediction.price.ttft - ttft) > LARGE_ERROR

    def _is_sampled(self, request: RequestId) -> bool:
        share = self.recording.share
        return share >= 1.0 or zlib.crc32(request.encode()) < share * 2**32

    def _keep(self, kind: str, row: object) -> None:
        if not self._pending[kind].put(row):
            self.counts.journal_dropped += 1

    def _write_for_ever(self, folder: Path) -> None:
        recording = self.recording
        with record_files(folder, recording.full_at) as files:
            full = FullFiles(folder, recording.form, recording.most_bytes)
            is_last_round = False
            while not is_last_round:
                is_last_round = self._stop.wait(FLUSH_EVERY)
                for kind, file in files.items():
                    self._write(file, self._pending[kind])
                full.tend()
                self.counts.journal_failed = full.failed
            full.close()
            self.counts.journal_failed = full.failed

    def _write(self, file: RecordFile, pending: Pending) -> None:
        """Write what waits; what a disk has no room for is counted, and the next is tried anew."""
        lines = pending.take()
        try:
            file.write(lines)
            file.flush()
        except OSError as error:
            self.counts.journal_dropped += bytes(lines).count(b"\n")
            if file not in self._failing:
                LOG.error("records not written", extra={"error": str(error)})  # noqa: TRY400
            self._failing.add(file)
        else:
            self._failing.discard(file)
        finally:
            lines.release()


def _about(decision: Decision) -> WorkerId | None:
    """Name the worker that a decision is about; None where it is about none."""
    if isinstance(decision, Admitted):
        return decision.worker
    return decision.candidates[0].worker if decision.candidates else None


def _epoch() -> Seconds:
    """Say when the picker's clock was at 0, in seconds since 1970."""
    return time.time() - time.monotonic()


def cell_of(grant: Grant) -> Cell | None:
    """Say on which side of its bounds a served request was, and was predicted to be.

    None: it has none. A wait is on no wire: it is the real TTFT less the predicted own prefill.
    """
    may, prediction = allowed(grant.request, grant.admitted.budget), grant.admitted.prediction
    if prediction is None or grant.ttft is None or (may.queue_wait is None and may.ttft is None):
        return None
    waited = max(0.0, grant.ttft - prediction.price.own_prefill)
    return Cell.of(
        predicted_in_time=_keeps(prediction.queue_wait_bound, may.queue_wait)
        and _keeps(prediction.ttft_bound, may.ttft),
        was_in_time=_keeps(waited, may.queue_wait) and _keeps(grant.ttft, may.ttft),
    )


def _keeps(seconds: Seconds, allowed_: Seconds | None) -> bool:
    return allowed_ is None or seconds <= allowed_


def _stands_for(grant: Grant, share: float) -> float:
    """Say for how many an outcome stands: a probe for the refusals that were not probed."""
    budget = grant.admitted.budget
    if grant.admitted.because == "probe" and budget is not None and budget.probes:
        return 1.0 / budget.probes
    return 1.0 if grant.admitted.refusal is not None else 1.0 / share
