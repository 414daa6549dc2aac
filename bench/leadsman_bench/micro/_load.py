"""A small load generator: connections that send their next request when the last is answered.

Raw sockets on uvloop, some 40 us a request. Each body is new: a counter stands in its last
message, so that no two requests are the same while everything before it is.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, cast
from urllib.parse import urlsplit

import uvloop
from leadsman.units import Seconds

_DIGITS: Final = 8
_PLACE: Final = b"#" * _DIGITS


@dataclass(frozen=True, slots=True)
class Load:
    """What one run saw. p50: seconds from a request's first byte to its answer's last."""

    requests: int
    rate: float
    p50: Seconds


class LoadError(Exception):
    """An answer that was no success: the figures would be worth nothing."""


def requests(bodies: Sequence[bytes]) -> Iterator[bytes]:
    """Yield whole requests for ever; each body has the counter's place in it once."""
    parts = []
    for body in bodies:
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        before, place, after = body.partition(_PLACE)
        assert place, "a body has no place for the counter"
        parts.append((head + before, after))
    for number, (before, after) in enumerate(itertools.cycle(parts)):
        yield b"%b%08d%b" % (before, number, after)


def place() -> str:
    """Return what stands in a body where the counter goes."""
    return _PLACE.decode()


def run(url: str, source: Iterator[bytes], *, clients: int, seconds: Seconds) -> Load:
    """Load `url` for a while. Raises LoadError at the first answer that is no success."""
    return uvloop.run(_run(url, source, clients, seconds))


async def _run(url: str, source: Iterator[bytes], clients: int, seconds: Seconds) -> Load:
    loop = asyncio.get_running_loop()
    parts = urlsplit(url)
    began = time.perf_counter()
    until, waits = began + seconds, list[Seconds]()
    done = [loop.create_future() for _ in range(clients)]
    for future in done:
        await loop.create_connection(
            lambda future=future: _Client(source, until, waits, future),  # type: ignore[misc]  # the loop's own future
            parts.hostname or "",
            parts.port or 80,
        )
    await asyncio.gather(*done)
    return Load(len(waits), len(waits) / (time.perf_counter() - began), median(waits))


class _Client(asyncio.Protocol):
    def __init__(
        self,
        source: Iterator[bytes],
        until: float,
        waits: list[Seconds],
        done: "asyncio.Future[None]",
    ) -> None:
        self._source, self._until, self._waits, self._done = source, until, waits, done
        self._read = bytearray()
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name
        self._send()

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not _is_whole(self._read):
            return
        now = time.perf_counter()
        self._waits.append(now - self._sent_at)
        status = bytes(self._read[9:12])
        self._read.clear()
        if status != b"200":
            self._end(LoadError(f"answered with {status.decode()}"))
        elif now >= self._until:
            self._end(None)
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or LoadError("the connection was closed"))

    def _send(self) -> None:
        request = next(self._source)
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def _end(self, error: Exception | None) -> None:
        if not self._done.done():
            if error is None:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)
        self._transport.close()


def _is_whole(read: bytearray) -> bool:
    end = read.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(read[:end]).lower()
    _, found, rest = head.partition(b"content-length:")
    if found:
        return len(read) >= end + 4 + int(rest.partition(b"\r\n")[0])
    return read.endswith(b"0\r\n\r\n")
