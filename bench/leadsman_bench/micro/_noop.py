"""The least that an ext_proc server in Python can do: let every message pass.

grpc.aio on uvloop, bytes in and out, nothing parsed but which message it is. An empty answer lets
headers pass, and bodies too, but for full duplex: there a body must be given back, and is, as the
bytes that it came in (the two messages that hold it have the same fields).
Prints one JSON line with its port when it serves; the argument is the profile.
"""

import json
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import uvloop

_ANSWERS: Final = {
    # The tag of a ProcessingRequest's field, and the answer whose one field is empty.
    0x12: b"\x0a\x00",  # request_headers
    0x1A: b"\x12\x00",  # response_headers
    0x22: b"\x1a\x00",  # request_body
    0x2A: b"\x22\x00",  # response_body
    0x32: b"\x2a\x00",  # request_trailers
    0x3A: b"\x32\x00",  # response_trailers
}
_BODIES: Final = {0x22: 0x1A, 0x2A: 0x22}


async def pass_all(messages: AsyncIterator[bytes], context: Any) -> None:
    """Answer every message of a stream with its empty answer."""
    async for raw in messages:
        await context.write(_ANSWERS[raw[0]])


async def give_back(messages: AsyncIterator[bytes], context: Any) -> None:
    """Answer every message of a full duplex stream."""
    async for raw in messages:
        tag = raw[0]
        await context.write(_back(raw, _BODIES[tag]) if tag in _BODIES else _ANSWERS[tag])


def _back(raw: bytes, tag: int) -> bytes:
    """Wrap a body as response { body_mutation { streamed_response } }."""
    length = shift = 0
    at = 1
    while True:
        byte = raw[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    before = b""
    for outer in (0x1A, 0x1A, 0x0A, tag):
        before = bytes((outer,)) + _varint(len(before) + length) + before
    return before + raw[at : at + length]


def _varint(number: int) -> bytes:
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


async def serve(profile: str) -> None:
    """Serve on a free port until killed."""
    limits = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
    server = grpc.aio.server(options=limits)
    process = give_back if profile == "duplex" else pass_all
    handler: Any = grpc.stream_stream_rpc_method_handler(process)
    name = "envoy.service.ext_proc.v3.ExternalProcessor"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(name, {"Process": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(json.dumps({"port": port}), flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
