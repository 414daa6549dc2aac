"""From the bytes of a request to what the core decides on: tokens, block keys, wishes.

The question: what will this request be to an engine. Three ways, best first: the model's own
tokenizer and template (exact, as long as engines give the same: see `parity`); the engine's
`/tokenize` (exact, but a round trip); an estimate, from what answers of this model have reported
(`guesses`), which says that it is one and carries no keys. A prompt with images, one that the
engine truncates, or one whose history the engine alone has, is estimated too: the tokens that it
becomes are known to the engine alone. But what stands before the first image is certain, and keyed.

Work that takes long (a long text, seen for the first time) goes to a thread; what was seen before
does not, so most turns of most conversations never leave the event loop.

Keys are made for each block size that the model's workers have, in the namespace of the
deployment's secret, the model, the adapter and the cache salt. Several prompts in one body are
requests of their own to the engine: their tokens are summed, the keys are the longest one's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import msgspec
from leadsman.keys import namespace_seed
from leadsman.request import ENDLESS, Request
from leadsman.units import Keys, TokenIds, Tokens

from leadsman_extproc.asking import Question, question
from leadsman_extproc.bodies import read_body
from leadsman_extproc.body import BadRequest, Body, NotForUs, ResponsesPrompt
from leadsman_extproc.body_memory import BodyMemory
from leadsman_extproc.chat import media_bytes
from leadsman_extproc.grants import Grant
from leadsman_extproc.guesses import NOTHING, Guess, Guesses
from leadsman_extproc.models import ServedModel
from leadsman_extproc.own_tokens import OwnTokens, conversation, wraps
from leadsman_extproc.parity import LARGEST, Parity, Sample
from leadsman_extproc.ports import Arrival, Read, ReadRequest, TokensBy
from leadsman_extproc.prompts import Prompt
from leadsman_extproc.shapes import Pending
from leadsman_extproc.wishes import HeaderNames, read_wishes


class Tokenize(Protocol):
    """Asks an engine of a model which tokens a body becomes; None where none would say."""

    async def __call__(self, model: str, question: Question) -> TokenIds | None:
        """Return the ids, special tokens included."""
        ...


def _alike(_objective: str) -> int:
    return 0


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads requests for the models that it knows, and estimates those that it does not.

    block_sizes: those of a model's workers. tokenize: the engine's own tokenizer, where reachable.
    only_model: the one that all workers serve, where it is one, for requests that name none.
    parity: whether our own is believed; without it, it is. importance: of an objective, by name.
    """

    models: Sequence[ServedModel] = ()
    secret: bytes = b""
    block_sizes: Callable[[str], tuple[Tokens, ...]]
    headers: HeaderNames = field(default_factory=HeaderNames)
    tokenize: Tokenize | None = None
    only_model: Callable[[], str | None] = lambda: None
    parity: Parity | None = None
    importance: Callable[[str], int] = _alike
    own: OwnTokens = field(init=False)
    guesses: Guesses = field(default_factory=Guesses)
    _bodies: BodyMemory = field(default_factory=BodyMemory)

    def __post_init__(self) -> None:
        self.own = OwnTokens(self.models)

    def read(self, arrival: Arrival) -> Read | Awaitable[Read]:
        """Read one request; a long new text is tokenized in a thread, an unknown by an engine."""
        pending = self.begin(arrival)
        if not isinstance(pending, Pending):
            return pending
        if self.parity is not None and not self.parity.trusts(pending.model):
            parts = msgspec.structs.replace(pending.parts, plans=())
            pending = msgspec.structs.replace(pending, parts=parts)
        known = pending.parts.plans or pending.parts.ids or pending.parts.media
        if self.tokenize is not None and not known:
            return self._ask(self.tokenize, pending)
        if pending.needs_offload:
            return asyncio.to_thread(self.finish, pending)
        return self.finish(pending)

    async def _ask(self, tokenize: Tokenize, pending: Pending) -> ReadRequest:
        asked = question(pending.body, pending.arrival.body, self.own.text(pending.body))
        ids = None if asked is None else await tokenize(pending.model, asked)
        return self._request(pending, [] if ids is None else [Prompt([ids])])

    def begin(self, arrival: Arrival) -> Pending | NotForUs | BadRequest:
        """Parse, render, and look up what was tokenized before."""
        body = read_body(arrival.path, arrival.body, self._bodies.decode)
        if not isinstance(body, Body):
            return body
        if body.model is None:
            only = self.only_model()
            if only is None:
                return NotForUs(why="no model")
            body = msgspec.structs.replace(body, model=only)
        wishes = read_wishes(arrival.headers, self.headers, body)
        if isinstance(wishes, BadRequest):
            return wishes
        model, adapter = self.own.named(body.model)
        text = self.own.text(body)
        parts = self.own.plans(body)
        missing = sum(plan.missing_bytes for plan in parts.plans)
        return Pending(
            arrival=arrival,
            body=body,
            wishes=wishes,
            model=model,
            adapter=adapter,
            wraps=wraps(body.prompt),
            parts=parts,
            needs_offload=text is not None and missing > text.tokenizer.slow_above,
        )

    def finish(self, pending: Pending) -> ReadRequest:
        """Tokenize what is missing and make the keys."""
        if not pending.parts.plans:
            return self._request(pending, pending.parts.ids)
        text = self.own.text(pending.body)
        assert text is not None
        prompts = [text.segments.finish(plan) for plan in pending.parts.plans]
        if pending.wraps:
            prompts = [Prompt([text.tokenizer.wrapped(one.whole())]) for one in prompts]
        read = self._request(pending, prompts)
        if self.parity is not None and read.request.tokens_are_exact and len(prompts) == 1:
            self._offer(self.parity, pending, prompts[0])
        return read

    def _offer(self, parity: Parity, pending: Pending, prompt: Prompt) -> None:
        arrival, model = pending.arrival, pending.model
        if pending.body.size <= LARGEST and parity.wants(model, arrival.at):
            sample = Sample(model=model, path=arrival.path, sent=arrival.body, prompt=prompt)
            parity.offer(sample, arrival.at)

    def doubt(self, model: str) -> None:
        """Compare this model's tokens soon: an answer reported another number than ours."""
        if self.parity is not None:
            self.parity.doubt(model)

    def learn(self, grant: Grant) -> None:
        """Take from what an answer reported what guesses should have been, and will be."""
        usage = grant.usage
        if usage.prompt_tokens is None:
            return
        if not grant.request.tokens_are_exact:
            self.guesses.learn(grant.request.model, grant.guess, usage.prompt_tokens)
        if grant.response is not None:
            taken = usage.prompt_tokens + (usage.completion_tokens or 0)
            self.guesses.remember(grant.response, taken)

    def _request(self, pending: Pending, prompts: Sequence[Prompt]) -> ReadRequest:
        body, wishes, arrival = pending.body, pending.wishes, pending.arrival
        counted = sum(map(len, prompts))
        tokens = counted or self._estimate(pending)
        tokens += self.guesses.media(pending.model, pending.parts.media)
        exact = bool(prompts) and not pending.parts.media
        certain = max(prompts, key=len, default=None)
        if not exact and certain is not None:
            certain = certain.beginning(pending.parts.certain)
        if body.truncates is not None and tokens > body.truncates:
            tokens, exact, certain = body.truncates, False, None
        request = Request(
            id=arrival.id,
            model=pending.model,
            prompt_tokens=tokens,
            arrived_at=arrival.at,
            keys={} if certain is None else self._keys(pending, certain),
            tokens_are_exact=exact,
            max_tokens=body.max_tokens,
            min_tokens=_least(body),
            priority=body.priority,
            importance=0 if wishes.objective is None else self.importance(wishes.objective),
            tenant=wishes.tenant,
            session=wishes.session or body.session,
            objective=wishes.objective,
            waited=wishes.waited,
            max_queue_wait=wishes.max_queue_wait,
            ttft_objective=wishes.ttft_objective,
            prefers_cache=wishes.prefers_cache,
            reads_cache=body.reads_cache,
            endpoints=arrival.subset,
        )
        known = _known_by(pending, prompts, is_cut=tokens == body.truncates and not exact)
        guess = _guess(known, pending, counted)
        return ReadRequest(request=request, api=body.api, guess=guess, tokens_by=known)

    def _keys(self, pending: Pending, prompt: Prompt) -> Mapping[Tokens, Keys]:
        seed = _seed(self.secret, pending.model, pending.adapter, pending.body.cache_salt)
        return {size: prompt.keys(size, seed) for size in self.block_sizes(pending.model)}

    def _estimate(self, pending: Pending) -> Tokens:
        size, prompt = pending.body.size, pending.body.prompt
        if pending.parts.media:
            size -= media_bytes(conversation(prompt))
        tokens = self.guesses.text(pending.model, size)
        if isinstance(prompt, ResponsesPrompt) and prompt.goes_on:
            tokens += self.guesses.before(prompt.fields.get("previous_response_id"))
        return tokens


