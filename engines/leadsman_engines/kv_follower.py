"""KvFollower: what a follower of one engine's KV events is given, and how it says what it heard.

Who hears is told records, whether the events were published (`kv_stream`) or drained (`kv_drain`).
An engine that keeps only parts of its prefixes (sliding windows, states) and does not tell which is
followed, but blind: the first cache group alone says too little.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from leadsman.records import KvEvent, KvEvents, Trust, TrustChanged
from leadsman.units import Seconds, WorkerId

from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_sequence import KvSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSource:
    """Where one engine scheduler says its KV events; replay: None where it has no such socket.

    events: an endpoint of ZMQ, or the URL of a page that is drained.
    """

    worker: WorkerId
    events: str
    replay: str | None = None
    topic: str = ""
    replay_timeout: Seconds = 30.0


class KvFollower:
    """One source's events as records. `counts`: what could not be used, by reason."""

    def __init__(
        self,
        source: KvSource,
        blocks: EngineBlocks,
        emit: Callable[[KvEvents | TrustChanged], None],
        now: Callable[[], Seconds],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._source = source
        self._blocks = blocks
        self._emit = emit
        self._now = now
        self._sequence = KvSequence(can_replay=source.replay is not None)

    def _say(
        self, sequence: int, events: Iterable[KvEvent], engine_time: Seconds | None = None
    ) -> None:
        """Emit a batch, an empty one too: it tells that the engine made a step.

        engine_time: None where it tells no times: what it says happened just now.
        """
        now = self._now()
        self._emit(
            KvEvents(
                worker=self._source.worker,
                sequence=sequence,
                engine_time=now if engine_time is None else engine_time,
                received_at=now,
                events=tuple(events),
            )
        )

    def _believe(self, trust: Trust, reason: str) -> None:
        if not self._blocks.is_windowed or trust is Trust.BLIND:
            self._emit(TrustChanged(worker=self._source.worker, trust=trust, reason=reason))
