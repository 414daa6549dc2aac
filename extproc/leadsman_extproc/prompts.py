"""Tokenized prompts, and the memory of the last ones: a next turn is not even looked at as a whole.

The question: how far does this text begin as one that was tokenized before. The pieces of a
remembered prompt are compared with the text one after another, which costs as much as reading it
once; cutting, hashing and looking up, joining the ids and naming the blocks cost ten times that.
What is shared keeps its ids and its block keys, and only the rest goes the long way.

Exact: pieces that are equal have equal ids, and a text may be cut wherever a cut token begins
(`tokenizer.cut_points`), so what is shared ends at one, in this text too. Block keys of a prefix
are those of the longer text. A prompt is remembered by its first two pieces, and a later one of the
same two takes its place: mostly the next turn. Where it is another conversation that begins alike,
less is shared, and nothing is wrong.
"""

import re
from collections.abc import Sequence
from itertools import accumulate
from threading import Lock
from typing import Final

import numpy as np
from leadsman.keys import MultimodalItem, block_keys, extend_keys, root_key
from leadsman.units import Keys, TokenIds, Tokens

_OVERHEAD: Final = 100
"""Bytes that a remembered prompt costs for each piece, beside the piece."""


class Prompt:
    """A text's pieces, their ids, and the keys of its blocks as they are asked for."""

    __slots__ = ("_ends", "_ids", "_inherited", "_items", "_keys", "pieces")

    def __init__(
        self,
        ids: Sequence[TokenIds],
        pieces: Sequence[bytes] = (),
        base: "Prompt | None" = None,
        shared: int = 0,
        items: Sequence[MultimodalItem] = (),
    ) -> None:
        """Take ids piece by piece; the first `shared` pieces are those of `base`.

        items: what stands in ids' places beside text, of ids without pieces.
        """
        self.pieces = pieces
        self._items = items
        self._ids = ids
        self._keys: dict[tuple[Tokens, int], Keys] = {}
        self._inherited: dict[tuple[Tokens, int], Keys] = {}
        ends: list[Tokens] = []
        if base is not None and shared:
            ends = base._ends[:shared]  # noqa: SLF001  (its own kind)
            self._inherited = base._known(ends[-1])  # noqa: SLF001
        rest = accumulate(map(len, ids[shared:]), initial=ends[-1] if ends else 0)
        next(rest)
        self._ends: list[Tokens] = [*ends, *rest]

    def __len__(self) -> Tokens:
        return self._ends[-1] if self._ends else 0

    @property
    def cost(self) -> int:
        """Bytes that it holds, keys aside, as if nobody shared them."""
        return sum(map(len, self.pieces)) + 4 * len(self) + _OVERHEAD * len(self.pieces)

    def first(self, count: int) -> tuple[list[TokenIds], list[bytes]]:
        """Give the ids of the first pieces, and these."""
        return list(self._ids[:count]), list(self.pieces[:count])

    def beginning(self, size: int) -> "Prompt":
        """Give what surely begins so of a text that is certain for its first `size` bytes.

        Pieces are whole, and where the next one begins a text may be cut.
        """
        ends = accumulate(map(len, self.pieces))
        count = sum(end <= size for end in ends)
        return Prompt(self._ids[:count], self.pieces[:count], self, count)

    def whole(self) -> TokenIds:
        """Join the ids."""
        if len(self._ids) == 1:
            return self._ids[0]
        return np.concatenate(self._ids) if self._ids else np.empty(0, dtype=np.uint32)

    def keys(self, block_size: Tokens, seed: int) -> Keys:
        """Name the full blocks; what a base has named is not named again."""
        name = block_size, seed
        keys = self._keys.get(name)
        if keys is None:
            known = self._inherited.pop(name, None)
            keys = self._named(block_size, seed) if known is None else self._more(known, *name)
            self._keys[name] = keys
        return keys

    def _named(self, block_size: Tokens, seed: int) -> Keys:
        return block_keys(np.ascontiguousarray(self.whole()), block_size, seed, self._items)

    def _more(self, known: Keys, block_size: Tokens, seed: int) -> Keys:
        parent = int(known[-1]) if len(known) else root_key(seed, block_size)
        rest = self._from(len(known) * block_size)
        return np.concatenate((known, extend_keys(parent, rest, block_size)))

    def _from(self, token: Tokens) -> TokenIds:
        """Join the ids from one of them on."""
        last = len(self._ids)
        while last and self._ends[last - 1] > token:
            last -= 1
        if last == len(self._ids):
            return np.empty(0, dtype=np.uint32)
        skipped = token - (self._ends[last - 1] if last else 0)
        return np.ascontiguousarray(np.concatenate(self._ids[last:])[skipped:])

    def _known(self, tokens: Tokens) -> dict[tuple[Tokens, int], Keys]:
        """Give the keys of the blocks that are full within the first so many tokens."""
        return {name: keys[: tokens // name[0]] for name, keys in self._keys.items()}

    def shared_with(self, text: bytes, cuts: re.Pattern[bytes]) -> tuple[int, int]:
        """Count the first pieces that `text` has too, up to a cut; also give where they end."""
        count = at = 0
        for piece in self.pieces:
            if not text.startswith(piece, at):
                break
            count, at = count + 1, at + len(piece)
        if count and at < len(text) and not cuts.match(text, at):
            count, at = count - 1, at - len(self.pieces[count - 1])
        return count, at


class PromptMemory:
    """The last prompts, up to `max_bytes`. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.bytes_held = 0
        self._max_bytes = max_bytes
        self._prompts: dict[tuple[bytes, ...], Prompt] = {}
        self._lock = Lock()

    def find(self, beginning: Sequence[bytes]) -> Prompt | None:
        """Find the prompt that begins with these two pieces."""
        return self._prompts.get(tuple(beginning))

    def keep(self, prompt: Prompt) -> None:
        """Remember a prompt, in the place of the one that began alike."""
        name, cost = tuple(prompt.pieces[:2]), prompt.cost
        if len(name) < 2 or cost > self._max_bytes:
            return
        with self._lock:
            before = self._prompts.pop(name, None)
            self.bytes_held += cost - (before.cost if before is not None else 0)
            self._prompts[name] = prompt
            while self.bytes_held > self._max_bytes:
                self.bytes_held -= self._prompts.pop(next(iter(self._prompts))).cost

    def check(self) -> None:
        """Assert that what is held is what is counted, and within bounds."""
        assert self.bytes_held == sum(prompt.cost for prompt in self._prompts.values())
        assert self.bytes_held <= self._max_bytes