def _least(body: Body) -> Tokens:
    """Give how long an answer is at least; one that ignores its end goes on to its cap."""
    if body.ignores_eos:
        return ENDLESS if body.max_tokens is None else body.max_tokens
    return body.min_tokens


def _guess(known: TokensBy, pending: Pending, counted: Tokens) -> Guess:
    if known is TokensBy.ESTIMATE:
        return Guess(text_size=pending.body.size)
    if known is TokensBy.MEDIA and counted:
        return Guess(media=pending.parts.media, text_tokens=counted)
    return NOTHING


def _known_by(pending: Pending, prompts: Sequence[Prompt], *, is_cut: bool) -> TokensBy:
    prompt, parts = pending.body.prompt, pending.parts
    if isinstance(prompt, ResponsesPrompt) and prompt.goes_on:
        return TokensBy.HISTORY
    if parts.media:
        return TokensBy.MEDIA
    if is_cut:
        return TokensBy.CUT
    if not prompts:
        return TokensBy.ESTIMATE
    if parts.plans:
        return TokensBy.OWN
    return TokensBy.CLIENT if parts.ids else TokensBy.ENGINE


@lru_cache(maxsize=4096)
def _seed(secret: bytes, model: str, lora: str | None, cache_salt: str | None) -> int:
    return namespace_seed(secret=secret, model=model, lora=lora, cache_salt=cache_salt)
