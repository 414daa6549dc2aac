"""KvDrain: follows one engine's KV events where they are polled instead of published.

TensorRT-LLM keeps its events in a bounded buffer, and whoever asks takes them out: there must be
one consumer, and what overflowed is gone, told only by a gap in the events' numbers. So each event
is one batch of `kv_sequence`, without a replay: a gap makes the view suspect, a number that comes
again is a new engine. Says what `KvStream` says, to the same listener.

An engine that does not answer may have restarted meanwhile: the view is suspect until its numbers
go on where they were.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, assert_never

import aiohttp
import msgspec
from leadsman.records import KvEvent, KvEvents, TrustChanged
from leadsman.units import Seconds, Tokens

from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.kv_follower import KvFollower, KvSource
from leadsman_engines.kv_sequence import Action, Apply, AskReplay, Believe, Forget
from leadsman_engines.trtllm import decode_event, engine_events, numbered

EVERY: Final[Seconds] = 0.1
_NO_ANSWER: Final = (aiohttp.ClientError, TimeoutError, OSError)


class KvDrain(KvFollower):
    """One source's events as records. `counts`: what could not be used, by reason.

    source: its `events` is the URL of the page. block_size: tokens of a full block.
    """

    def __init__(
        self,
        source: KvSource,
        blocks: EngineBlocks,
        emit: Callable[[KvEvents | TrustChanged], None],
        now: Callable[[], Seconds],
        *,
        block_size: Tokens,
    ) -> None:
        super().__init__(replace(source, replay=None), blocks, emit, now)
        self._block_size = block_size
        self._window: Tokens = 0
        self._last = 0

    async def run(self, http: aiohttp.ClientSession, every: Seconds = EVERY) -> None:
        """Drain the source until cancelled."""
        self._act(self._sequence.connected(), [])
        is_away = False
        while True:
            try:
                body = await self._drain(http)
            except _NO_ANSWER:
                if not is_away:
                    self._act(self._sequence.connected(), [])
                is_away = True
            else:
                is_away = False
                self.take(body)
            await asyncio.sleep(every)

    async def _drain(self, http: aiohttp.ClientSession) -> bytes:
        """Take the events out; older engines do it by GET."""
        async with http.post(self._source.events) as response:
            if response.status != 405:
                response.raise_for_status()
                return await response.read()
        async with http.get(self._source.events) as response:
            response.raise_for_status()
            return await response.read()

    def take(self, body: bytes) -> None:
        """Take one answer."""
        try:
            drained = numbered(body, self._source.worker)
        except EngineProtocolError as error:
            self.counts["bad_batch"] += 1
            self._act(self._sequence.lost(error.problem), [])
            return
        events: list[KvEvent] = []
        for number, payload in drained:
            self._act(self._sequence.live(number, payload), events)
        if drained:
            self._say(self._last, events)

    def _act(self, actions: Iterable[Action], events: list[KvEvent]) -> None:
        """Do what is to be done; what it means for blocks is added to `events`."""
        for action in actions:
            match action:
                case Apply():
                    self._last = action.sequence
                    events += self._resolve(action.payload)
                case Forget():
                    events.clear()
                    self._say(0, [self._blocks.clear()])
                case Believe():
                    if events:
                        self._say(self._last, events)
                        events.clear()
                    self._believe(action.trust, action.reason)
                case AskReplay():
                    raise AssertionError("nobody can ask a drain for what it gave away")
                case _:
                    assert_never(action)

    def _resolve(self, payload: bytes) -> tuple[KvEvent, ...]:
        try:
            event = decode_event(payload)
        except msgspec.DecodeError:
            self.counts["bad_event"] += 1
            return ()
        if event.attention_dp_rank:
            self.counts["other_rank"] += 1
            return ()
        window = event.window_size or 0
        self._window = max(self._window, window)
        if window < self._window:
            self.counts["other_window"] += 1
            return ()
        return self._blocks.resolve(engine_events(event, self._block_size))
