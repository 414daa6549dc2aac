"""A Mooncake as vLLM fills it, and events of the vLLM that did.

golden/vllm_mooncake.json holds what vLLM 0.33's own functions make of three prompts, in blocks of
4: `hash_block_tokens`, `maybe_convert_block_hash`, and two ranks' keys by `RankLocalStoreLayout`.
The second prompt begins as the first; the third has the salt "acme".
"""

import asyncio
import json
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import zmq.asyncio
from aiohttp import web
from leadsman_engines.kv_events import BlockStored

GOLDEN = json.loads((Path(__file__).parent / "golden/vllm_mooncake.json").read_text())
SIZE = GOLDEN["block_size"]
PROMPTS = GOLDEN["prompts"]


def stored(prompt, how="event"):
    """Write the event that told of a prompt. how: in which of vLLM's two forms of names."""
    told = prompt[how] if how == "event" else [bytes.fromhex(name) for name in prompt[how]]
    tokens = np.array(prompt["tokens"], dtype=np.uint32)
    return BlockStored(
        hashes=tuple(told),
        parent=None,
        tokens=tokens,
        block_size=SIZE,
        cache_salt=prompt["salt"],
    )


def objects(*prompts):
    """List the keys of prompts, of both ranks."""
    return {key for prompt in prompts for rank in prompt["keys"] for key in rank}


class Master:
    """Lists `keys` as Mooncake 0.3.13's master does."""

    def __init__(self, keys=()):
        self.keys, self.status, self.role = set(keys), 200, "leader"

    async def list(self, request):
        if self.status != 200:
            return web.Response(status=self.status)
        return web.Response(text="".join(f"{key}\n" for key in sorted(self.keys)))

    async def say_role(self, request):
        return web.Response(text=self.role)

    def app(self):
        app = web.Application()
        app.router.add_get("/get_all_keys", self.list)
        app.router.add_get("/role", self.say_role)
        return app


@contextmanager
def publishing(engine, prompt):
    """Publish, over and over, that the engine stored a prompt and then lost all that it had."""
    stored = {
        "type": "BlockStored",
        "block_hashes": prompt["event"],
        "parent_block_hash": None,
        "token_ids": prompt["tokens"],
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
    }
    payload = msgspec.msgpack.encode([1.0, [stored, {"type": "AllBlocksCleared"}], 0])
    publisher = zmq.asyncio.Context.instance().socket(zmq.PUB)
    engine.events = f"tcp://*:{publisher.bind_to_random_port('tcp://127.0.0.1')}"

    async def publish():
        for sequence in range(1_000_000):
            await publisher.send_multipart([b"", sequence.to_bytes(8), payload])
            await asyncio.sleep(0.01)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()
        publisher.close(linger=0)
