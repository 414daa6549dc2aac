"""The HTTP server of a simulated SGLang: a client cannot tell it apart at these endpoints.

Usage tells what was cached only where the server is so set. No header names a session, only the
body does. A full queue is told with status 503, or, to one who streams, by an event in an answer
of status 200.

Source: SGLang 0.5.23 srt/entrypoints/http_server.py; entrypoints/openai/serving_chat.py;
managers/scheduler.py, _abort_on_queued_limit.
"""

import time
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any
from uuid import uuid4

from aiohttp import web

from leadsman_engines.simulated import bodies
from leadsman_engines.simulated.answers import DONE, Piece, Usage, event
from leadsman_engines.simulated.bodies import Api, Ask
from leadsman_engines.simulated.generation import FrontEnd, Generation, json_response
from leadsman_engines.simulated.server import LARGEST_BODY, ApiServer, Handler
from leadsman_engines.simulated.sglang import reports
from leadsman_engines.simulated.sglang.live import LiveSglang

FULL = "The request queue is full."


class SglangServer(ApiServer):
    """Routes and handlers over one live server. kv_events: what it says of its publishers."""

    owner = "sglang"

    def __init__(self, live: LiveSglang, kv_events: Any, front: FrontEnd, rng: Random) -> None:
        super().__init__(live, front, rng)
        self._live, self._kv_events = live, kv_events
        self._started_at = time.time()

    def app(self) -> web.Application:
        """Make the application; run it with `handler_cancellation`, or disconnects go unseen."""
        app = web.Application(client_max_size=LARGEST_BODY)
        post: dict[str, Handler] = {
            "/v1/chat/completions": self._telling_overload("chat"),
            "/v1/completions": self._telling_overload("completions"),
            "/generate": self._answering_errors("completions", self._generate),
            "/tokenize": self._answering_errors("chat", self._tokenize),
            "/v1/tokenize": self._answering_errors("chat", self._tokenize),
            "/flush_cache": self._flush,
        }
        get: dict[str, Handler] = {
            "/v1/models": self._models,
            "/health": self._health,
            "/metrics": self._metrics,
            "/server_info": self._server_info,
            "/get_server_info": self._server_info,
            "/v1/loads": self._loads,
        }
        app.add_routes([web.post(path, handler) for path, handler in post.items()])
        app.add_routes([web.get(path, handler) for path, handler in get.items()])
        return app

    def _headers(self, request: web.Request) -> Mapping[str, str]:
        return {
            name.lower(): value
            for name, value in request.headers.items()
            if name.lower() != "x-session-id"
        }

    def _telling_overload(self, api: Api) -> Handler:
        """Answer as all engines do, but where the queue is full and the caller streams."""
        usual = self._generating(api)

        async def answer(request: web.Request) -> web.StreamResponse:
            response = await usual(request)
            if response.status != 503 or b'"stream":true' not in (await request.read()).replace(
                b" ", b""
            ):
                return response
            told = {"error": {"message": FULL, "type": "503", "code": 503}}
            kind = {"content-type": "text/event-stream; charset=utf-8"}
            return web.Response(body=event(told) + DONE, headers=kind)

        return answer

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        """Answer the native API, one prompt a request."""
        body = bodies.decode(await request.read(), request.headers.get("content-type", ""))
        sampling = body.get("sampling_params") or {}
        asked = {
            "prompt": body.get("input_ids") or body.get("text"),
            "max_tokens": sampling.get("max_new_tokens", 128),
            "min_tokens": sampling.get("min_new_tokens"),
            "ignore_eos": sampling.get("ignore_eos"),
            "custom_params": sampling.get("custom_params"),
            "stream": body.get("stream"),
            "session_id": body.get("session_id"),
            "priority": body.get("priority"),
        } | {name: body[name] for name in ("routed_dp_rank", "data_parallel_rank") if name in body}
        ask = bodies.read("completions", asked, self._headers(request))
        name = str(body.get("rid") or uuid4().hex)
        ids = [await self._generation.ids(prompt) for prompt in ask.prompts]
        native = _Native(self._live, self._front, Random(name), self._first_tokens)
        return await native.answer(request, ask, name, ids)

    async def _flush(self, _: web.Request) -> web.Response:
        if self._live.flush_cache():
            return web.Response(text="Cache flushed.\n")
        return web.Response(text="Flush cache failed: requests are running.\n", status=400)

    async def _metrics(self, _: web.Request) -> web.Response:
        text = reports.metrics(self._live, self._first_tokens)
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return web.Response(body=text.encode(), headers={"content-type": kind})

    async def _server_info(self, _: web.Request) -> web.Response:
        return json_response(reports.server_info(self._live, self._started_at, self._kv_events))

    async def _loads(self, request: web.Request) -> web.Response:
        rank = request.query.get("dp_rank")
        if rank is not None and not rank.isdecimal():
            return json_response({"detail": f"dp_rank is no number: {rank!r}"}, 422)
        said = reports.loads(self._live, None if rank is None else int(rank))
        version = self._live.engine.settings.version
        return json_response({"timestamp": time.time(), "version": version, "loads": said})


class _Native(Generation):
    """Answers in the shape of /generate: all the text so far, and what is known of the request."""

    async def _whole(
        self, ask: Ask, name: str, pieces: AsyncIterator[Piece], usage: Usage
    ) -> web.Response:
        del ask
        last = {}
        async for said in self._said(name, pieces, usage):
            last = said
        return json_response(last)

    async def _stream(
        self, request: web.Request, shape: Any, pieces: AsyncIterator[Piece], usage: Usage
    ) -> web.StreamResponse:
        kind = {"content-type": "text/event-stream; charset=utf-8"}
        response = web.StreamResponse(headers=kind)
        await response.prepare(request)
        async for said in self._said(shape.id, pieces, usage):
            await response.write(event(said))
        await response.write(DONE)
        await response.write_eof()
        return response

    async def _said(
        self, name: str, pieces: AsyncIterator[Piece], usage: Usage
    ) -> AsyncIterator[dict[str, Any]]:
        text = ""
        async for piece in pieces:
            text += piece.text
            reason = None if piece.finished is None else {"type": piece.finished}
            meta = {
                "id": name,
                "finish_reason": reason,
                "prompt_tokens": usage.prompt,
                "completion_tokens": usage.generated,
                "cached_tokens": usage.cached,
            }
            yield {"text": text, "meta_info": meta}
