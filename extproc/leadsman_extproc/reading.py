"""From the bytes of a request to what the core decides on: tokens, block keys, wishes.

The question: what will this request be to an engine. Three ways, best first: the model's own
tokenizer and template (exact); the engine's `/tokenize` (exact, but a round trip); an estimate,
from the bytes that a token of this model has taken lately, which says that it is one and carries
no keys. A prompt with images, or one that the engine truncates, is estimated too: the tokens that
it becomes are known to the engine alone.

Work that takes long (a long text, seen for the first time) goes to a thread; what was seen before
does not, so most turns of most conversations never leave the event loop.

Keys are made for each block size that the model's workers have, in the namespace of the
deployment's secret, the model, the adapter and the cache salt. Several prompts in one body are
requests of their own to the engine: their tokens are summed, the keys are the longest one's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol

import msgspec
from leadsman.keys import namespace_seed
from leadsman.request import Request
from leadsman.units import Keys, TokenIds, Tokens

from leadsman_extproc.bodies import read_body
from leadsman_extproc.body import BadRequest, Body, NotForUs, RawPrompts
from leadsman_extproc.body_memory import BodyMemory
from leadsman_extproc.models import ModelText, Rendered
from leadsman_extproc.ports import Arrival, Read, ReadRequest
from leadsman_extproc.prompts import Prompt
from leadsman_extproc.segments import Plan
from leadsman_extproc.templates import TemplateError
from leadsman_extproc.wishes import HeaderNames, Wishes, read_wishes

LOG: Final = logging.getLogger(__name__)
FIRST_BYTES_PER_TOKEN: Final = 4.0
_TOKENS_PER_MEDIUM: Final = 1000
"""A picture of a megapixel takes some 1,000 to 1,300 in Qwen-VL's and Llama's families."""
_WEIGHT: Final = 0.05
"""How much one answer's usage moves the estimate of bytes a token."""


