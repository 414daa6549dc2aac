"""A cache of tokenized segments: a conversation's next turn pays for its new text only.

The question: which pieces of this text have been tokenized before. The text is cut at special
tokens that the template writes (`tokenizer.cut_points`), where cutting changes no id, into pieces
of at least `SHORTEST` bytes, greedily from the start: texts that share a beginning share its
pieces. A piece is looked up by its bytes, compared in full, so a hit is exact. Least recently used
pieces leave first, by bytes held.

On an 800,000-token conversation finding cuts, hashing and joining take some 6 ms. That is half
of what gigatoken takes for the whole text; where `tokenizers` has to do it, 3 s. A next turn is
spared most of it: see `prompts`.
"""

import re
from collections.abc import Iterator
from itertools import islice
from threading import Lock
from typing import Final

from leadsman.units import TokenIds

from leadsman_extproc.prompts import Prompt, PromptMemory
from leadsman_extproc.shapes import Plan
from leadsman_extproc.tokenizer import Encode

SHORTEST: Final = 512
LONG: Final = 16 * SHORTEST
"""Bytes of a text below which its pieces are looked up as cheaply as a whole prompt."""
_OVERHEAD: Final = 300
"""Bytes that a piece costs beside its text and its ids: two objects and a place in a table."""


class SegmentCache:
    """Pieces and their ids, up to `max_bytes`. Safe to use from several threads."""

    def __init__(self, encode: Encode, cuts: re.Pattern[bytes] | None, max_bytes: int) -> None:
        self.bytes_held = 0
        self._encode = encode
        self._cuts = cuts
        self._max_bytes = max_bytes
        self._prompts = PromptMemory(max_bytes // 2)
        self._ids: dict[bytes, TokenIds] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, text: bytes) -> TokenIds:
        """Tokenize a text."""
        return self.finish(self.plan(text)).whole()

    def plan(self, text: bytes) -> Plan:
        """Cut a text and look its pieces up: what is missing shows what `finish` will cost."""
        base, shared, start = None, 0, 0
        if self._cuts is not None and len(text) >= LONG:
            base = self._prompts.find(list(islice(self._pieces(text), 2)))
        if base is not None and self._cuts is not None:
            shared, start = base.shared_with(text, self._cuts)
        pieces = list(self._pieces(text, start))
        with self._lock:
            known = [self._used(piece) for piece in pieces]
        return Plan(pieces, known, base, shared)

    def finish(self, plan: Plan) -> Prompt:
        """Tokenize what is missing, and remember it."""
        base, shared = plan.base, plan.shared
        ids, pieces = ([], []) if base is None else base.first(shared)
        for piece, known in zip(plan.pieces, plan.known, strict=True):
            found = self._encode(piece) if known is None else known
            if known is None and len(piece) >= SHORTEST:
                self._remember(piece, found)
            ids.append(found)
            pieces.append(piece)
        prompt = Prompt(ids, pieces, base, shared)
        if sum(map(len, pieces)) >= LONG:
            self._prompts.keep(prompt)
        return prompt

    def check(self) -> None:
        """Assert that what is held is what is counted, and within bounds."""
        assert self.bytes_held == sum(_cost(p, i) for p, i in self._ids.items())
        assert self.bytes_held <= self._max_bytes
        self._prompts.check()

    def _pieces(self, text: bytes, start: int = 0) -> Iterator[bytes]:
        for cut in self._cuts.finditer(text, start) if self._cuts is not None else ():
            if cut.start() - start >= SHORTEST:
                yield text[start : cut.start()]
                start = cut.start()
        if start < len(text):
            yield text[start:]

    def _used(self, piece: bytes) -> TokenIds | None:
        ids = self._ids.pop(piece, None)
        if ids is not None:
            self._ids[piece] = ids
        return ids

    def _remember(self, piece: bytes, ids: TokenIds) -> None:
        cost = _cost(piece, ids)
        if cost > self._max_bytes:
            return
        with self._lock:
            before = self._ids.pop(piece, None)
            self.bytes_held += cost if before is None else 0
            self._ids[piece] = ids
            while self.bytes_held > self._max_bytes:
                oldest = next(iter(self._ids))
                self.bytes_held -= _cost(oldest, self._ids.pop(oldest))


def _cost(piece: bytes, ids: TokenIds) -> int:
    return len(piece) + ids.nbytes + _OVERHEAD
