"""A picker and engines in a thread of their own, behind a real Envoy of either profile."""

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
import uvloop
from aiohttp import web
from leadsman.budget import Budget
from leadsman.engine import EngineSettings
from leadsman.lobby import Held, Lobby, Settled
from leadsman.prediction import Admitted, Decision, Reason, Refused
from leadsman.records import Ended, Record, TokensSeen, WorkerSeen
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_bench.envoy import Envoy, running_envoy
from leadsman_bench.envoy_config import EnvoyConfig, Profile
from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.generation import FrontEnd
from leadsman_engines.simulated.live import LiveEngine
from leadsman_engines.simulated.presets import presets
from leadsman_engines.simulated.server import EngineServer
from leadsman_engines.simulated.sglang.engine import SimulatedSglang
from leadsman_engines.simulated.sglang.live import LiveSglang
from leadsman_engines.simulated.sglang.server import SglangServer
from leadsman_engines.simulated.text import ByteTokenizer
from leadsman_extproc.bodies import read_body
from leadsman_extproc.body import BadRequest, Body, NotForUs
from leadsman_extproc.grants import Grant, Grants
from leadsman_extproc.picking import Picking
from leadsman_extproc.ports import Arrival, ReadRequest
from leadsman_extproc.server import Server, serving
from leadsman_extproc.settings import Settings
from leadsman_extproc.watch import Watching
from leadsman_extproc.workers import Workers

SETTINGS = EngineSettings(
    model="any",
    version="0",
    max_num_batched_tokens=8192,
    max_num_seqs=64,
    max_model_len=1 << 20,
    block_size=16,
    num_blocks=1000,
)


