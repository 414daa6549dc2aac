"""What checks are made of: a target, one exchange or a few, and what has to come of a request.

Each check is a sentence and how to try it; it ends in order or with a `Breach`. What the protocol
demands is required; the buffered profile is not, since gateways may only offer full duplex. What a
check sends is a completion of a model that the target serves, unless it says so.
"""

import ipaddress
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from leadsman.units import Seconds
from leadsman_extproc.events import Profile

from leadsman_bench.conformance.exchange import DUPLEX, Breach, Exchange, Routed

MODELS: Final = {":method": "GET", ":path": "/v1/models", ":authority": "conformance"}
STREAM: Final = {":status": "200", "content-type": "text/event-stream"}
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
