"""The HTTP server of a simulated engine: a vLLM client cannot tell it apart at these endpoints.

A client that goes away aborts its request: aiohttp cancels the handler, and whatever way a handler
ends, its requests that are still under way are taken back.

Source: vLLM 0.32 entrypoints (routes, error shapes, which of them need development mode).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import uuid4

import msgspec
from aiohttp import web

from leadsman_engines.simulated import answers, bodies, reports
from leadsman_engines.simulated.answers import Piece, Usage
from leadsman_engines.simulated.bodies import Api, Ask, BadRequestError, Conversation, Prompt
from leadsman_engines.simulated.live import (
    EngineGoneError,
    LiveEngine,
    QueueOverflowError,
    Sink,
    Ticket,
    Wish,
)
from leadsman_engines.simulated.publish import EventPublisher
from leadsman_engines.simulated.text import BadTemplateInputError, Tokenizer

LARGE_TEXT = 20_000
"""Characters from which tokenizing leaves the event loop, so that other streams go on."""

LARGEST_BODY = 512 * 2**20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """How the HTTP server is set up.

    mean_output: tokens of a reply whose length nobody states (drawn exponentially).
    """

    dev_mode: bool = True
    force_include_usage: bool = False
    mean_output: float = 250.0


class EngineServer:
    """Routes and handlers over one live engine."""

    def __init__(
        self,
        live: LiveEngine,
        publisher: EventPublisher | None,
        front: FrontEnd,
        rng: Random,
    ) -> None:
        self._live = live
        self._publisher = publisher
        self._front = front
        self._rng = rng
        self._first_tokens = reports.FirstTokenTimes()

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._live.tokenizer

    @property
    def _model(self) -> str:
        return self._live.engine.settings.model

    def app(self) -> web.Application:
        """Make the application; run it with `handler_cancellation`, or disconnects go unseen."""
        app = web.Application(client_max_size=LARGEST_BODY)
        post: dict[str, Handler] = {
            "/v1/chat/completions": self._generating("chat"),
            "/v1/completions": self._generating("completions"),
            "/v1/messages": self._generating("messages"),
            "/tokenize": self._answering_errors("chat", self._tokenize),
        }
        get: dict[str, Handler] = {
            "/v1/models": self._models,
            "/version": self._version,
            "/health": self._health,
            "/metrics": self._metrics,
            "/kv_event_sources": self._event_sources,
        }
        if self._front.dev_mode:
            get["/server_info"] = self._server_info
            post["/reset_prefix_cache"] = self._reset_prefix_cache
        app.add_routes([web.post(path, handler) for path, handler in post.items()])
        app.add_routes([web.get(path, handler) for path, handler in get.items()])
        return app

    def _generating(self, api: Api) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = bodies.decode(await request.read(), request.headers.get("content-type", ""))
            bodies.check_model(body, self._model)
            ask = bodies.read(api, body, request.headers)
            prefix = {"chat": "chatcmpl-", "completions": "cmpl-", "messages": "chatcmpl-"}[api]
            name = prefix + (request.headers.get("x-request-id") or uuid4().hex)
            prompts = [await self._ids(prompt) for prompt in ask.prompts]
            return await self._generate(request, ask, name, prompts)

        return self._answering_errors(api, handle)

    def _answering_errors(self, api: Api, handle: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handle(request)
            except BadRequestError as error:
                return _refusal(api, str(error), error.kind, error.status, error.param)
            except BadTemplateInputError as error:
                return _refusal(api, str(error), "BadRequestError", 400, None)
            except QueueOverflowError:
                text = "The engine's queue of requests is full."
                return _refusal(api, text, "ServiceUnavailableError", 503, None)
            except EngineGoneError:
                return _refusal(api, "EngineCore encountered an issue.", "InternalServerError", 500)

        return answer

    async def _ids(self, prompt: Prompt) -> list[int]:
        """Render and tokenize one prompt; refuse one that leaves no room for a token."""
        if isinstance(prompt, list):
            ids = prompt
        else:
            text = self._text(prompt)
            ids = await self._encode(text, special=isinstance(prompt, str))
        limit = self._live.engine.settings.max_model_len
        if len(ids) >= limit:
            raise BadRequestError(
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains {len(ids)} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt.",
                param="input_tokens",
            )
        return ids

    def _text(self, prompt: Conversation | str) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.render(prompt.messages, prompt.options)

    async def _encode(self, text: str, *, special: bool) -> list[int]:
        if len(text) < LARGE_TEXT:
            return self._tokenizer.encode(text, special=special)
        return await asyncio.to_thread(self._tokenizer.encode, text, special=special)

    async def _generate(
        self, request: web.Request, ask: Ask, name: str, prompts: list[list[int]]
    ) -> web.StreamResponse:
        usage = Usage(prompt=sum(map(len, prompts)))
        sink: Sink = asyncio.Queue()
        tickets: dict[str, Ticket] = {}
        try:
            for choice, ids in enumerate(prompts):
                internal, ticket = self._live.submit(self._wish(ask, name, choice, ids), sink)
                tickets[internal] = ticket
            pieces = self._pieces(list(tickets.values()), sink, usage)
            if not ask.stream:
                return await self._whole(ask, name, pieces, usage)
            return await self._stream(request, self._stream_shape(ask, name), pieces, usage)
        finally:
            for internal in tickets:
                self._live.abort(internal)

    def _wish(self, ask: Ask, name: str, choice: int, ids: list[int]) -> Wish:
        length = ask.output_tokens
        if length is None:
            length = 1 + int(self._rng.expovariate(1 / self._front.mean_output))
        if ask.ignore_eos:
            length = ask.max_tokens or self._live.engine.settings.max_model_len
        return Wish(
            public_id=name,
            choice=choice,
            ids=ids,
            output_tokens=length,
            max_tokens=ask.max_tokens,
            session_id=ask.session_id,
            salt=ask.salt,
            priority=ask.priority,
            reads_cache=ask.reads_cache,
        )

    async def _pieces(
        self, tickets: list[Ticket], sink: Sink, usage: Usage
    ) -> AsyncIterator[Piece]:
        """Yield the choices' tokens as they come, counting them in `usage`."""
        begun = self._loop_time()
        given = [0] * len(tickets)
        under_way = len(tickets)
        while under_way:
            progress = await sink.get()
            if progress is None:
                raise EngineGoneError
            if not usage.generated:
                self._first_tokens.observe(self._loop_time() - begun)
            usage.cached += progress.cached or 0
            choice = progress.choice
            for left in reversed(range(progress.tokens)):
                finished = None if left else progress.finished
                text = "" if finished == "stop" else tickets[choice].reply(given[choice])[1]
                given[choice] += 1
                usage.generated += 1
                yield Piece(choice=choice, text=text, finished=finished)
            under_way -= progress.finished is not None

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    async def _whole(
        self, ask: Ask, name: str, pieces: AsyncIterator[Piece], usage: Usage
    ) -> web.Response:
        texts = [""] * len(ask.prompts)
        reasons: list[str | None] = [None] * len(ask.prompts)
        async for piece in pieces:
            texts[piece.choice] += piece.text
            reasons[piece.choice] = piece.finished
        made = [
            Piece(choice=index, text=text, finished=reasons[index])
            for index, text in enumerate(texts)
        ]
        return _json(answers.whole(ask.api, name, self._model, made, usage))

    def _stream_shape(self, ask: Ask, name: str) -> answers.Stream:
        if ask.api == "messages":
            return answers.MessageStream(id=name, model=self._model)
        shape = answers.ChatStream if ask.api == "chat" else answers.CompletionStream
        return shape(
            id=name,
            model=self._model,
            include_usage=ask.include_usage or self._front.force_include_usage,
            continuous_usage=ask.continuous_usage,
        )

    async def _stream(
        self,
        request: web.Request,
        shape: answers.Stream,
        pieces: AsyncIterator[Piece],
        usage: Usage,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        try:
            async for piece in pieces:
                await response.write(shape.piece(piece, usage))
        except EngineGoneError:
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write(shape.end(usage))
        await response.write_eof()
        return response

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = bodies.decode(await request.read(), request.headers.get("content-type", ""))
        bodies.check_model(body, self._model)
        special = bool(body.get("add_special_tokens", "messages" not in body))
        if "messages" in body:
            chat = bodies.conversation(body)
            text = self._tokenizer.render(chat.messages, chat.options)
        elif isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            raise BadRequestError("Either prompt or messages must be given.", param="prompt")
        ids = await self._encode(text, special=special)
        pieces = self._tokenizer.pieces(ids) if body.get("return_token_strs") else None
        limit = self._live.engine.settings.max_model_len
        return _json(
            {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": pieces}
        )

    async def _models(self, _: web.Request) -> web.Response:
        settings = self._live.engine.settings
        card = {
            "id": settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": settings.model,
            "parent": None,
            "max_model_len": settings.max_model_len,
            "permission": [],
        }
        return _json({"object": "list", "data": [card]})

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": self._live.engine.settings.version})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        text = reports.metrics(self._live, self._first_tokens)
        return web.Response(
            body=text.encode(),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _event_sources(self, _: web.Request) -> web.Response:
        source = reports.event_source(self._publisher)
        return _json({} if source is None else {"0": source})

    async def _server_info(self, request: web.Request) -> web.Response:
        info: dict[str, Any] = reports.server_info(self._live.engine, self._publisher)
        if request.query.get("config_format", "text") == "text":
            info["vllm_config"] = str(info["vllm_config"])
        return _json(info)

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        return _json({"success": self._live.engine.reset_cache()})


def _json(content: object, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(content), status=status, content_type="application/json"
    )


def _refusal(
    api: Api, message: str, kind: str, status: int, param: str | None = None
) -> web.Response:
    return _json(answers.error(api, message, kind, status, param), status)