class ReadsAnEstimate:
    """Reads bodies for real, counts four bytes a token; the model `slow` takes for ever."""

    async def read(self, arrival: Arrival) -> ReadRequest | NotForUs | BadRequest:
        body = read_body(arrival.path, arrival.body)
        if not isinstance(body, Body):
            return body
        if body.model == "slow":
            await asyncio.sleep(3600)
        request = Request(
            id=arrival.id,
            model=body.model or "any",
            prompt_tokens=max(1, body.size // 4),
            arrived_at=arrival.at,
            max_tokens=body.max_tokens,
            max_queue_wait=body.max_queue_wait,
            endpoints=arrival.subset,
        )
        return ReadRequest(request=request, api=body.api)

    def learn(self, grant: Grant) -> None:
        pass


@dataclass
class PicksInTurn:
    """Takes the engines in turn; some models' names are wishes: `refuse-<status>`, `on-<n>`.

    `hold-<bound>` is held while `wait` says that no engine is free, in a lobby of the core's.
    """

    wait: float = 0.0
    longest: float = 3.0
    lobby: Lobby = field(default_factory=Lobby)
    seen: dict[WorkerId, WorkerSeen] = field(default_factory=dict)
    witnesses: bool = False
    turn_: int = 0
    passed: Callable[[str], None] | None = None

    def apply(self, record: Record, now: float) -> None:
        if isinstance(record, WorkerSeen):
            self.seen[record.worker] = record

    def decide(self, request: Request, budget: object, now: float, rng: Random) -> Decision | Held:
        if request.model == "broken":
            raise RuntimeError("this decision fails")
        if request.model.startswith("refuse-"):
            return _refused(request)
        if request.model.startswith("hold-") and self.wait:
            held = self._held(request, now)
            self.lobby.hold(held)
            return held
        return self._admitted(request)

    def _held(self, request: Request, now: float) -> Held:
        return Held(
            request=request,
            budget=Budget(hold=self.longest),
            family=None,
            at=now,
            until=now + self.longest,
            latest=now + float(request.model.removeprefix("hold-")),
            work=0.0,
            expected=self.wait,
            number=self.turn_number(),
        )

    def turn_number(self) -> int:
        self.turn_ += 1
        return self.turn_

    def next_turn(self) -> float | None:
        return self.lobby.next_turn if len(self.lobby) else None

    def turn(self, now: float, rng: Random, *, everyone: bool = False) -> list[Settled]:
        return self.lobby.turn(
            self, lambda held: 1.0, now=now, rng=rng, frees_in=0.0, workers=1, everyone=everyone
        )

    def let_go(self, request: RequestId) -> None:
        self.lobby.drop(request)

    def place(self, held: Held, now: float, rng: Random, *, insist: bool) -> Decision | float:
        return self._admitted(held.request) if insist or not self.wait else self.wait

    def give_up(self, held: Held, wait: float, now: float, rng: Random) -> Decision:
        return _refused(replace(held.request, model="refuse-429"))

    def free(self, now: float) -> None:
        """An engine comes free."""
        self.wait = 0.0
        self.lobby.stir(now)

    def _admitted(self, request: Request) -> Decision:
        workers = sorted(self.seen)
        turn = self.turn_number()
        number = int(request.model[3:]) if request.model.startswith("on-") else turn
        worker = self.seen[workers[number % len(workers)]]
        return Admitted(
            request=request.id, worker=worker.worker, endpoint=worker.endpoint, prediction=None
        )

    def block_sizes(self, model: str) -> tuple[int, ...]:
        return (16,)

    def wants_witness(self, worker: WorkerId) -> bool:
        return self.witnesses

    def signals(self, worker: WorkerId, now: float) -> dict[str, float]:
        return {}

    def in_flight(self) -> dict[WorkerId, int]:
        return {}


def _refused(request: Request) -> Refused:
    status = int(request.model.removeprefix("refuse-").removesuffix("-for-good"))
    reason = {429: Reason.WOULD_WAIT_TOO_LONG, 529: Reason.OVERLOADED, 503: Reason.NO_ENDPOINT}
    return Refused(
        request=request.id,
        reason=reason[status],
        status=status,
        retry_after=1.25,
        should_retry=not request.model.endswith("-for-good"),
        bound=5.0,
        predicted_wait=9.5,
    )


@dataclass
class TestEngine:
    """Answers like an engine; headers of a request say how: x-chunks, x-pace, x-status, x-dies."""

    __test__ = False
    gone: int = 0
    hanging: int = 0
    bodies: list[str] = field(default_factory=list)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.bodies.append(hashlib.sha256(raw).hexdigest())
        try:
            match request.headers.get("x-status", "200"):
                case "200" if request.path == "/v1/messages":
                    return await self._messages(request)
                case "200" if json.loads(raw).get("stream"):
                    return await self._stream(request)
                case "200":
                    return web.json_response(_ANSWER, headers={"x-session": _session(request)})
                case "hang":
                    self.hanging += 1
                    await asyncio.sleep(3600)
                case status:
                    return web.json_response({"error": {"message": "no"}}, status=int(status))
        except (ConnectionError, asyncio.CancelledError):
            self.gone += 1
            raise

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        pace = float(request.headers.get("x-pace", "0"))
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", "x-session": _session(request)}
        )
        await response.prepare(request)
        await response.write(_event({"role": "assistant", "content": ""}))
        for number in range(int(request.headers.get("x-chunks", "5"))):
            await asyncio.sleep(pace)
            await response.write(_event({"content": f"word{number} "}))
            if request.headers.get("x-dies") == str(number):
                assert request.transport is not None
                request.transport.abort()
                return response
        usage = {"choices": [], **_HEAD, "usage": _ANSWER["usage"]}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in _MESSAGES_EVENTS:
            line = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
            await response.write(line.encode())
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26, handler_args={"handler_cancellation": True})
        _add(app, _simulated(), SIMULATED)
        _add(app, _simulated_sglang(), NATIVE)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/messages", self.chat)
        app.router.add_route("*", "/{path:.*}", self.models)
        return app


SIMULATED = (
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/inference/v1/generate",
)
"""What a simulated vLLM answers in the scripted engine's place."""


