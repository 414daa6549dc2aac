"""Requests under way at the HTTP server: what was asked, the tokens of the reply, their hashes.

Block hashes are the engine's own chain: BLAKE2b over the parent's hash and the block's token ids,
64 bits; the cache salt enters with the first block. Replies are drawn from the tokenizer's words,
the same for the same request id.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from leadsman_engines.simulated.text import Tokenizer

ROOT = bytes(8)


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of one choice. cached: with the first one. finished: with the last one."""

    choice: int
    tokens: int
    cached: int | None
    finished: str | None


Sink: TypeAlias = "asyncio.Queue[Progress | None]"
"""Where the progress of an HTTP request's choices arrives; None: the engine is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one prompt of an HTTP request asks for; `choice` is its place there.

    rank: whose scheduler it is for, where the caller says so.
    """

    public_id: str
    choice: int
    ids: Sequence[int]
    output_tokens: int
    max_tokens: int | None
    session_id: str | None = None
    salt: str = ""
    priority: int = 0
    reads_cache: bool = True
    rank: int | None = None


class Ticket:
    """One request under way: its tokens, their hashes, and where its progress goes."""

    def __init__(self, wish: Wish, sink: Sink, tokenizer: Tokenizer, block_size: int) -> None:
        self.wish = wish
        self.sink = sink
        self._block_size = block_size
        self._tokenizer = tokenizer
        self._words = Random(f"{wish.public_id}/{wish.choice}")
        self._ids: npt.NDArray[np.uint32] = np.array(wish.ids, dtype=np.uint32)
        self._replies: list[tuple[int, str]] = []
        self.hashes: list[int] = []
        self._extend_hashes(len(wish.ids) // block_size)

    def reply(self, index: int) -> tuple[int, str]:
        """Give the id and text of a generated token; the same whenever asked."""
        while len(self._replies) <= index:
            self._replies.append(self._words.choice(self._tokenizer.words))
        return self._replies[index]

    def hash_of(self, block: int) -> int:
        """Name a block by its whole prefix, generated tokens included."""
        self._extend_hashes(block + 1)
        return self.hashes[block]

    def span(self, start: int, blocks: int) -> list[int]:
        """Give the token ids of some blocks."""
        end = (start + blocks) * self._block_size
        self._cover(end)
        ids: list[int] = self._ids[start * self._block_size : end].tolist()
        return ids

    def _cover(self, tokens: int) -> None:
        missing = tokens - len(self._ids)
        if missing > 0:
            known = len(self._ids) - len(self.wish.ids)
            more = [self.reply(known + index)[0] for index in range(missing)]
            self._ids = np.concatenate([self._ids, np.array(more, dtype=np.uint32)])

    def _extend_hashes(self, blocks: int) -> None:
        self._cover(blocks * self._block_size)
        size = 4 * self._block_size
        first = len(self.hashes)
        content = self._ids[first * self._block_size : blocks * self._block_size].tobytes()
        parent = self.hashes[-1].to_bytes(8, "big") if first else ROOT + self.wish.salt.encode()
        for begin in range(0, len(content), size):
            parent = blake2b(parent + content[begin : begin + size], digest_size=8).digest()
            self.hashes.append(int.from_bytes(parent, "big"))
