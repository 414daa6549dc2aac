"""Asks an engine for all that predictions rest on: settings, events, usage, tokens, its clock.

The one request that is sent asks for one token, twice: an engine that reports cached tokens has
some to report the second time.
Source: vLLM 0.33 entrypoints/openai, --enable-prompt-tokens-details; engine flags as documented.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from leadsman.engine import EngineSettings
from leadsman.rules import is_known
from leadsman.units import Seconds, Tokens
from leadsman_engines.discovery import DiscoveredRank, UnknownSettingError, discover
from leadsman_engines.engine_pages import connects_to
from leadsman_engines.errors import EngineProtocolError
from leadsman_extproc.models import ServedModel
from leadsman_extproc.own_tokens import OwnTokens
from leadsman_extproc.probes import probes
from leadsman_operator.endpoint import Endpoint

from leadsman_cli.doctor.finding import Finding
from leadsman_cli.tokenize import EngineTokenizer

WITHIN: Final = aiohttp.ClientTimeout(total=60.0)
CONNECTS_WITHIN: Final[Seconds] = 3.0
MOST_SKEW: Final[Seconds] = 2.0
"""A Date header has whole seconds."""
EVENTS: Final = (
    """--kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq", """
    """"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}'"""
)


async def look(
    http: aiohttp.ClientSession,
    endpoint: Endpoint,
    models: Sequence[ServedModel],
    *,
    may_request: bool = True,
) -> AsyncIterator[Finding]:
    """Look at one engine."""
    where = endpoint.address
    try:
        found = await discover(http, endpoint.url, endpoint.profile)
    except UnknownSettingError as error:
        yield Finding("fault", where, f"{error.field} is not known", str(error))
        return
    except (EngineProtocolError, aiohttp.ClientError, OSError, TimeoutError) as error:
        problem = f"cannot be asked: {error or type(error).__name__}"
        yield Finding("fault", where, problem, "is the engine up, and the address its own?")
        return
    connects = await _connects_to(http, endpoint)
    if connects is not None:
        yield Finding(
            "fault",
            where,
            f"its KV events connect to {connects} and listen nowhere: nobody hears them",
            f"an address with `*` is listened at: start it with {EVENTS}",
        )
    for rank in found.ranks:
        name = where if rank.dp_rank is None else f"{where}#{rank.dp_rank}"
        for finding in _settings(name, rank.settings):
            yield finding
        async for finding in _events(name, rank):
            yield finding
    settings = found.ranks[0].settings
    if may_request:
        async for finding in _answers(http, endpoint, settings):
            yield finding
    async for finding in _tokens(http, where, settings.model, models):
        yield finding


def _settings(where: str, settings: EngineSettings) -> Iterator[Finding]:
    known = is_known(settings.version)
    told = f"{settings.engine} {settings.version} serves {settings.model}"
    if known:
        yield Finding("fine", where, told)
    else:
        yield Finding(
            "warning",
            where,
            f"{told}, newer than what the replay was held against",
            "watch `leadsman grade`; a newer Leadsman may know it",
        )
    if not settings.enable_prefix_caching:
        yield Finding("fine", where, "prefix caching is off: nothing is credited, nothing reused")


async def _connects_to(http: aiohttp.ClientSession, endpoint: Endpoint) -> str | None:
    """Say to which address an engine's events connect; None where a relay there is stated."""
    if endpoint.profile.kv_events is not None:
        return None
    with suppress(aiohttp.ClientError, TimeoutError, ValueError):
        url = f"{endpoint.url}/server_info?config_format=json"
        async with http.get(url, timeout=WITHIN) as response:
            return connects_to(await response.json(content_type=None))
    return None


async def _events(where: str, rank: DiscoveredRank) -> AsyncIterator[Finding]:
    if not rank.settings.enable_prefix_caching:
        return
    source = rank.events
    if source is None:
        yield Finding(
            "warning",
            where,
            "publishes no KV events: its cache is known only by what requests find",
            f"start it with {EVENTS}, or state `profile.kv_events`",
        )
        return
    if not await _connects(source.events):
        yield Finding(
            "fault",
            where,
            f"nobody listens at {source.events}, where its KV events should be",
            "open the port to Leadsman, or state `profile.kv_events`",
        )
        return
    yield Finding("fine", where, f"publishes KV events at {source.events}")
    if source.replay is None:
        yield Finding(
            "warning",
            where,
            "has no replay socket: missed events cannot be had again",
            f"start it with {EVENTS}",
        )
    elif not await _connects(source.replay):
        yield Finding(
            "fault", where, f"nobody listens at {source.replay}", "open the port to Leadsman"
        )