NATIVE = ("/generate",)
"""What a simulated SGLang answers."""


def _add(app: web.Application, simulated: web.Application, paths: Collection[str]) -> None:
    for route in simulated.router.routes():
        resource = route.resource
        if resource is not None and resource.canonical in paths:
            app.router.add_post(resource.canonical, route.handler)


def _simulated_sglang() -> web.Application:
    """A simulated SGLang, twenty times as fast as it is."""
    preset = presets()["qwen2.5-0.5b-a10g"]
    engine = SimulatedSglang(replace(preset.sglang, model="any"), preset.hardware, Random(1))
    live = LiveSglang(engine, ByteTokenizer(), speed=20.0)
    return SglangServer(live, None, FrontEnd(), Random(2)).app()


def _simulated() -> web.Application:
    """A simulated vLLM of the model `any`, twenty times as fast as it is."""
    preset = presets()["qwen2.5-0.5b-a10g"]
    engine = SimulatedEngine(replace(preset.settings, model="any"), preset.hardware, Random(1))
    live = LiveEngine(engine, ByteTokenizer(), None, speed=20.0)
    return EngineServer(live, None, FrontEnd(), Random(2)).app()


_HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
_ANSWER = {
    **_HEAD,
    "object": "chat.completion",
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    ],
    "usage": {
        "prompt_tokens": 11,
        "completion_tokens": 5,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 7},
    },
}


_MESSAGES_EVENTS = [
    {
        "type": "message_start",
        "message": {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 4, "output_tokens": 1, "cache_read_input_tokens": 7},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *(
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": f"word{number} "},
        }
        for number in range(5)
    ),
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
]


def _session(request: web.Request) -> str:
    return request.headers.get("x-session-id", "none")


def _event(delta: dict[str, str]) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": None}]
    return b"data: " + json.dumps({**_HEAD, "choices": choices}).encode() + b"\n\n"


@dataclass
class KeepsAll:
    """Keeps what was decided and how it ended in lists."""

    decisions: list[Decision] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)

    def decided(self, request: Request, decision: Decision, now: float) -> None:
        self.decisions.append(decision)

    def ended(self, grant: Grant) -> None:
        self.grants.append(grant)


@dataclass
class Stack:
    """Everything behind one Envoy, with what it has recorded."""

    profile: Profile
    picking: Picking
    picker: PicksInTurn
    keeps: KeepsAll
    engine: TestEngine
    records: list[Record]
    server: Server
    loop: asyncio.AbstractEventLoop
    url: str = ""
    envoy: Envoy | None = None

    def comes(self, condition: Callable[[], bool]) -> bool:
        """Wait until a condition holds; False where it does not within a generous while."""
        give_up = time.monotonic() + 15
        while not condition() and time.monotonic() < give_up:
            time.sleep(0.01)
        return condition()

    def is_settled(self) -> bool:
        """Whether nothing is in flight any more."""
        return self.comes(
            lambda: not len(self.picking.grants) and not self.server.processor.open_streams
        )

    def ended(self) -> list[Ended]:
        return [record for record in self.records if isinstance(record, Ended)]

    def tokens(self) -> list[TokensSeen]:
        return [record for record in self.records if isinstance(record, TokensSeen)]

    def forget(self) -> None:
        self.records.clear()
        self.keeps.grants.clear()
        self.keeps.decisions.clear()
        self.engine.bodies.clear()
        self.picking.counts.fallbacks.clear()
        self.engine.gone = self.engine.hanging = 0
        self.picker.witnesses, self.picker.wait = False, 0.0
        self.picking.counts.held_seconds.clear()

    def free(self) -> None:
        """An engine comes free, and the picker hears of it."""

        def hear() -> None:
            self.picker.free(time.monotonic())
            self.picking.waiting.stir()

        self.loop.call_soon_threadsafe(hear)


