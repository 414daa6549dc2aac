"""From one HTTP request to its answer: tokenize, hand to the engine, write tokens as they come.

Whatever way a handler ends, also by a client that goes away (aiohttp then cancels it), what is
still under way is taken back from the engine.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from random import Random

import msgspec
from aiohttp import web

from leadsman_engines.simulated import answers
from leadsman_engines.simulated.answers import Piece, Usage
from leadsman_engines.simulated.anthropic_answers import MessageStream, whole_message
from leadsman_engines.simulated.bodies import Ask, BadRequestError, Conversation, Prompt
from leadsman_engines.simulated.live import EngineGoneError, LiveEngine
from leadsman_engines.simulated.make import AnyEngine
from leadsman_engines.simulated.reports import FirstTokenTimes
from leadsman_engines.simulated.responses_answers import ResponseStream
from leadsman_engines.simulated.text import Tokenizer
from leadsman_engines.simulated.tickets import Sink, Ticket, Wish

LARGE_TEXT = 20_000
"""Characters from which tokenizing leaves the event loop, so that other streams go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """How the HTTP server is set up.

    mean_output: tokens of a reply whose length nobody states (drawn exponentially).
    reports_cache: whether usage says how much of a prompt was cached.
    """

    dev_mode: bool = True
    force_include_usage: bool = False
    mean_output: float = 250.0
    reports_cache: bool = True


class Generation:
    """Answers generating requests with one live engine."""

    def __init__(
        self,
        live: LiveEngine[AnyEngine],
        front: FrontEnd,
        rng: Random,
        first_tokens: FirstTokenTimes,
    ) -> None:
        self._live = live
        self._front = front
        self._rng = rng
        self._first_tokens = first_tokens

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._live.tokenizer

    @property
    def _model(self) -> str:
        return self._live.engine.settings.model

    async def ids(self, prompt: Prompt) -> list[int]:
        """Render and tokenize one prompt; refuse one that leaves no room for a token."""
        if isinstance(prompt, list):
            ids = prompt
        else:
            text = self.text(prompt)
            ids = await self.encode(text, special=isinstance(prompt, str))
        limit = self._live.engine.settings.max_model_len
        if len(ids) >= limit:
            raise BadRequestError(
                f"This model's maximum context length is {limit} tokens. However, your prompt "
                f"contains {len(ids)} input tokens, which exceeds this limit even without any "
                "output tokens. Please reduce the length of the input prompt.",
                param="input_tokens",
            )
        return ids

    async def encode(self, text: str, *, special: bool) -> list[int]:
        """Tokenize; a long text outside the event loop."""
        if len(text) < LARGE_TEXT:
            return self._tokenizer.encode(text, special=special)
        return await asyncio.to_thread(self._tokenizer.encode, text, special=special)

    async def answer(
        self, request: web.Request, ask: Ask, name: str, prompts: list[list[int]]
    ) -> web.StreamResponse:
        """Generate for every prompt, and answer as asked; the caller's end takes all back."""
        usage = Usage(prompt=sum(map(len, prompts)), reports_cache=self._front.reports_cache)
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
            length = max(length, ask.min_tokens)
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
            rank=ask.rank,
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
                token, text = tickets[choice].reply(given[choice])
                text = "" if finished == "stop" else text
                given[choice] += 1
                usage.generated += 1
                yield Piece(choice=choice, text=text, ids=(token,), finished=finished)
            under_way -= progress.finished is not None

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    async def _whole(
        self, ask: Ask, name: str, pieces: AsyncIterator[Piece], usage: Usage
    ) -> web.Response:
        made = [Piece(choice=index, text="") for index in range(len(ask.prompts))]
        async for piece in pieces:
            before = made[piece.choice]
            made[piece.choice] = replace(
                piece, text=before.text + piece.text, ids=before.ids + piece.ids
            )
        return json_response(self._as_whole(ask, name, made, usage))

    def _as_whole(self, ask: Ask, name: str, made: list[Piece], usage: Usage) -> object:
        match ask.api:
            case "messages":
                return whole_message(name, self._model, made[0], usage)
            case "responses":
                return ResponseStream(id=name, model=self._model).whole(made[0], usage)
            case "embeddings":
                return answers.whole_embeddings(name, self._model, len(made), usage)
            case "generate":
                return answers.whole_tokens(name, made, usage)
            case "chat" | "completions":
                return answers.whole(ask.api, name, self._model, made, usage)

    def _stream_shape(self, ask: Ask, name: str) -> answers.Stream:
        include_usage = ask.include_usage or self._front.force_include_usage
        if ask.api == "messages":
            return MessageStream(id=name, model=self._model)
        if ask.api == "responses":
            return ResponseStream(id=name, model=self._model)
        if ask.api == "generate":
            return answers.TokenStream(id=name, include_usage=include_usage)
        shape = answers.ChatStream if ask.api == "chat" else answers.CompletionStream
        return shape(
            id=name,
            model=self._model,
            include_usage=include_usage,
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
        if opening := shape.opening():
            await response.write(opening)
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

    def text(self, prompt: Conversation | str) -> str:
        """Write what the model reads; raises BadTemplateInputError."""
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.render(prompt.messages, prompt.options)


def json_response(content: object, status: int = 200) -> web.Response:
    """Write a JSON response."""
    return web.Response(
        body=msgspec.json.encode(content), status=status, content_type="application/json"
    )
