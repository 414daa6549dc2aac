"""What every gateway relies on, in full duplex: bodies, trailers, ends, health.

Source: Gateway API Inference Extension, proposal 004 and its conformance manifests; faults that
users reported of other pickers: gateway-api-inference-extension#3035 (bodies of many chunks),
#854 (128 KB and more), llm-d-router#2188; envoyproxy/envoy#46237 (a second end of the stream).
"""

import json

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from leadsman_bench.conformance.exchange import Breach
from leadsman_bench.conformance.script import (
    DONE,
    EVENT,
    MODELS,
    NOWHERE,
    STREAM,
    Target,
    check,
    on_its_way,
    post,
    sent_on,
    whole,
)


@check("a request without a body is routed at its headers")
async def headers_only(target: Target) -> None:
    """Ask for the models."""
    async with target.exchange() as stream:
        await stream.headers(MODELS, end=True)
        sent_on(await stream.routed(until="request_headers"))
        await stream.nothing_follows()


@check("a body in one piece comes back whole, after the headers, ended once")
async def one_piece(target: Target) -> None:
    """Send one piece."""
    body = target.completion()
    async with target.exchange() as stream:
        await stream.headers(post(body))
        await stream.body(body, end=True)
        sent_on(await stream.routed(until="request_body"), body)
        await stream.nothing_follows()


@check("nothing is answered before a body of many pieces is whole; then all of it comes back")
async def many_pieces(target: Target) -> None:
    """Send a megabyte in 16 KB pieces."""
    body = target.completion(1 << 20)
    async with target.exchange() as stream:
        await stream.headers(post(body))
        for at in range(0, len(body), 16_384):
            await stream.body(body[at : at + 16_384])
        await stream.is_quiet()
        await stream.body(b"", end=True)
        sent_on(await stream.routed(until="request_body"), body)


@check("a body of 8 MB comes back in pieces that every gateway takes")
async def long_body(target: Target) -> None:
    """Send eight megabytes."""
    body = target.completion(8 << 20)
    pieces = [body[at : at + 65_536] for at in range(0, len(body), 65_536)]
    sent_on(await whole(target, body, pieces=pieces), body)


@check("trailers end a request: its body comes back without an end, then the trailers")
async def request_trailers(target: Target) -> None:
    """End by trailers."""
    body = target.completion()
    async with target.exchange() as stream:
        await stream.headers(post(body))
        await stream.body(body)
        await stream.is_quiet()
        await stream.trailers()
        sent_on(await stream.routed(until="request_trailers"), body)


@check("a second end of the request is ignored")
async def second_end(target: Target) -> None:
    """Send the last piece twice, and go on."""
    body = target.completion()
    async with target.exchange() as stream:
        await stream.headers(post(body))
        await stream.body(body, end=True)
        await stream.body(b"", end=True)
        sent_on(await stream.routed(until="request_body"), body)
        await stream.nothing_follows()
        await stream.response({":status": "200"}, end=True)


@check("what is no request to a model passes: its body comes back unchanged")
async def other_traffic(target: Target) -> None:
    """Send bytes to a path of nobody."""
    body = bytes(range(256)) * 40
    async with target.exchange() as stream:
        await stream.headers({**post(body), ":path": "/anything"})
        await stream.body(body, end=True)
        sent_on(await stream.routed(until="request_body"), body)


@check("each piece of a streamed response is echoed at once, wherever its events are cut")
async def split_events(target: Target) -> None:
    """Cut the response in the middle of events and of characters."""
    answer = EVENT * 3 + DONE
    async with on_its_way(target) as (stream, endpoints):
        await stream.response(STREAM, served=endpoints[0])
        for at in range(0, len(answer), 7):
            piece = answer[at : at + 7]
            await stream.response_body(piece)
            echo = (await stream.expect("response_body")).response_body.response.body_mutation
            if echo.streamed_response.body != piece:
                raise Breach("a piece of the response changed, or waited")
        await stream.response_body(b"", end=True)
        await stream.echoed("response_body")


@check("a response that is ended by trailers comes back whole")
async def response_trailers(target: Target) -> None:
    """End the response by trailers."""
    answer = EVENT + DONE
    async with on_its_way(target) as (stream, _):
        await stream.response(STREAM)
        await stream.response_body(answer)
        await stream.response_trailers()
        if await stream.echoed("response_trailers") != answer:
            raise Breach("the response changed")


@check("a response of one megabyte that is no stream comes back whole")
async def long_response(target: Target) -> None:
    """Answer with plain JSON."""
    answer = json.dumps({"text": "x" * (1 << 20)}).encode()
    async with on_its_way(target) as (stream, _):
        await stream.response({":status": "200", "content-type": "application/json"})
        for at in range(0, len(answer), 32_768):
            await stream.response_body(answer[at : at + 32_768], end=at + 32_768 >= len(answer))
        if await stream.echoed("response_body") != answer:
            raise Breach("the response changed")


@check("the gateway's own error in the engine's place is let through")
async def local_reply(target: Target) -> None:
    """Answer 503 before anything went upstream."""
    async with on_its_way(target) as (stream, _):
        await stream.response({":status": "503", "content-type": "text/plain"})
        await stream.response_body(b"upstream connect error", end=True)
        await stream.echoed("response_body")


@check("served feedback that names another endpoint than the pick is taken")
async def served_elsewhere(target: Target) -> None:
    """Say that somebody else served."""
    async with on_its_way(target) as (stream, _):
        await stream.response(STREAM, served=NOWHERE)
        await stream.response_body(EVENT + DONE, end=True)
        if await stream.echoed("response_body") != EVENT + DONE:
            raise Breach("the response changed")


@check("clients that go away at any step leave a picker that serves the next")
async def cancelled(target: Target) -> None:
    """Leave at every step, then be served."""
    body = target.completion()
    for steps in range(4):
        async with target.exchange() as stream:
            await stream.headers(post(body))
            if steps:
                await stream.body(body[:10])
            if steps > 1:
                await stream.body(body[10:], end=True)
                await stream.routed(until="request_body")
            if steps > 2:
                await stream.response(STREAM)
    sent_on(await whole(target, body), body)


@check("health answers under the names that gateways and charts ask for")
async def health(target: Target) -> None:
    """Ask for each."""
    stub = health_pb2_grpc.HealthStub(target.channel)
    for name in ("", "envoy.service.ext_proc.v3.ExternalProcessor"):
        try:
            asked = health_pb2.HealthCheckRequest(service=name)
            answer = await stub.Check(asked, timeout=target.patience)
        except grpc.aio.AioRpcError as error:
            raise Breach(f"{name!r}: {error.code().name}") from None
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            raise Breach(f"{name!r} is not serving")