class Tokenize(Protocol):
    """Asks an engine which tokens a body's prompt becomes; None where none would say."""

    async def __call__(self, model: str, path: str, body: bytes) -> TokenIds | None:
        """Return the ids, special tokens included."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that engines serve under `name`; `aliases` name it too, `adapters` are its LoRAs."""

    name: str
    text: ModelText | None = None
    aliases: Sequence[str] = ()
    adapters: Sequence[str] = ()


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is read but not tokenized.

    plans: texts to tokenize; ids: prompts that came as ids; both empty where only the engine can
    say. media: items that add tokens of their own. needs_offload: `finish` is worth a thread.
    """

    arrival: Arrival
    body: Body
    wishes: Wishes
    model: str
    adapter: str | None
    wraps: bool = False
    plans: Sequence[Plan] = ()
    ids: Sequence[TokenIds] = ()
    media: int = 0
    needs_offload: bool = False


@dataclass(slots=True, kw_only=True)
class Reader:
    """Reads requests for the models that it knows, and estimates those that it does not.

    block_sizes: those of a model's workers. tokenize: the engine's own tokenizer, where reachable.
    """

    models: Sequence[ServedModel] = ()
    secret: bytes = b""
    block_sizes: Callable[[str], tuple[Tokens, ...]]
    headers: HeaderNames = field(default_factory=HeaderNames)
    tokenize: Tokenize | None = None
    _names: dict[str, tuple[ServedModel, str | None]] = field(init=False)
    _bytes_per_token: dict[str, float] = field(default_factory=dict)
    _bodies: BodyMemory = field(default_factory=BodyMemory)

    def __post_init__(self) -> None:
        self._names = {}
        for model in self.models:
            self._names |= dict.fromkeys((model.name, *model.aliases), (model, None))
            self._names |= {adapter: (model, adapter) for adapter in model.adapters}

    def read(self, arrival: Arrival) -> Read | Awaitable[Read]:
        """Read one request; a long new text is tokenized in a thread, an unknown by an engine."""
        pending = self.begin(arrival)
        if not isinstance(pending, Pending):
            return pending
        if self.tokenize is not None and not pending.plans and not pending.ids:
            return self._ask(self.tokenize, pending)
        if pending.needs_offload:
            return asyncio.to_thread(self.finish, pending)
        return self.finish(pending)

    async def _ask(self, tokenize: Tokenize, pending: Pending) -> ReadRequest:
        arrival = pending.arrival
        ids = await tokenize(pending.model, arrival.path, arrival.body)
        return self._request(pending, [] if ids is None else [Prompt([ids])])

    def begin(self, arrival: Arrival) -> Pending | NotForUs | BadRequest:
        """Parse, render, and look up what was tokenized before."""
        body = read_body(arrival.path, arrival.body, self._bodies.decode)
        if not isinstance(body, Body):
            return body
        wishes = read_wishes(arrival.headers, self.headers, body)
        if isinstance(wishes, BadRequest):
            return wishes
        served, adapter = self._names.get(body.model, (None, None))
        model = body.model if served is None else served.name
        text = None if served is None else served.text
        plans, ids, media = self._plans(body, text)
        missing = sum(plan.missing_bytes for plan in plans)
        return Pending(
            arrival=arrival,
            body=body,
            wishes=wishes,
            model=model,
            adapter=adapter,
            wraps=isinstance(body.prompt, RawPrompts) and body.prompt.specials,
            plans=plans,
            ids=ids,
            media=media,
            needs_offload=text is not None and missing > text.tokenizer.slow_above,
        )

    def finish(self, pending: Pending) -> ReadRequest:
        """Tokenize what is missing and make the keys."""
        if not pending.plans:
            return self._request(pending, [Prompt([ids]) for ids in pending.ids])
        text = self._names[pending.body.model][0].text
        assert text is not None
        prompts = [text.segments.finish(plan) for plan in pending.plans]
        if pending.wraps:
            prompts = [Prompt([text.tokenizer.wrapped(one.whole())]) for one in prompts]
        return self._request(pending, prompts)

    def learn(self, model: str, size: int, prompt_tokens: Tokens) -> None:
        """Take from an answer's usage how many bytes of body a token of this model takes."""
        if prompt_tokens > 0 and size > 0:
            before = self._bytes_per_token.get(model, FIRST_BYTES_PER_TOKEN)
            step = _WEIGHT * (size / prompt_tokens - before)
            self._bytes_per_token[model] = before + step

    def _plans(
        self, body: Body, text: ModelText | None
    ) -> tuple[Sequence[Plan], Sequence[TokenIds], int]:
        """Look up the prompts' segments; count the media among them."""
        if isinstance(body.prompt, RawPrompts):
            if body.prompt.ids:
                return (), body.prompt.ids, 0
            rendered = [Rendered(text=prompt.encode()) for prompt in body.prompt.texts]
        elif text is not None:
            try:
                rendered = [text.render(body.prompt)]
            except TemplateError as problem:
                LOG.info("no text by the template", extra={"model": body.model, "why": problem})
                return (), (), 0
        if text is None:
            return (), (), 0
        plans = [text.segments.plan(prompt.text) for prompt in rendered]
        return plans, (), sum(len(prompt.media) for prompt in rendered)

    def _request(self, pending: Pending, prompts: Sequence[Prompt]) -> ReadRequest:
        body, wishes, arrival = pending.body, pending.wishes, pending.arrival
        tokens = sum(map(len, prompts)) or self._estimate(pending)
        tokens += pending.media * _TOKENS_PER_MEDIUM
        exact = bool(prompts) and not pending.media
        if body.truncates is not None and tokens > body.truncates:
            tokens, exact = body.truncates, False
        request = Request(
            id=arrival.id,
            model=pending.model,
            prompt_tokens=tokens,
            arrived_at=arrival.at,
            keys=self._keys(pending, max(prompts, key=len)) if exact else {},
            tokens_are_exact=exact,
            max_tokens=body.max_tokens,
            priority=body.priority,
            tenant=wishes.tenant,
            session=wishes.session or body.session,
            objective=wishes.objective,
            max_queue_wait=wishes.max_queue_wait,
            ttft_objective=wishes.ttft_objective,
            prefers_cache=wishes.prefers_cache,
            reads_cache=body.reads_cache,
            endpoints=arrival.subset,
        )
        return ReadRequest(request=request, api=body.api)

    def _keys(self, pending: Pending, prompt: Prompt) -> Mapping[Tokens, Keys]:
        seed = _seed(self.secret, pending.model, pending.adapter, pending.body.cache_salt)
        return {size: prompt.keys(size, seed) for size in self.block_sizes(pending.model)}

    def _estimate(self, pending: Pending) -> Tokens:
        ratio = self._bytes_per_token.get(pending.model, FIRST_BYTES_PER_TOKEN)
        return max(1, round(pending.body.size / ratio))


@lru_cache(maxsize=4096)
def _seed(secret: bytes, model: str, lora: str | None, cache_salt: str | None) -> int:
    return namespace_seed(secret=secret, model=model, lora=lora, cache_salt=cache_salt)
