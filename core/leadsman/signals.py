"""What an admission rule may read of a worker, and when it counts as lost.

Two kinds. What the engine says of itself comes with its load reports: a value that it does not
report is absent, and one that was reported too long ago is lost. What the picker knows by itself
(its own grants, its own replay) is always had. None is never read as zero: a threshold on a missing
signal would admit everything and look like a measurement.
"""

import math
from enum import StrEnum
from typing import Final

from leadsman.records import LoadSample
from leadsman.units import Seconds, Tokens

STALE: Final[Seconds] = 10.0
"""Age at which a load report is no longer one: twenty of the collectors' half seconds."""

HALF_LIFE: Final[Seconds] = 30.0
"""In which what was found in caches counts half: some hundred requests of a busy worker."""


class Signal(StrEnum):
    """What is read of one worker.

    waiting, running: requests, by the engine's last report; of those waiting, what was sent there
        since counts too, and who ended since makes room for one of them.
    hit_rate: share of prompt tokens that were found cached lately, by what answers reported.
    in_flight: requests granted and not over. queued_tokens: of prompts, not computed yet.
    slots: max_num_seqs. step_tokens: max_num_batched_tokens. kv_tokens: that its cache can keep;
        None where it keeps none. predicted_wait: by the replay.
    """

    KV_USAGE = "kv_usage"
    WAITING = "waiting"
    RUNNING = "running"
    HIT_RATE = "hit_rate"
    IN_FLIGHT = "in_flight"
    QUEUED_TOKENS = "queued_tokens"
    SLOTS = "slots"
    STEP_TOKENS = "step_tokens"
    KV_TOKENS = "kv_tokens"
    PREDICTED_WAIT = "predicted_wait"


REPORTED: Final = frozenset({Signal.KV_USAGE, Signal.WAITING, Signal.RUNNING, Signal.HIT_RATE})
"""Signals that an engine may keep to itself; all others are always had."""


class HitRate:
    """Share of prompt tokens that were found cached, of requests that ended lately."""

    def __init__(self) -> None:
        self._found = self._asked = 0.0
        self._at: Seconds = 0.0

    def add(self, found: Tokens, prompt: Tokens, at: Seconds) -> None:
        """Take what one answer reported."""
        kept = math.exp2(-max(0.0, at - self._at) / HALF_LIFE)
        self._found = self._found * kept + found
        self._asked = self._asked * kept + prompt
        self._at = max(self._at, at)

    @property
    def share(self) -> float | None:
        """The share; None where nothing was reported yet."""
        return self._found / self._asked if self._asked > 0 else None


def reported(signal: Signal, sample: LoadSample, since: int, now: Seconds) -> float | None:
    """Read a load report; None where it does not tell, or is too old.

    since: by how many more requests are at the engine now than when it reported.
    """
    if now - sample.at > STALE:
        return None
    match signal:
        case Signal.KV_USAGE:
            return sample.kv_usage
        case Signal.WAITING:
            return max(0, sample.waiting + since)
        case Signal.RUNNING:
            return sample.running
        case _:
            return None


def told_by(sample: LoadSample, now: Seconds) -> dict[str, float]:
    """List what a load report says, by the names of signals; nothing where it is too old."""
    asked = (Signal.KV_USAGE, Signal.RUNNING, Signal.WAITING)
    read = {signal.value: reported(signal, sample, 0, now) for signal in asked}
    return {name: value for name, value in read.items() if value is not None}
