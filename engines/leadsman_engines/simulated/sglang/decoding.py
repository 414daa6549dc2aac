"""Who decodes in an SGLang scheduler, and who is sent back where memory is lacking.

What is kept for answers is a ratio of their bounds: it falls with each step of decoding, and is set
anew when those with the shortest answers have to go back to the queue.

Source: SGLang 0.5.23 srt/managers/scheduler.py, update_running_batch; schedule_batch.py,
retract_decode; scheduler_components/new_token_ratio_tracker.py.
"""

from collections import deque

from leadsman_engines.simulated.sglang.batches import Batch, Launched
from leadsman_engines.simulated.sglang.cache import KvCache
from leadsman_engines.simulated.sglang.requests import Live
from leadsman_engines.simulated.sglang.settings import SglangSettings

FIRST_RATIO, LEAST_SHARE, DECAY_STEPS, RETRACT_STEPS = 0.7, 0.14, 600, 20


class Decoding:
    """The queue, the batch that runs and the cache of one rank.

    ratio: the share of their bounds that answers are taken to need. rows: places for requests.
    retracted: who was sent back in this pass.
    """

    def __init__(self, settings: SglangSettings) -> None:
        self.settings = settings
        self.cache = KvCache(settings)
        self.waiting: list[Live] = []
        self.batch = Batch()
        self.launched: deque[Launched] = deque()
        self.retracted: list[Live] = []
        self.retractions = 0
        self.rows = settings.max_running_requests
        self.first_ratio = min(FIRST_RATIO * settings.schedule_conservativeness, 1.0)
        self.ratio = self.first_ratio
        self._entered = 0

    def add(self, live: Live) -> None:
        """Queue a request, or one that was sent back."""
        self.waiting.append(live)
        self._entered += 1
        live.entered = self._entered

    def _release(self, live: Live, *, publish: bool) -> None:
        self.cache.release(live, publish=publish)
        live.has_row = False
        self.rows += 1

    def _send_back(self, live: Live, others: int) -> None:
        """Take all memory of one who decodes; some more is made free at once for the others."""
        self._release(live, publish=False)
        self.cache.make_room(others * RETRACT_STEPS)
        live.retracted, live.middle = True, 0
        self.retractions += 1

    def _finishing(self) -> set[Live]:
        """List those who reach their limit with the result that is still to be processed."""
        if self.settings.disable_overlap_schedule or not self.launched:
            return set()
        return {live for live in self.launched[-1].reqs if live.outputs + 1 >= live.limit}

    def _grow(self, rows: list[Live]) -> None:
        self.cache.grow(rows)
        for live in rows:
            live.filled, live.end = live.tokens, live.committed

    def _decode(self) -> Batch | None:
        batch, before = self.batch, len(self.batch.reqs)
        was_finishing = batch.filter(self._finishing())
        if not batch.reqs:
            batch.is_full = False
            return None
        if self.cache.fits_decode(batch.reqs):
            decay = self.first_ratio * (1 - LEAST_SHARE) / DECAY_STEPS
            self.ratio = max(self.ratio - decay, self.first_ratio * LEAST_SHARE)
        elif was_finishing:
            batch.is_full = False
            return None
        else:
            self._retract(batch)
        if len(batch.reqs) < before:
            batch.is_full = False
        if not batch.reqs:
            return None
        batch.mode = "decode"
        self.cache.grow(batch.reqs)
        return batch

    def _retract(self, batch: Batch) -> None:
        kept = sorted(batch.reqs, key=lambda live: (live.outputs, -live.prompt), reverse=True)
        gone: list[Live] = []
        while len(kept) > 1 and (not gone or not self.cache.fits_decode(kept)):
            gone.append(kept.pop())
            self._send_back(gone[-1], len(kept))
        assert self.cache.fits_decode(kept), "one request outgrows the whole pool"
        batch.reqs = kept
        made = sum(live.outputs for live in kept) + RETRACT_STEPS * len(kept)
        self.ratio = min(1.0, made / (sum(live.limit for live in kept) + 1))
        self.retracted += gone
        for live in gone:
            self.add(live)