class Behind:
    """Runs engines and picker on a loop in a thread of its own."""

    def __init__(
        self, profile: Profile, *, engines: int = 2, dead: int = 0, notice: float = 0.0
    ) -> None:
        self._profile, self._engines, self._dead, self._notice = profile, engines, dead, notice
        self._ready = threading.Event()
        self.stack: Stack
        self.endpoints: list[str] = []
        self._thread = threading.Thread(target=lambda: uvloop.run(self._run()))

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with AsyncExitStack() as exits:
                self.stack = await self._start(exits)
                self._ready.set()
                await self._stop.wait()
        finally:
            self._ready.set()

    async def _start(self, exits: AsyncExitStack) -> Stack:
        engine, records, keeps, picker = TestEngine(), [], KeepsAll(), PicksInTurn()
        for _ in range(self._engines):
            self.endpoints.append(await _serve(engine.app(), exits))
        self.endpoints += [f"127.0.0.1:{9 + number}" for number in range(self._dead)]
        workers, grants = Workers(), Grants(emit=records.append, on_end=keeps.ended)
        for number, endpoint in enumerate(self.endpoints):
            seen = WorkerSeen(worker=WorkerId(f"{number}"), endpoint=endpoint, settings=SETTINGS)
            workers.apply(seen)
            picker.apply(seen, 0.0)
        picking = Picking(
            reads=ReadsAnEstimate(),
            picker=picker,
            budget_for=lambda request, headers: Budget(),
            keeps=keeps,
            report=lambda record: None,
            grants=grants,
            workers=workers,
            settings=Settings(
                listen="127.0.0.1:0",
                decision_deadline=0.3,
                max_body=16 << 20,
                notice=self._notice,
                drain=5,
            ),
            clock=time.monotonic,
        )
        watching = Watching(grants=grants, workers=workers, wants_witness=picker.wants_witness)
        server = await exits.enter_async_context(
            serving(picking, watching, picking.workers.any_ready)
        )
        return Stack(self._profile, picking, picker, keeps, engine, records, server, self._loop)

    def __enter__(self) -> Stack:
        self._thread.start()
        self._ready.wait()
        return self.stack

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


async def _serve(app: web.Application, exits: AsyncExitStack) -> str:
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    exits.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return f"127.0.0.1:{runner.addresses[0][1]}"


@pytest.fixture(scope="module", params=["buffered", "duplex"])
def running(request: pytest.FixtureRequest) -> Iterator[Stack]:
    profile: Profile = request.param
    behind = Behind(profile, engines=2, dead=1)
    with behind as stack:
        config = EnvoyConfig(
            engines=behind.endpoints,
            picker=f"127.0.0.1:{stack.server.port}",
            profile=profile,
            logs_access=profile == "buffered",
        )
        with running_envoy(config) as envoy:
            stack.url, stack.envoy = envoy.url, envoy
            yield stack


@pytest.fixture
def stack(running: Stack) -> Iterator[Stack]:
    running.forget()
    yield running
    assert running.is_settled(), "a grant or a stream is left"
    running.picking.grants.check()


@pytest.fixture
def behind() -> Iterator[Callable[..., tuple[Stack, Callable[[], None]]]]:
    """Start a stack of one's own: `behind(profile, engines=…, dead=…)`; returns it and a stop.

    lists: whether its Envoy is told the engines; else it knows those that the picker names.
    """
    exits = ExitStack()

    def start(
        profile: Profile, *, lists: bool = True, **more: Any
    ) -> tuple[Stack, Callable[[], None]]:
        own = Behind(profile, **more)
        leave_picker = exits.enter_context(ExitStack())
        stack = leave_picker.enter_context(own)
        config = EnvoyConfig(
            engines=(own.endpoints or ["127.0.0.1:9"]) if lists else None,
            picker=f"127.0.0.1:{stack.server.port}",
            profile=profile,
            logs_access=profile == "buffered",
        )
        stack.envoy = exits.enter_context(running_envoy(config))
        stack.url = stack.envoy.url
        return stack, leave_picker.close

    with exits:
        yield start