async def _connects(address: str) -> bool:
    parts = urlsplit(address)
    if parts.scheme != "tcp" or parts.port is None:
        return True
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECTS_WITHIN):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
            writer.close()
            return True
    return False


async def _answers(
    http: aiohttp.ClientSession, endpoint: Endpoint, settings: EngineSettings
) -> AsyncIterator[Finding]:
    where, usage, skew = endpoint.address, None, None
    prompt = "measure " * (3 * settings.block_size)
    message = {"role": "user", "content": prompt}
    body = {"model": settings.model, "messages": [message], "max_tokens": 1}
    try:
        for _ in range(2):
            url = f"{endpoint.url}/v1/chat/completions"
            async with http.post(url, json=body, timeout=WITHIN) as response:
                skew = _skew(response.headers.get("date"))
                said = await response.json(content_type=None)
                if response.status != 200:
                    change = "does it serve chat? `--no-requests` leaves this out"
                    yield Finding("warning", where, f"answers with {response.status}", change)
                    return
                usage = said.get("usage") if isinstance(said, dict) else None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        problem = f"does not answer: {error or type(error).__name__}"
        yield Finding("fault", where, problem, "look at its log")
        return
    for finding in (*_usage(where, usage, settings), *_clock(where, skew)):
        yield finding


def _usage(where: str, usage: Any, settings: EngineSettings) -> Iterator[Finding]:
    if not settings.enable_prefix_caching:
        return
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached: Tokens | None = details.get("cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        flag = "--enable-prompt-tokens-details"
        if settings.engine == "sglang":
            flag = "--enable-cache-report"
        yield Finding(
            "warning",
            where,
            "does not report cached tokens: what was credited cannot be graded by request",
            f"start it with {flag}",
        )
    else:
        yield Finding("fine", where, f"reports cached tokens ({cached} of a repeated prompt)")


def _skew(date: str | None) -> Seconds | None:
    with suppress(TypeError, ValueError):
        if date is not None:
            return parsedate_to_datetime(date).timestamp() - time.time()
    return None


def _clock(where: str, skew: Seconds | None) -> Iterator[Finding]:
    if skew is None:
        return
    if abs(skew) > MOST_SKEW:
        yield Finding(
            "warning",
            where,
            f"its clock is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}: predictions do "
            "not mind, but its log and ours cannot be laid side by side",
            "let both hosts follow one time server",
        )
    else:
        yield Finding("fine", where, "its clock is ours to 2 s")


async def _tokens(
    http: aiohttp.ClientSession, where: str, model: str, models: Sequence[ServedModel]
) -> AsyncIterator[Finding]:
    ours = next((one for one in models if model in (one.name, *one.aliases)), None)
    if ours is None or ours.text is None:
        yield Finding(
            "warning",
            where,
            f"{model} has no tokenizer here: an engine tokenizes each of its requests",
            "state its folder as `models[].path`",
        )
        return
    own, engine = OwnTokens([ours]), EngineTokenizer(http=http, ready=lambda _: [where])
    unlike = compared = 0
    for path, body in probes(model):
        question, tokens = own.question(path, body), own.tokens(path, body)
        theirs = None if question is None else await engine.ask(where, question)
        if tokens is not None and theirs is not None:
            compared += 1
            unlike += not np.array_equal(tokens, theirs)
    if not compared:
        yield Finding("warning", where, f"does not say how it tokenizes {model}", None)
    elif unlike:
        yield Finding(
            "fault",
            where,
            f"{unlike} of {compared} prompts of {model} have other tokens there",
            "state the engine's own chat template and tokenizer; `leadsman parity` shows where",
        )
    else:
        yield Finding("fine", where, f"all {compared} prompts of {model} have the same tokens")
