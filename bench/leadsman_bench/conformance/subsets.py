"""What a gateway's hint of eligible endpoints has to mean, and what no endpoint at all means.

Source: Gateway API Inference Extension, proposal 004; llm-d-router compares addresses alone.
"""

from leadsman_bench.conformance.exchange import Breach, Routed
from leadsman_bench.conformance.script import (
    MODELS,
    NOWHERE,
    Target,
    check,
    post,
    refused,
    sent_on,
    whole,
)


@check("a subset hint in a list is obeyed")
async def subset_list(target: Target) -> None:
    """Allow one endpoint."""
    [only, *_] = sent_on(await whole(target, target.completion()))
    _only(only, await whole(target, target.completion(), subset=[only]))


@check("a subset hint in one string is obeyed")
async def subset_string(target: Target) -> None:
    """Allow one endpoint, and one of nobody."""
    [only, *_] = sent_on(await whole(target, target.completion()))
    _only(only, await whole(target, target.completion(), subset=f"{NOWHERE}, {only}"))


@check("a subset hint is compared by address and port")
async def subset_port(target: Target) -> None:
    """Allow the right address with a port of nobody."""
    [only, *_] = sent_on(await whole(target, target.completion()))
    host = only.rpartition(":")[0]
    refused(await whole(target, target.completion(), subset=[f"{host}:1"]), 503)


@check("a subset hint in one string is compared by address and port")
async def subset_string_port(target: Target) -> None:
    """Allow the right address with ports of nobody."""
    [only, *_] = sent_on(await whole(target, target.completion()))
    host = only.rpartition(":")[0]
    refused(await whole(target, target.completion(), subset=f"{host}:1, {host}:2"), 503)


@check("all that a request may fall back to is of its subset")
async def subset_fallbacks(target: Target) -> None:
    """Allow what was named before, without the first; where that is nobody, somebody else."""
    named = sent_on(await whole(target, target.completion()))
    allowed = named[1:] or named
    routed = await whole(target, target.completion(), subset=[*allowed, NOWHERE])
    if outside := set(sent_on(routed)) - set(allowed):
        raise Breach(f"{', '.join(sorted(outside))} is not of the subset {allowed}")


@check("a refusal is the last that is said of a request")
async def refusal_is_last(target: Target) -> None:
    """Be refused, and go on all the same."""
    body = target.completion()
    async with target.exchange() as stream:
        await stream.headers(post(body), subset=[])
        await stream.body(body, end=True)
        refused(await stream.routed(until="request_body"), 503)
        await stream.nothing_follows()


@check("an empty subset is no endpoint: 503")
async def subset_empty(target: Target) -> None:
    """Allow nobody."""
    refused(await whole(target, target.completion(), subset=[]), 503)


@check("a subset without a ready endpoint is 503")
async def subset_nowhere(target: Target) -> None:
    """Allow somebody whom nobody knows."""
    refused(await whole(target, target.completion(), subset=[NOWHERE]), 503)


@check("a request without a body obeys the subset too")
async def subset_headers_only(target: Target) -> None:
    """Ask for the models of nobody."""
    async with target.exchange() as stream:
        await stream.headers(MODELS, end=True, subset=[NOWHERE])
        refused(await stream.routed(until="request_headers"), 503)


def _only(endpoint: str, routed: Routed) -> None:
    if sent_on(routed) != [endpoint]:
        raise Breach(f"{routed.endpoints} is not {endpoint}, the only one allowed")
