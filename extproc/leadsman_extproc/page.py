"""What a picker's live page knows: its last outcomes as points, its last decisions as lines.

A decision is kept as the line that a journal would write of it (`rows`), so that explaining it says
the same as `leadsman explain`, and so that what waits is bytes, which can be bounded; ADR 57.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from leadsman.prediction import Decision, Refused
from leadsman.request import Request
from leadsman.units import Seconds
from leadsman_fleet.page.history import History
from leadsman_fleet.page.shown import Found, Point

from leadsman_extproc.columns import Served, encoder
from leadsman_extproc.decided import Row
from leadsman_extproc.explaining import Came, explained
from leadsman_extproc.grants import Grant
from leadsman_extproc.ports import Keeps
from leadsman_extproc.rows import Hides, Shared, decision_row, served

MOST_BYTES: Final = 32 * 1024 * 1024
"""Of remembered decisions: some 10,000 of a fleet of twenty."""
MOST_FOUND: Final = 20


@dataclass(slots=True)
class _Remembered:
    line: bytes
    at: Seconds
    model: str
    refused: str | None
    came: Came | None = None


@dataclass(slots=True, kw_only=True)
class Recent:
    """The last decisions and outcomes, in bounded memory; `Keeps`. hides: names in them.

    beside: keeps them too; None: nobody does. epoch: says when the picker's clock was at 0.
    """

    beside: Keeps | None = None
    epoch: Callable[[], Seconds] = lambda: time.time() - time.monotonic()
    hides: Hides = field(default_factory=Hides)
    history: History = field(default_factory=History)
    most_bytes: int = MOST_BYTES
    _kept: dict[str, _Remembered] = field(default_factory=dict)
    _bytes: int = 0
    _shared: Shared = field(init=False)
    _encode: Callable[[object], bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._shared = Shared(self.hides)
        self._encode = encoder().encode

    def decided(self, request: Request, decision: Decision, now: Seconds) -> None:
        """Remember a decision, and count it."""
        if self.beside is not None:
            self.beside.decided(request, decision, now)
        epoch = self.epoch()
        line = self._encode(decision_row(request, decision, now, self._shared, epoch=epoch))
        refused = str(decision.reason) if isinstance(decision, Refused) else None
        self.history.decided(epoch + now, refused)
        self._forget(request.id)
        self._kept[request.id] = _Remembered(line, epoch + now, request.model, refused)
        self._bytes += len(line)
        while self._bytes > self.most_bytes:
            self._forget(next(iter(self._kept)))

    def ended(self, grant: Grant) -> None:
        """Remember how a granted request ended, beside its prediction where there is one."""
        if self.beside is not None:
            self.beside.ended(grant)
        row = served(grant, epoch=self.epoch())
        point = point_of(row)
        if point is not None:
            self.history.served(point)
        if (kept := self._kept.get(grant.request.id)) is not None:
            kept.came = Came(
                row.worker,
                row.outcome,
                row.ttft,
                row.cached_tokens,
                row.completion_tokens,
                row.engine_said,
            )

    def explain(self, request: str) -> bytes | None:
        """Give the screen on a decision as JSON; None where it is not remembered."""
        kept = self._kept.get(request)
        if kept is None:
            return None
        return msgspec.json.encode(explained(msgspec.json.decode(kept.line, type=Row), kept.came))

    def find(self, like: str) -> tuple[Found, ...]:
        """Give the latest decisions whose id, model or fate has this in it, the last first."""
        like, found = like.strip().lower(), []
        for request, kept in reversed(self._kept.items()):
            became = kept.refused or (kept.came.worker if kept.came else "in flight")
            if like in f"{request}\n{kept.model}\n{became}".lower():
                found.append(
                    Found(
                        request=request,
                        at=kept.at,
                        model=kept.model,
                        is_refused=kept.refused is not None,
                        became=became,
                    )
                )
                if len(found) == MOST_FOUND:
                    break
        return tuple(found)

    def _forget(self, request: str) -> None:
        gone = self._kept.pop(request, None)
        if gone is not None:
            self._bytes -= len(gone.line)

    def check(self) -> None:
        """Assert that what is kept is counted, and within its bound."""
        assert self._bytes == sum(len(kept.line) for kept in self._kept.values())
        assert self._bytes <= self.most_bytes


def point_of(row: Served) -> Point | None:
    """Make of an outcome what is drawn of it; None where nothing was predicted or came."""
    if row.predicted_ttft is None or row.predicted_queue_wait is None or row.ttft is None:
        return None
    own, size = row.predicted_ttft - row.predicted_queue_wait, row.block_size or 1
    found, credited = row.cached_tokens, row.predicted_cached or 0
    return Point(
        request=row.request,
        at=row.time,
        worker=row.worker,
        predicted=row.predicted_ttft,
        actual=row.ttft,
        bound=row.allowed_ttft,
        predicted_wait=row.predicted_queue_wait,
        wait=max(0.0, row.ttft - own),
        wait_bound=row.allowed_queue_wait,
        matched=None if found is None else found // size == credited // size,
    )
