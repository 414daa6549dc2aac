"""Engines that answer at once: many ports in one process, with the pages that collectors read.

A request costs some 20 us here, so that what is measured in front of it is not hidden behind it.
Prints one JSON line with the ports when it serves.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from functools import partial
from typing import Final, cast

import uvloop
from leadsman_engines.simulated.publish import EventPublisher
from leadsman_engines.simulated.reports import event_source

MODEL: Final = "deepseek"
_METRICS: Final = "".join(
    f'vllm:{name}{{engine="0",model_name="{MODEL}"}} {value}\n'
    for name, value in {
        "num_requests_running": 0.0,
        "num_requests_waiting": 0.0,
        "kv_cache_usage_perc": 0.0,
        "prompt_tokens_total": 0.0,
        "generation_tokens_total": 0.0,
    }.items()
) + (
    'vllm:cache_config_info{block_size="64",enable_prefix_caching="True",'
    'num_gpu_blocks="100001",engine="0"} 1.0\n'
)
_HISTOGRAMS: Final = "".join(
    f'vllm:{name}_seconds_bucket{{engine="0",le="{edge}",model_name="{MODEL}"}} 0.0\n'
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "queue")
    for edge in (0.001 * 1.1**power for power in range(100))
)
"""A real engine's page is of some 400 lines, most of them buckets."""
_ANSWER: Final = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": MODEL,
    "choices": [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
}


def page(body: str, kind: str = "application/json", status: str = "200 OK") -> bytes:
    """Write a whole answer."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


PAGES: Final = {
    b"/metrics": page(_METRICS + _HISTOGRAMS, "text/plain; version=0.0.4"),
    b"/version": page('{"version": "0.33.0"}'),
    b"/health": page(""),
    b"/v1/models": page(json.dumps({"data": [{"id": MODEL, "max_model_len": 1 << 20}]})),
    b"/v1/chat/completions": page(json.dumps(_ANSWER)),
}
_NOT_FOUND: Final = page("{}", status="404 Not Found")


class Engine(asyncio.Protocol):
    """One connection: reads a request, whether of a stated length or in chunks, and answers."""

    def __init__(self, pages: Mapping[bytes, bytes]) -> None:
        self._pages = pages
        self._read = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        """Answer once the request is whole; clients here wait for each answer."""
        self._read += data
        end = self._read.find(b"\r\n\r\n")
        if end < 0 or not self._is_whole(bytes(self._read[:end]).lower(), end + 4):
            return
        path = bytes(self._read[: self._read.find(b"\r\n")]).split(b" ")[1].partition(b"?")[0]
        self._read.clear()
        self._transport.write(self._pages.get(path, _NOT_FOUND))

    def _is_whole(self, head: bytes, body: int) -> bool:
        if b"chunked" in head:
            return self._read.endswith(b"0\r\n\r\n")
        _, found, rest = head.partition(b"content-length:")
        length = int(rest.partition(b"\r\n")[0]) if found else 0
        return len(self._read) >= body + length


async def serve(count: int, *, with_events: bool) -> None:
    """Serve on `count` free ports until killed; each publishes cache events where asked to."""
    loop = asyncio.get_running_loop()
    ports = []
    for _ in range(count):
        pages = dict(PAGES)
        if with_events:
            source = event_source(EventPublisher("127.0.0.1"))
            pages[b"/kv_event_sources"] = page(json.dumps({"0": source}))
        server = await loop.create_server(partial(Engine, pages), "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps({"ports": ports}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), with_events="events" in sys.argv[2:]))
