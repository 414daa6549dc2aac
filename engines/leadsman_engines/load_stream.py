"""Follows what one SGLang scheduler pushes of its load, as load samples.

Load is a gauge: a message that is lost or cannot be read is superseded by the next, at the latest a
second later, and nothing is asked for again. Frames are a topic, a number that nobody needs, and an
array in MessagePack whose later fields are newer than some servers.

Source: SGLang 0.5.23 srt/managers/scheduler_components/load_publisher.py.
"""

from collections import Counter
from collections.abc import Callable

import msgspec
from leadsman.records import LoadSample
from leadsman.units import Seconds, WorkerId

from leadsman_engines.zmtp import subscription
from leadsman_engines.zmtp_link import Frames, Link


class _LoadStat(msgspec.Struct, array_like=True, tag="LoadStat"):
    running: int
    waiting: int
    tokens: int
    capacity: int


_stat = msgspec.msgpack.Decoder(_LoadStat)


def read_load(payload: bytes, worker: WorkerId, at: Seconds) -> LoadSample:
    """Read one message that came at `at`. msgspec.DecodeError where it is none."""
    stat = _stat.decode(payload)
    return LoadSample(
        worker=worker,
        at=at,
        running=stat.running,
        waiting=stat.waiting,
        kv_usage=stat.tokens / stat.capacity if stat.capacity else None,
    )


class LoadStream:
    """One rank's pushed load. counts: what could not be read."""

    def __init__(
        self,
        worker: WorkerId,
        source: tuple[str, str],
        emit: Callable[[LoadSample], None],
        now: Callable[[], Seconds],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._worker = worker
        self._endpoint, self._topic = source
        self._emit = emit
        self._now = now

    async def run(self) -> None:
        """Follow the source until cancelled."""
        await Link(self._endpoint, "SUB", subscription(self._topic), self._take).run()

    def _take(self, frames: Frames) -> None:
        try:
            self._emit(read_load(frames[-1], self._worker, self._now()))
        except msgspec.DecodeError:
            self.counts["bad_load"] += 1
