"""KvStream: follows one engine's KV events and says what they mean in records.

The question: what this engine scheduler holds, from now until we are told to stop. One SUB socket
for what happens, a DEALER for what was missed, the SUB's monitor for lost connections, one turn
for all three; what to make of the numbers is `kv_sequence`, of the bytes `kv_wire`, of the
engine's names `blocks`. An engine that serves several ranks has an endpoint and a stream for each.

A batch that cannot be read makes the view suspect: it may have removed anything. An event of it
that cannot be read is skipped and counted.

Source: vLLM 0.32 distributed/kv_events.py, ZmqEventPublisher.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, assert_never

import zmq
from leadsman.records import Cleared, KvEvents, Trust, TrustChanged
from leadsman.units import Seconds

from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.kv_follower import KvFollower, KvSource
from leadsman_engines.kv_sequence import Action, Apply, AskReplay, Believe, Forget
from leadsman_engines.kv_wire import decode_batch
from leadsman_engines.zmq_loop import Frames, Waking, arrived, context

Socket: TypeAlias = "zmq.Socket[bytes]"

_END: Final = b"\xff" * 8
_TURN: Final = 16
"""Messages read from one socket before others have their turn."""


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
        self._live: Socket | None = None
        self._monitor: Socket | None = None
        self._replay: Socket | None = None
        self._replay_end: asyncio.TimerHandle | None = None
        self._broken: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Follow the source until cancelled; the sockets are closed then."""
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        self._waking = Waking(self._turn)
        self._live = context().socket(zmq.SUB)
        self._live.set_hwm(0)
        self._monitor = self._live.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED)
        try:
            self._live.subscribe(self._source.topic)
            self._live.connect(self._source.events)
            self._waking.add(self._live)
            self._waking.add(self._monitor)
            await self._broken
        finally:
            self._close_replay()
            self._live.disable_monitor()
            self._waking.close()

    def _turn(self) -> None:
        """Take what has come, on all sockets; what is left has its turn after others had theirs."""
        if self._attempt(self._read):
            asyncio.get_running_loop().call_soon(self._turn)

    def _attempt(self, work: Callable[[], bool]) -> bool:
        """Do some work, unless the stream is broken; what it raises breaks the stream."""
        assert self._broken is not None
        if self._broken.done():
            return False
        try:
            return work()
        except Exception as error:  # noqa: BLE001  # whoever runs this stream says it
            self._broken.set_exception(error)
            return False

    def _read(self) -> bool:
        """Read some of all sockets; True where there may be more.

        What the former connection brought is taken before a new connection is noted: it is older.
        """
        assert self._live is not None
        assert self._monitor is not None
        connected = bool(list(arrived(self._monitor)))
        taken = 0
        for frames in arrived(self._live, None if connected else _TURN):
            self._take_live(frames)
            taken += 1
        if connected:
            self._act(self._sequence.connected())
        return self._read_replay() or taken >= _TURN

    def _read_replay(self) -> bool:
        replay, taken = self._replay, 0
        if replay is None:
            return False
        for frames in arrived(replay, _TURN):
            self._take_replayed(frames)
            taken += 1
            if self._replay is not replay:
                return True
        return taken >= _TURN

    def _take_replayed(self, frames: Frames) -> None:
        message = self._parse(frames)
        if message is None:
            return
        sequence, payload = message
        if sequence == _END:
            self._act(self._sequence.replay_over())
        else:
            self._act(self._sequence.replayed(int.from_bytes(sequence), payload))

    def _give_up_replay(self) -> bool:
        self._act(self._sequence.replay_over("no answer in time"))
        return False

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
        """Ask on a socket of its own, so that no answer to an earlier question comes between."""
        self._close_replay()
        assert self._source.replay is not None
        replay = context().socket(zmq.DEALER)
        replay.set_hwm(0)
        replay.setsockopt(zmq.LINGER, 0)
        replay.connect(self._source.replay)
        replay.send_multipart([b"", start.to_bytes(len(_END))])
        self._replay = replay
        self._waking.add(replay)
        loop = asyncio.get_running_loop()
        self._replay_end = loop.call_later(
            self._source.replay_timeout, self._attempt, self._give_up_replay
        )

    def _close_replay(self) -> None:
        if self._replay_end is not None:
            self._replay_end.cancel()
        if self._replay is not None:
            self._waking.drop(self._replay)
            self._replay = None
