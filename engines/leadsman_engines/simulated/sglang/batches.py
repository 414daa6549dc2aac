"""Batches: who runs, who computes a prompt, and what a step of them is.

Source: SGLang 0.5.23 srt/managers/schedule_batch.py, ScheduleBatch.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from leadsman_engines.simulated.sglang.requests import Live


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that are together. is_full: nobody is tried until somebody leaves.

    chunked: whose prompt goes on after this pass. decoding: who rides along in a mixed one.
    """

    reqs: list[Live] = field(default_factory=list)
    is_full: bool = False
    mode: Literal["prefill", "decode"] = "decode"
    chunked: Live | None = None
    decoding: tuple[Live, ...] = ()

    def filter(self, without: Collection[Live] = ()) -> bool:
        """Drop who has ended, and those of `without`; says whether anybody was."""
        kept = [live for live in self.reqs if not live.finished and live not in without]
        is_less = len(kept) < len(self.reqs)
        self.reqs = kept
        return is_less


@dataclass(slots=True, eq=False)
class Launched:
    """A batch as it was given to the device: work and, in order, the requests of its results.

    chunks: (tokens, those before them) of each prompt's part. contexts: of each that decodes.
    loaded: pages that came from the host.
    """

    reqs: list[Live]
    mode: Literal["prefill", "decode"]
    decoding: tuple[Live, ...]
    chunks: list[tuple[int, int]]
    contexts: list[int]
    loaded: int = 0
    ends_at: float = 0.0
