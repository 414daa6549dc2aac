"""Requests under way at an SGLang server: their pages' names, as SGLang makes them.

A page's name is the first 64 bits of a SHA-256 over its parent's digest and its tokens, four bytes
each, little endian; with EAGLE over its pairs of tokens. A salt enters as what stands before the
first page.

Source: SGLang 0.5.23 srt/mem_cache/utils.py, get_hash_str, hash_str_to_int64.
"""

from hashlib import sha256
from itertools import pairwise

import numpy as np

from leadsman_engines.simulated.sglang.publish import Tokens
from leadsman_engines.simulated.text import Tokenizer
from leadsman_engines.simulated.tickets import Sink, Ticket, Wish


class SglangTicket(Ticket):
    """One request: pages that are named, and known by their tokens, as SGLang does it."""

    def __init__(
        self, wish: Wish, sink: Sink, tokenizer: Tokenizer, page: int, *, is_eagle: bool
    ) -> None:
        self._overlap = int(is_eagle)
        salt = wish.salt.encode()
        self._digest = sha256(b"sglang-cache-salt-v1\0" + salt).digest() if salt else b""
        super().__init__(wish, sink, tokenizer, page)

    def _extend_hashes(self, blocks: int) -> None:
        page = self._block_size
        known, blocks = len(self.hashes), self._nameable(blocks)
        self._cover(blocks * page + self._overlap)
        for start in range(known * page, blocks * page, page):
            tokens = self._ids[start : start + page + self._overlap]
            if self._overlap:
                tokens = np.stack([tokens[:-1], tokens[1:]], axis=1).ravel()
            self._digest = sha256(self._digest + tokens.astype("<u4").tobytes()).digest()
            self.hashes.append(int.from_bytes(self._digest[:8], "big"))

    def _nameable(self, blocks: int) -> int:
        """Leave out a page whose last pair has no second token yet."""
        if not self._overlap or self.hashes or blocks * self._block_size < len(self.wish.ids):
            return blocks
        return (len(self.wish.ids) - self._overlap) // self._block_size

    def pages(self, start: int, count: int) -> Tokens:
        """Give the tokens of some pages: pairs where they are named by pairs."""
        first, last = start * self._block_size, (start + count) * self._block_size
        self._cover(last + self._overlap)
        ids: list[int] = self._ids[first : last + self._overlap].tolist()
        return list(pairwise(ids)) if self._overlap else ids
