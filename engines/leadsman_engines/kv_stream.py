"""KvStream: follows one engine's KV events and says what they mean in records.

The question: what this engine scheduler holds, from now until we are told to stop. One SUB socket
for what happens, a DEALER for what was missed, the SUB's monitor for lost connections, one task
for all three; what to make of the numbers is `kv_sequence`, of the bytes `kv_wire`, of the
engine's names `blocks`. An engine that serves several ranks has an endpoint and a stream for each.

A batch that cannot be read makes the view suspect: it may have removed anything. An event of it
that cannot be read is skipped and counted. An engine that keeps only parts of its prefixes
(sliding windows, states) and does not tell which is followed, but blind: the first cache group
alone says too little.

Source: vLLM 0.32 distributed/kv_events.py, ZmqEventPublisher.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, assert_never

import zmq
import zmq.asyncio
from leadsman.records import Cleared, KvEvent, KvEvents, Trust, TrustChanged
from leadsman.units import Seconds, WorkerId

from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.errors import EngineProtocolError
from leadsman_engines.kv_sequence import Action, Apply, AskReplay, Believe, Forget, KvSequence
from leadsman_engines.kv_wire import decode_batch

_END: Final = b"\xff" * 8
_TURN: Final = 16
"""Messages read from one socket before others have their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSource:
    """Where one engine scheduler says its KV events; replay: None where it has no such socket."""

    worker: WorkerId
    events: str
    replay: str | None = None
    topic: str = ""
    replay_timeout: Seconds = 30.0


class KvStream:
    """One source's events as records. `counts`: what could not be used, by reason."""

    def __init__(
        self,
        source: KvSource,
        blocks: EngineBlocks,
        emit: Callable[[KvEvents | TrustChanged], None],
        now: Callable[[], Seconds],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.dp_rank: int | None = None
        self._source = source
        self._blocks = blocks
        self._emit = emit
        self._now = now
        self._sequence = KvSequence(can_replay=source.replay is not None)
        self._engine_time: Seconds = 0.0
        self._poller = zmq.asyncio.Poller()
        self._replay: zmq.asyncio.Socket | None = None
        self._replay_until: Seconds = 0.0

    async def run(self) -> None:
        """Follow the source until cancelled; the sockets are closed then."""
        live = zmq.asyncio.Context.instance().socket(zmq.SUB)
        live.set_hwm(0)
        monitor = live.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED)
        try:
            for socket in (live, monitor):
                self._poller.register(socket, zmq.POLLIN)
            live.subscribe(self._source.topic)
            live.connect(self._source.events)
            while True:
                await self._turn(live, monitor)
        finally:
            self._close_replay()
            live.disable_monitor()
            for socket in (live, monitor):
                self._poller.unregister(socket)
                socket.close(linger=0)

    async def _turn(self, live: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> None:
        """Wait for something to come, and take it.

        What the former connection brought is taken before a new connection is noted: it is older.
        """
        await self._wait()
        connected = await _read(monitor)
        for frames in await _read(live, None if connected else _TURN):
            self._take_live(frames)
        if connected:
            self._act(self._sequence.connected())
        if self._replay is not None:
            await self._read_replay(self._replay)
        await asyncio.sleep(0)

    async def _wait(self) -> None:
        if self._replay is None:
            await self._poller.poll()
            return
        left = self._replay_until - asyncio.get_running_loop().time()
        if left > 0:
            await self._poller.poll(1000 * left)
        else:
            self._act(self._sequence.replay_over("no answer in time"))

    async def _read_replay(self, replay: zmq.asyncio.Socket) -> None:
        for frames in await _read(replay, _TURN):
            if self._replay is not replay:
                return
            message = self._parse(frames)
            if message is None:
                continue
            sequence, payload = message
            if sequence == _END:
                self._act(self._sequence.replay_over())
            else:
                self._act(self._sequence.replayed(int.from_bytes(sequence), payload))

    def _take_live(self, frames: list[bytes]) -> None:
        message = self._parse(frames)
        if message is not None:
            self._act(self._sequence.live(int.from_bytes(message[0]), message[1]))

    def _parse(self, frames: list[bytes]) -> tuple[bytes, bytes] | None:
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
                    self._say(0, (self._blocks.clear(),))
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
        self._say(batch.sequence, events)
        if any(isinstance(event, Cleared) for event in events):
            self._act(self._sequence.cleared())

    def _say(self, sequence: int, events: tuple[KvEvent, ...]) -> None:
        """Emit a batch, an empty one too: it tells that the engine made a step."""
        self._emit(
            KvEvents(
                worker=self._source.worker,
                sequence=sequence,
                engine_time=self._engine_time,
                received_at=self._now(),
                events=events,
            )
        )

    def _believe(self, trust: Trust, reason: str) -> None:
        if not self._blocks.is_windowed or trust is Trust.BLIND:
            self._emit(TrustChanged(worker=self._source.worker, trust=trust, reason=reason))

    def _ask_replay(self, start: int) -> None:
        """Ask on a socket of its own, so that no answer to an earlier question comes between."""
        self._close_replay()
        assert self._source.replay is not None
        replay = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        replay.set_hwm(0)
        replay.setsockopt(zmq.LINGER, 0)
        replay.connect(self._source.replay)
        replay.send_multipart([b"", start.to_bytes(len(_END))])
        self._poller.register(replay, zmq.POLLIN)
        self._replay = replay
        self._replay_until = asyncio.get_running_loop().time() + self._source.replay_timeout

    def _close_replay(self) -> None:
        if self._replay is not None:
            self._poller.unregister(self._replay)
            self._replay.close(linger=0)
            self._replay = None


async def _read(socket: zmq.asyncio.Socket, limit: int | None = None) -> list[list[bytes]]:
    """Read what has come already, `limit` messages at most."""
    messages: list[list[bytes]] = []
    with contextlib.suppress(zmq.Again):
        while limit is None or len(messages) < limit:
            messages.append(await socket.recv_multipart(zmq.NOBLOCK))
    return messages
