"""KvStream: follows one engine's KV events and says what they mean in records.

The question: what this engine scheduler holds, from now until we are told to stop. One link to
what is published as it happens, another for what was missed; what to make of the numbers is
`kv_sequence`, of the bytes `kv_wire`, of the engine's names `blocks`. An engine that serves several
ranks has an endpoint and a stream for each.

A batch that cannot be read makes the view suspect: it may have removed anything. An event of it
that cannot be read is skipped and counted.

Source: vLLM 0.32 distributed/kv_events.py, ZmqEventPublisher.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, assert_never

from leadsman.records import Cleared, KvEvents, Trust, TrustChanged
from leadsman.units import Seconds

from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.kv_follower import KvFollower, KvSource
from leadsman_engines.kv_sequence import Action, Apply, AskReplay, Believe, Forget
from leadsman_engines.kv_wire import decode_batch
from leadsman_engines.zmtp import message, subscription
from leadsman_engines.zmtp_link import Frames, Link

_END: Final = b"\xff" * 8


class KvStream(KvFollower):
    """One source's events as records. `counts`: what could not be used, by reason."""

    def __init__(
        self,
        source: KvSource,
        blocks: EngineBlocks,
        emit: Callable[[KvEvents | TrustChanged], None],
        now: Callable[[], Seconds],
    ) -> None:
        super().__init__(source, blocks, emit, now)
        self.dp_rank: int | None = None
        self._engine_time: Seconds = 0.0
        self._broken: asyncio.Future[None] | None = None
        self._replay: tuple[Link, asyncio.Task[None]] | None = None

    async def run(self) -> None:
        """Follow the source until cancelled; what goes wrong at either link ends it."""
        self._broken = asyncio.get_running_loop().create_future()
        first = subscription(self._source.topic)
        live = Link(self._source.events, "SUB", first, self._take_live, self._note_connection)
        following = asyncio.create_task(live.run())
        following.add_done_callback(self._note_end)
        try:
            await self._broken
        finally:
            live.hang_up()
            following.cancel()
            self._close_replay()

    def _note_end(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None and self._broken is not None and not self._broken.done():
            self._broken.set_exception(problem)

    def _note_connection(self) -> None:
        self._act(self._sequence.connected())

    def _take_replayed(self, frames: Frames) -> None:
        message = self._parse(frames)
        if message is None:
            return
        sequence, payload = message
        if sequence == _END:
            self._act(self._sequence.replay_over())
        else:
            self._act(self._sequence.replayed(int.from_bytes(sequence), payload))

    def _take_live(self, frames: Frames) -> None:
        message = self._parse(frames)
        if message is not None:
            self._act(self._sequence.live(int.from_bytes(message[0]), message[1]))

    def _parse(self, frames: Frames) -> tuple[bytes, bytes] | None:
        """Find number and payload from the right: topics, and empty frames, are there or not."""
        if len(frames) < 2 or len(frames[-2]) != len(_END):
            self.counts["bad_frames"] += 1
            return None
        return frames[-2], frames[-1]

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Apply():
                    self._apply(action)
                case Forget():
                    self._say(0, (self._blocks.clear(),), self._engine_time)
                case AskReplay():
                    self._ask_replay(action.start)
                case Believe():
                    self._believe(action.trust, action.reason)
                case _:
                    assert_never(action)
        if not self._sequence.is_replaying:
            self._close_replay()

    def _apply(self, batch: Apply) -> None:
        try:
            decoded = decode_batch(batch.payload, self._source.worker)
        except EngineProtocolError as error:
            self.counts["bad_batch"] += 1
            self._act(self._sequence.lost(error.problem))
            return
        self.counts["bad_event"] += len(decoded.problems)
        self.dp_rank, self._engine_time = decoded.dp_rank, decoded.engine_time
        was_windowed = self._blocks.is_windowed
        events = self._blocks.resolve(decoded.events)
        if self._blocks.is_windowed and not was_windowed:
            self._believe(Trust.BLIND, "engine keeps only parts of its prefixes")
        self._say(batch.sequence, events, self._engine_time)
        if any(isinstance(event, Cleared) for event in events):
            self._act(self._sequence.cleared())

    def _ask_replay(self, start: int) -> None:
        """Ask on a link of its own, so that no answer to an earlier question comes between."""
        self._close_replay()
        assert self._source.replay is not None
        question = message(b"", start.to_bytes(len(_END)))
        link = Link(self._source.replay, "DEALER", question, self._take_replayed)
        task = asyncio.create_task(self._hear_replay(link))
        task.add_done_callback(self._note_end)
        self._replay = link, task

    async def _hear_replay(self, link: Link) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._source.replay_timeout):
                await link.run()
        self._act(self._sequence.replay_over("no answer in time"))

    def _close_replay(self) -> None:
        if self._replay is not None:
            link, task = self._replay
            self._replay = None
            link.hang_up()
            task.cancel()
