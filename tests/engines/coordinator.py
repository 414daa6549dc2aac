"""A directory as LMCache's own coordinator tells it.

golden/lmcache_coordinator.json holds the answers of LMCache 0.5.6's coordinator, of its
`/directory/keys` and `/directory/lookup`, after stores and deletions were reported to its `/events`
with chunk names by its own `TokenHasher`; chunks of 8 tokens, two ranks. The server here says them
again: the coordinator itself does not start without torch.

Stored: prompt a; c for another model; b, which shares a's first chunk; one rank's part of c; c of
the salt "acme"; one chunk on a server's own memory. Deleted: a's last chunk.
"""

import json
from pathlib import Path

from aiohttp import web

GOLDEN = json.loads((Path(__file__).parent / "golden/lmcache_coordinator.json").read_text())


class Coordinator:
    """Says what is in `told`, by pages of at most `page` keys."""

    def __init__(self, told, page=10_000):
        self.told, self.page, self.looked_up, self.hides = told, page, 0, 0
        self.status = 200

    async def list(self, request):
        if self.status != 200:
            return web.Response(status=self.status)
        rows = self.told["keys"]["keys"]
        start = int(request.query["offset"])
        stop = start + min(self.page, int(request.query["limit"]))
        shown = rows[: len(rows) - self.hides]
        return web.json_response({"total": len(rows), "keys": shown[start:stop]})

    async def look_up(self, request):
        asked = (await request.json())["keys"]
        self.looked_up += len(asked)
        by_key = {tuple(one["key"].values()): one for one in self.told["lookup"]["results"]}
        results = [by_key[tuple(key.values())] for key in asked]
        return web.json_response({"chunks": len(asked), "results": results})

    def app(self):
        app = web.Application()
        app.router.add_get("/directory/keys", self.list)
        app.router.add_post("/directory/lookup", self.look_up)
        return app
