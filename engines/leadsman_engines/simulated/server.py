"""The HTTP server of a simulated engine: a vLLM client cannot tell it apart at these endpoints.

Embeddings are made by any model here; vLLM serves them by some alone.

Source: vLLM 0.32 entrypoints (routes, error shapes, which of them need development mode).
"""

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any
from uuid import uuid4

from aiohttp import web

from leadsman_engines.simulated import answers, bodies, reports
from leadsman_engines.simulated.anthropic_bodies import anthropic_as_chat
from leadsman_engines.simulated.bodies import Api, BadRequestError
from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.generation import FrontEnd, Generation, json_response
from leadsman_engines.simulated.live import (
    EngineGoneError,
    LiveEngine,
    QueueOverflowError,
)
from leadsman_engines.simulated.make import AnyEngine
from leadsman_engines.simulated.publish import EventPublisher
from leadsman_engines.simulated.responses_bodies import responses_as_chat
from leadsman_engines.simulated.text import BadTemplateInputError

LARGEST_BODY = 512 * 2**20

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiServer:
    """What the servers of all engines have in common, over one live engine."""

    owner = "vllm"

    def __init__(self, live: LiveEngine[AnyEngine], front: FrontEnd, rng: Random) -> None:
        self._served = live
        self._front = front
        self._first_tokens = reports.FirstTokenTimes()
        self._generation = Generation(live, front, rng, self._first_tokens)

    @property
    def _model(self) -> str:
        return self._served.engine.settings.model

    def _headers(self, request: web.Request) -> Mapping[str, str]:
        """Give the headers that an engine heeds."""
        return request.headers

    def _generating(self, api: Api) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            body = bodies.decode(await request.read(), request.headers.get("content-type", ""))
            bodies.check_model(body, self._model)
            ask = bodies.read(api, _as_read(api, body), self._headers(request))
            name = _PREFIXES[api] + (request.headers.get("x-request-id") or uuid4().hex)
            prompts = [await self._generation.ids(prompt) for prompt in ask.prompts]
            return await self._generation.answer(request, ask, name, prompts)

        return self._answering_errors(api, handle)

    def _answering_errors(self, api: Api, handle: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                return await handle(request)
            except BadRequestError as error:
                return refusal(api, str(error), error.kind, error.status, error.param)
            except BadTemplateInputError as error:
                return refusal(api, str(error), "BadRequestError", 400, None)
            except QueueOverflowError:
                text = "The engine's queue of requests is full."
                return refusal(api, text, "ServiceUnavailableError", 503, None)
            except EngineGoneError:
                return refusal(api, "EngineCore encountered an issue.", "InternalServerError", 500)

        return answer

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = bodies.decode(await request.read(), request.headers.get("content-type", ""))
        bodies.check_model(body, self._model)
        special = bool(body.get("add_special_tokens", "messages" not in body))
        if "messages" in body:
            text = self._generation.text(bodies.conversation(body))
        elif isinstance(body.get("prompt"), str):
            text = body["prompt"]
        else:
            raise BadRequestError("Either prompt or messages must be given.", param="prompt")
        ids = await self._generation.encode(text, special=special)
        pieces = self._served.tokenizer.pieces(ids) if body.get("return_token_strs") else None
        limit = self._served.engine.settings.max_model_len
        return json_response(
            {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": pieces}
        )

    async def _count_tokens(self, request: web.Request) -> web.Response:
        body = bodies.decode(await request.read(), request.headers.get("content-type", ""))
        text = self._generation.text(
            bodies.conversation(anthropic_as_chat({"max_tokens": 1} | body))
        )
        return json_response(
            {"input_tokens": len(await self._generation.encode(text, special=False))}
        )

    async def _models(self, _: web.Request) -> web.Response:
        settings = self._served.engine.settings
        card = {
            "id": settings.model,
            "object": "model",
            "created": 0,
            "owned_by": self.owner,
            "root": settings.model,
            "parent": None,
            "max_model_len": settings.max_model_len,
            "permission": [],
        }
        return json_response({"object": "list", "data": [card]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()


class EngineServer(ApiServer):
    """Routes and handlers of a vLLM."""

    def __init__(
        self,
        live: LiveEngine[SimulatedEngine],
        publisher: EventPublisher | None,
        front: FrontEnd,
        rng: Random,
    ) -> None:
        super().__init__(live, front, rng)
        self._live = live
        self._publisher = publisher

    def app(self) -> web.Application:
        """Make the application; run it with `handler_cancellation`, or disconnects go unseen."""
        app = web.Application(client_max_size=LARGEST_BODY)
        post: dict[str, Handler] = {
            "/v1/chat/completions": self._generating("chat"),
            "/v1/completions": self._generating("completions"),
            "/v1/messages": self._generating("messages"),
            "/v1/messages/count_tokens": self._answering_errors("messages", self._count_tokens),
            "/v1/responses": self._generating("responses"),
            "/v1/embeddings": self._generating("embeddings"),
            "/inference/v1/generate": self._generating("generate"),
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

    async def _version(self, _: web.Request) -> web.Response:
        return json_response({"version": self._live.engine.settings.version})

    async def _metrics(self, _: web.Request) -> web.Response:
        text = reports.metrics(self._live, self._first_tokens)
        return web.Response(
            body=text.encode(),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _event_sources(self, _: web.Request) -> web.Response:
        source = reports.event_source(self._publisher)
        return json_response({} if source is None else {"0": source})

    async def _server_info(self, request: web.Request) -> web.Response:
        info: dict[str, Any] = reports.server_info(self._live.engine, self._publisher)
        if request.query.get("config_format", "text") == "text":
            info["vllm_config"] = str(info["vllm_config"])
        return json_response(info)

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        return json_response({"success": self._live.engine.reset_cache()})


_PREFIXES: Mapping[Api, str] = {
    "chat": "chatcmpl-",
    "completions": "cmpl-",
    "messages": "chatcmpl-",
    "responses": "resp_",
    "embeddings": "embd-",
    "generate": "generate-tokens-",
}


def _as_read(api: Api, body: dict[str, Any]) -> dict[str, Any]:
    """Write a body as the chat or the completion that it means; raises BadRequestError."""
    if api == "messages":
        return anthropic_as_chat(body)
    if api == "responses":
        return responses_as_chat(body)
    if api == "embeddings" and "messages" not in body:
        return body | {"prompt": body.get("input")}
    if api == "generate":
        return body | {"prompt": body.get("token_ids")} | (body.get("sampling_params") or {})
    return body


def refusal(
    api: Api, message: str, kind: str, status: int, param: str | None = None
) -> web.Response:
    """Write an error in the API's shape."""
    return json_response(answers.error(api, message, kind, status, param), status)
