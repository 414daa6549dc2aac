"""One SGLang scheduler, pass by pass: what runs next, and what its results bring.

Model. Each pass first moves who has computed his prompt to those who run, and drops who has ended.
If then anybody of the queue may be tried, and one fits, the pass computes prompts; if not, all who
run decode. Who is short of memory for that sends back those with the shortest answers, and what is
kept for answers is set anew. With overlap a pass is composed before the one that runs has brought
its results: who will reach his limit by it is left out, and one who stops by himself decodes in
vain.

Source: SGLang 0.5.23 srt/managers/scheduler.py, get_next_batch_to_run, _get_new_batch_prefill_raw,
update_running_batch; schedule_batch.py, retract_decode; batch_result_processor.py.
"""

from leadsman_engines.simulated.sglang.batches import Batch, Launched
from leadsman_engines.simulated.sglang.decoding import Decoding
from leadsman_engines.simulated.sglang.order import QueueOrder
from leadsman_engines.simulated.sglang.prefill import PrefillPass, Result
from leadsman_engines.simulated.sglang.requests import Live
from leadsman_engines.simulated.sglang.settings import SglangSettings
from leadsman_engines.simulated.steps import Processed


class SglangScheduler(Decoding):
    """The queue, the batches and the cache of one rank. Knows no time."""

    def __init__(self, settings: SglangSettings) -> None:
        super().__init__(settings)
        self.chunked: Live | None = None
        self._order = QueueOrder(settings)
        self._last: Batch | None = None
        self._aborted_chunk: Live | None = None

    @property
    def running(self) -> list[Live]:
        """Requests that have a row and are not over, whoever computes or decodes."""
        last = self._last.reqs if self._last is not None else []
        chunked = [self.chunked] if self.chunked is not None else []
        found = dict.fromkeys([*self.batch.reqs, *last, *chunked])
        return [live for live in found if live.has_row and not live.finished]

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, waits, or is to be processed."""
        return not (self.waiting or self.batch.reqs or self.chunked or self.launched or self._last)

    # -- what comes ----------------------------------------------------------------------------

    def abort(self, live: Live) -> None:
        """Take a request back: at once where it waits, with the next pass or result elsewhere."""
        if live in self.waiting:
            self.waiting.remove(live)
            live.finished = "abort"
        elif live is self.chunked:
            self._aborted_chunk = live
        else:
            live.aborted = True

    def idle(self) -> None:
        """Forget, as an engine without work does, what answers have needed."""
        self.ratio = self.first_ratio

    # -- one pass ------------------------------------------------------------------------------

    def schedule(self) -> Launched | None:
        """Compose a pass and launch it; None where there is nothing to run."""
        self.retracted = []
        self._drop_aborted_chunk()
        self.cache.tree.note_written()
        self._merge_last()
        batch = self._new_prefill()
        if batch is None and self.batch.reqs:
            batch = self._decode()
        self._last = batch
        if batch is None:
            return None
        launched = self._launch(batch)
        self.launched.append(launched)
        return launched

    def _drop_aborted_chunk(self) -> None:
        live, self._aborted_chunk = self._aborted_chunk, None
        if live is None:
            return
        if live is not self.chunked:
            live.aborted = True
            return
        live.finished = "abort"
        self._release(live, publish=False)
        self.chunked = None

    def _merge_last(self) -> None:
        running, last, out = self.batch, self._last, set[Live]()
        if self.chunked is not None:
            out.add(self.chunked)
            if self.chunked.end > self.chunked.prefix:
                self._publish(self.chunked)
        if last is not None and last.mode == "prefill":
            if last.chunked is not None:
                out.add(last.chunked)
            if last.filter(out):
                running.is_full = False
            if last.reqs and last is not running:
                if running.reqs:
                    running.reqs = running.reqs + last.reqs
                else:
                    running = last
        if running.filter():
            running.is_full = False
        self.batch = running

    def _publish(self, live: Live) -> None:
        self.cache.publish(live, min(live.end, live.filled))
        live.prefix = live.end

    # -- prompts -------------------------------------------------------------------------------

    def _allocatable(self, rows_held: int = 0) -> int:
        most = self.settings.max_running_requests - len(self.batch.reqs)
        return min(most, self.rows + rows_held)

    def _new_prefill(self) -> Batch | None:
        settings, running = self.settings, self.batch
        if settings.enable_priority_scheduling or not running.reqs:
            running.is_full = False
        if (running.is_full or not self.waiting) and self.chunked is None:
            return None
        is_open = self.chunked is not None or settings.enable_priority_scheduling
        if self._allocatable() <= 0 and not is_open:
            running.is_full = True
            return None
        self._order.sort(self.waiting, self.cache)
        turn = PrefillPass(settings, self.cache, running, self.ratio)
        if self.chunked is not None:
            self.chunked = turn.go_on(self.chunked)
        self._take_in(turn)
        back, self.retracted = turn.preempted, self.retracted + turn.preempted
        if turn.can_run:
            taken = set(turn.can_run)
            self.waiting = [live for live in self.waiting if live not in taken]
        for live in back:
            self.add(live)
        if not turn.can_run:
            return None
        self.chunked = turn.new_chunked or self.chunked
        if self.chunked is not None:
            self.chunked.middle += 1
        return self._computing(turn.can_run)

    def _take_in(self, turn: PrefillPass) -> None:
        running = self.batch
        for live in list(self.waiting):
            if turn.state() is Result.OTHER:
                return
            held = sum(one.has_row for one in turn.can_run)
            if len(turn.can_run) >= self._allocatable(held):
                running.is_full = True
            if running.is_full and not self._preempt(turn, live):
                return
            result = turn.add(live)
            if result is not Result.CONTINUE:
                if result is Result.NO_TOKEN:
                    running.is_full = bool(turn.can_run or running.reqs)
                return

    def _preempt(self, turn: PrefillPass, live: Live) -> bool:
        if not self.settings.enable_priority_scheduling:
            return False
        chosen = set(turn.preempt_for(live))
        going = [one for one in self.batch.reqs if one in chosen]
        for number, one in enumerate(going, start=1):
            turn.note_preempted(one, turn.kept(one))
            self._send_back(one, len(self.batch.reqs) - number)
        self.batch.reqs = [one for one in self.batch.reqs if one not in chosen]
        return bool(chosen)

    def _computing(self, rows: list[Live]) -> Batch:
        for live in rows:
            if not live.has_row:
                live.has_row = True
                self.rows -= 1
            live.retracted = False
        self.cache.extend(rows)
        batch = Batch(reqs=rows, mode="prefill", chunked=self.chunked)
        running = self.batch
        is_mixed = self.settings.enable_mixed_chunk and self.settings.chunked_prefill_size
        if is_mixed and running.reqs:
            if running.filter(self._finishing()):
                running.is_full = False
            if running.reqs and self.cache.fits_decode(running.reqs):
                self._grow(running.reqs)
                batch.decoding = tuple(running.reqs)
                batch.reqs = batch.reqs + running.reqs
                self.batch = Batch(is_full=running.is_full)
        return batch

    # -- what a pass does, and brings ----------------------------------------------------------

    def _launch(self, batch: Batch) -> Launched:
        rides, rows = set(batch.decoding), batch.reqs
        computing = batch.mode == "prefill"
        chunks, contexts, loaded = list[tuple[int, int]](), list[int](), 0
        for live in rows:
            if computing and live not in rides:
                chunks.append((live.end - live.prefix, live.prefix))
                loaded += live.host_found
                live.host_found = 0
            else:
                contexts.append(live.committed)
        return Launched(rows[:], batch.mode, batch.decoding, chunks, contexts, loaded)

    def process(self) -> Processed:
        """Take in the results of the oldest pass launched."""
        done, result = self.launched.popleft(), Processed()
        for live in done.reqs:
            if live.retracted or (live.finished and live.middle <= 0):
                continue
            if live.middle > 0:
                live.middle -= 1
                continue
            live.add_token()
            if not live.aborted:
                self._tell(live, result)
            if live.finished:
                self._release(live, publish=True)
            elif done.mode == "prefill" and live not in done.decoding:
                self._publish(live)
        return result

    def _tell(self, live: Live, result: Processed) -> None:
        result.tokens.append(live.id)
        if live.outputs == 1:
            result.first[live.id] = live.cached or 0
        if live.finished is not None:
            result.finished[live.id] = "stop" if live.finished == "stop" else "length"

    def check(self) -> None:
        """Assert that memory and rows are exactly those of who runs."""
        running = self.running
        self.cache.check(running)
        assert self.rows + len(running) == self.settings.max_running_requests
