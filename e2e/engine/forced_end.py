"""What makes a real engine end an answer where the trace's ends, and nobody else knows where.

A middleware of vLLM's API server: a body that names the simulated engine's own stop
(`vllm_xargs.output_tokens`) reaches the engine with the end token forbidden until the answer is
long enough, and forced after that. It runs in vLLM's environment, so it needs nothing of ours.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

END_TOKEN = 1

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class ForcedEnd:
    """The middleware, as ASGI has them."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        body = bytearray()
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        else:
            return
        forced = [{"type": "http.request", "body": forced_end(bytes(body)), "more_body": False}]

        async def told() -> Message:
            return forced.pop() if forced else await receive()

        headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
        length = str(len(forced[0]["body"])).encode()
        await self._app({**scope, "headers": [*headers, (b"content-length", length)]}, told, send)


def forced_end(raw: bytes) -> bytes:
    """Say in vLLM's own terms where the answer ends, where the body says so in the simulated's."""
    try:
        body = json.loads(raw)
        tokens = body.pop("vllm_xargs")["output_tokens"]
    except (ValueError, AttributeError, TypeError, KeyError):
        return raw
    ends = {"min_tokens": tokens - 1, "logit_bias": {str(END_TOKEN): 100}, "temperature": 0}
    return json.dumps(body | ends).encode()
