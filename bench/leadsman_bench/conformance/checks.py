"""What an endpoint picker has to do, one check a sentence.

Each check is one exchange, or a few, and ends in order or with a `Breach`. Those that the
protocol demands are required; the buffered profile is not, since gateways may only offer full
duplex. What a check sends is a completion of a model that the target serves, unless it says so.

Source: Gateway API Inference Extension, proposal 004 and its conformance manifests; faults that
users reported of other pickers: gateway-api-inference-extension#3035 (bodies of many chunks),
#854 (128 KB and more), llm-d-router#2188; envoyproxy/envoy#46237 (a second end of the stream).
"""

import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from leadsman.units import Seconds
from leadsman_extproc.events import Profile

from leadsman_bench.conformance.exchange import (
    BUFFERED,
    DUPLEX,
    Breach,
    Exchange,
    Routed,
    destinations,
)

EVENT: Final = b'data: {"choices":[{"index":0,"delta":{"content":"\xc3\xa9t\xc3\xa9"}}]}\n\n'
DONE: Final = b"data: [DONE]\n\n"
NOWHERE: Final = "192.0.2.1:9"
"""An address that belongs to nobody. Source: RFC 5737."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The picker under test. patience: seconds within which it has to answer."""

    channel: Any
    model: str
    patience: Seconds

    def exchange(self, profile: Profile = DUPLEX) -> Exchange:
        """Open a stream as a gateway with this profile does."""
        return Exchange(self.channel, profile, self.patience)

    def completion(self, size: int = 0) -> bytes:
        """Make the body of a request, with so many bytes of text."""
        prompt = "Sound the depth. " + "x" * size
        wanted = {"model": self.model, "prompt": prompt, "stream": True, "max_tokens": 8}
        return json.dumps(wanted).encode()


Run: TypeAlias = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One sentence and how to try it."""

    sentence: str
    run: Run
    is_required: bool


CHECKS: list[Check] = []


def check(sentence: str, *, is_required: bool = True) -> Callable[[Run], Run]:
    """Add a check to the script."""

    def add(run: Run) -> Run:
        CHECKS.append(Check(sentence=sentence, run=run, is_required=is_required))
        return run

    return add


def post(body: bytes) -> dict[str, str]:
    """Make the headers of a completion."""
    return {
        ":method": "POST",
        ":path": "/v1/completions",
        ":authority": "conformance",
        "content-type": "application/json",
        "content-length": str(len(body)),
    }


def sent_on(routed: Routed, body: bytes | None = None) -> list[str]:
    """The request has to go on, to addresses, with its body whole; returns the addresses."""
    if routed.status is not None:
        raise Breach(f"it was refused with {routed.status}")
    if not routed.endpoints:
        raise Breach("no destination was named")
    for endpoint in routed.endpoints:
        _is_address(endpoint)
    if body is not None and routed.body != body:
        raise Breach(f"{len(body)} bytes of body came back as {len(routed.body)}, or changed")
    return routed.endpoints


def refused(routed: Routed, status: int) -> None:
    """The request has to be refused with this status."""
    if routed.status != status:
        came = routed.status or f"a way to {routed.endpoints}"
        raise Breach(f"expected an immediate response with {status}, got {came}")


def _is_address(endpoint: str) -> None:
    host, _, port = endpoint.rpartition(":")
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        raise Breach(f"{endpoint!r} is not an IP address and a port") from None
    if not port.isdigit():
        raise Breach(f"{endpoint!r} has no port")


@asynccontextmanager
async def on_its_way(target: Target) -> AsyncIterator[tuple[Exchange, list[str]]]:
    """Have a request sent on in full duplex; gives the stream, for the response, and where to."""
    body = target.completion()
    async with target.exchange() as stream:
        await stream.headers(post(body))
        await stream.body(body, end=True)
        yield stream, sent_on(await stream.routed(until="request_body"), body)


async def whole(
    target: Target, body: bytes, *, pieces: Sequence[bytes] | None = None, subset: object = None
) -> Routed:
    """Send a request in full duplex and read how it is answered."""
    async with target.exchange() as stream:
        await stream.headers(post(body), subset=subset)
        parts = [body] if pieces is None else pieces
        for number, piece in enumerate(parts, start=1):
            await stream.body(piece, end=number == len(parts))
        return await stream.routed(until="request_body")


@check("a request without a body is routed at its headers")
async def headers_only(target: Target) -> None:
    """Ask for the models."""
    async with target.exchange() as stream:
        wanted = {":method": "GET", ":path": "/v1/models", ":authority": "conformance"}
        await stream.headers(wanted, end=True)
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
        await stream.response(_STREAM, served=endpoints[0])
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
        await stream.response(_STREAM)
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
        await stream.response(_STREAM, served=NOWHERE)
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
                await stream.response(_STREAM)
    sent_on(await whole(target, body), body)


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
        wanted = {":method": "GET", ":path": "/v1/models", ":authority": "conformance"}
        await stream.headers(wanted, end=True, subset=[NOWHERE])
        refused(await stream.routed(until="request_headers"), 503)


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


@check("buffered: the body's answer names the destination, the headers' may", is_required=False)
async def buffered(target: Target) -> None:
    """Send a body whole, as Envoy does when it buffers."""
    body = target.completion()
    async with target.exchange(BUFFERED) as stream:
        endpoints = await _buffered(stream, body)
        sent_on(Routed(endpoints=endpoints))
        await stream.response(_STREAM)


@check("buffered: a streamed response is answered piece by piece, or let go", is_required=False)
async def buffered_response(target: Target) -> None:
    """Answer with events, until the picker has seen enough."""
    body = target.completion()
    async with target.exchange(BUFFERED) as stream:
        await _buffered(stream, body)
        await stream.response(_STREAM)
        for piece in (EVENT, EVENT, DONE):
            await stream.response_body(piece)
            answer = await stream.read()
            if answer is None:
                return
            if answer.WhichOneof("response") != "response_body":
                raise Breach(f"expected an answer to the body, got {answer}")
            if answer.response_body.response.HasField("body_mutation"):
                raise Breach("the response changed")


async def _buffered(stream: Exchange, body: bytes) -> list[str]:
    await stream.headers(post(body))
    head = await stream.expect("request_headers")
    await stream.body(body, end=True)
    rest = await stream.expect("request_body")
    return destinations(head, head.request_headers) + destinations(rest, rest.request_body)


def _only(endpoint: str, routed: Routed) -> None:
    if sent_on(routed) != [endpoint]:
        raise Breach(f"{routed.endpoints} is not {endpoint}, the only one allowed")


_STREAM: Final = {":status": "200", "content-type": "text/event-stream"}
