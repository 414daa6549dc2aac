"""The least that an ext_proc server in Python can do: a constant for each message.

grpc.aio on uvloop, bytes in and out, nothing parsed but the number of the field that says which
message it is. Made for a BUFFERED request and a STREAMED response, where an empty answer lets a
body pass. Prints one JSON line with its port when it serves.
"""

import json
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
}


async def process(messages: AsyncIterator[bytes], context: Any) -> None:
    """Answer every message of a stream."""
    async for raw in messages:
        await context.write(_ANSWERS[raw[0]])


async def serve() -> None:
    """Serve on a free port until killed."""
    limits = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
    server = grpc.aio.server(options=limits)
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
    uvloop.run(serve())
