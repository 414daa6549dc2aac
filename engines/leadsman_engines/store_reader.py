"""StoreReader: what readers of shared stores do alike, whatever the store is.

A store is read as a whole, again and again; said is what changed. One that does not answer changes
nothing: what it holds is still there. The first batch of a reader begins with a `Cleared`: another
one may have told of the store before. Reading never takes more than a tenth of the time.
"""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, TypeAlias

import aiohttp
import numpy as np
from leadsman.records import Cleared, KvEvent, KvEvents, Removed, Stored, StoreSeen, WorkerGone
from leadsman.units import Keys, Seconds

from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.profile import SharedStore

log = logging.getLogger(__name__)

EVERY: Final[Seconds] = 5.0
_SHARE: Final = 0.1
"""Of the time, what reading may take."""

Emit: TypeAlias = Callable[[KvEvents | StoreSeen | WorkerGone], None]


class StoreReader(ABC):
    """One store as records. seen: how it was last read; None before it was."""

    tier: ClassVar[str]

    def __init__(self, store: SharedStore, emit: Emit, now: Callable[[], Seconds]) -> None:
        self.worker = store.worker
        self.seen: StoreSeen | None = None
        self._store = store
        self._emit = emit
        self._now = now
        self._sequence = 0

    @abstractmethod
    async def read(self, http: aiohttp.ClientSession) -> None:
        """Read the whole store once, and say what changed.

        Raises EngineProtocolError, aiohttp.ClientError or TimeoutError; then nothing was said.
        """

    async def run(self, http: aiohttp.ClientSession, every: Seconds = EVERY) -> None:
        """Read the store again and again until cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self.read(http)
            except (EngineProtocolError, aiohttp.ClientError, TimeoutError, OSError) as error:
                self._say_problem(str(error) or repr(error))
            took = time.monotonic() - began
            await asyncio.sleep(max(every, took * (1 / _SHARE - 1)))

    def leave(self) -> None:
        """Say that the store is nobody's any more."""
        self._emit(WorkerGone(worker=self.worker))

    def _say(self, removed: Sequence[Keys], stored: Sequence[Keys]) -> None:
        """Say what left and what came, each a run of keys."""
        events: list[KvEvent] = [] if self._sequence else [Cleared()]
        if removed:
            events.append(Removed(keys=np.concatenate(removed), tier=self.tier))
        if stored:
            events.append(Stored(keys=np.concatenate(stored), tier=self.tier))
        if not events:
            return
        self._sequence += 1
        now = self._now()
        self._emit(
            KvEvents(
                worker=self.worker,
                sequence=self._sequence,
                engine_time=now,
                received_at=now,
                events=tuple(events),
            )
        )

    def _say_problem(self, problem: str) -> None:
        """Say why it cannot be read; what it held is what it was."""
        before = self.seen
        if before is None or before.problem is None:
            log.warning("store not read", extra={"url": self._store.url, "error": problem})
        chunks, unused = (before.chunks, before.unused) if before else (0, {})
        self._say_seen(chunks, unused, problem)

    def _say_seen(self, chunks: int, unused: Mapping[str, int], problem: str | None = None) -> None:
        """Say how a reading went, where it went otherwise than before."""
        seen = StoreSeen(worker=self.worker, chunks=chunks, unused=unused, problem=problem)
        if seen != self.seen:
            self.seen = seen
            self._emit(seen)
