"""The profile in which Envoy hands a request over in one piece; no gateway has to offer it."""

from leadsman_bench.conformance.exchange import (
    BUFFERED,
    Breach,
    Exchange,
    Routed,
    destinations,
)
from leadsman_bench.conformance.script import (
    DONE,
    EVENT,
    MODELS,
    NOWHERE,
    STREAM,
    Target,
    check,
    post,
    sent_on,
)


@check("buffered: the body's answer names the destination, the headers' may", is_required=False)
async def buffered(target: Target) -> None:
    """Send a body whole, as Envoy does when it buffers."""
    body = target.completion()
    async with target.exchange(BUFFERED) as stream:
        endpoints = await _buffered(stream, body)
        sent_on(Routed(endpoints=endpoints))
        await stream.response(STREAM)


@check("buffered: a streamed response is answered piece by piece, or let go", is_required=False)
async def buffered_response(target: Target) -> None:
    """Answer with events, until the picker has seen enough."""
    body = target.completion()
    async with target.exchange(BUFFERED) as stream:
        await _buffered(stream, body)
        await stream.response(STREAM)
        for piece in (EVENT, EVENT, DONE):
            await stream.response_body(piece)
            answer = await stream.read()
            if answer is None:
                return
            if answer.WhichOneof("response") != "response_body":
                raise Breach(f"expected an answer to the body, got {answer}")
            if answer.response_body.response.HasField("body_mutation"):
                raise Breach("the response changed")


@check("buffered: a request without a body is routed at its headers", is_required=False)
async def buffered_headers_only(target: Target) -> None:
    """Ask for the models."""
    async with target.exchange(BUFFERED) as stream:
        await stream.headers(MODELS, end=True)
        sent_on(await stream.routed(until="request_headers"))


@check("buffered: a subset without a ready endpoint is 503", is_required=False)
async def buffered_nowhere(target: Target) -> None:
    """Allow somebody whom nobody knows; the refusal may come with the headers or the body."""
    body = target.completion()
    async with target.exchange(BUFFERED) as stream:
        await stream.headers(post(body), subset=[NOWHERE])
        answer = await stream.read()
        if answer is not None and answer.WhichOneof("response") == "request_headers":
            await stream.body(body, end=True)
            answer = await stream.read()
        if answer is None or answer.immediate_response.status.code != 503:
            raise Breach(f"expected an immediate response with 503, got {answer}")


@check("buffered: served feedback that names another endpoint is taken", is_required=False)
async def buffered_served_elsewhere(target: Target) -> None:
    """Say that somebody else served."""
    body = target.completion()
    async with target.exchange(BUFFERED) as stream:
        await _buffered(stream, body)
        await stream.response(STREAM, served=NOWHERE)


@check("buffered: clients that go away leave a picker that serves the next", is_required=False)
async def buffered_cancelled(target: Target) -> None:
    """Leave at every step, then be served."""
    body = target.completion()
    for steps in range(3):
        async with target.exchange(BUFFERED) as stream:
            await stream.headers(post(body))
            if steps:
                await stream.body(body, end=True)
            if steps > 1:
                await stream.expect("request_headers")
    async with target.exchange(BUFFERED) as stream:
        sent_on(Routed(endpoints=await _buffered(stream, body)))


async def _buffered(stream: Exchange, body: bytes) -> list[str]:
    await stream.headers(post(body))
    head = await stream.expect("request_headers")
    await stream.body(body, end=True)
    rest = await stream.expect("request_body")
    return destinations(head, head.request_headers) + destinations(rest, rest.request_body)
