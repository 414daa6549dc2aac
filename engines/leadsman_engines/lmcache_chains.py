"""From names of LMCache's chunks to our block keys, where nobody says what a chunk follows.

A chunk's name is a hash over its parent's name and its own tokens. Its name and tokens are told, so
a guessed parent is proved right, or wrong, by hashing once: a wrong one is never taken. The guesses
come in the order in which they tend to be right: a chunk begins a prompt, or goes on from the one
that was placed last (what a request stores is stored in order), or from some other of the same
salt. The last is a search; each chunk keeps its place in it, so that it may be cut into pieces, and
what is placed later is tried later.

Source: LMCache 0.5.6 v1/multiprocess/token_hasher.py, TokenHasher; v1/distributed/api.py, ObjectKey
(the salt is beside the hash, not in it).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from blake3 import blake3
from leadsman.keys import extend_keys
from leadsman.units import BlockKey, Keys, TokenIds, Tokens

ChunkName: TypeAlias = tuple[str, bytes]
"""Salt ("" is none) and hash of a chunk."""

_ROOT: Final = blake3(bytes(12)).digest()
"""What a prompt's first chunk follows: the hash of a parent 0, of 8 bytes, and one token 0."""
_SLACK: Final = 1024


@dataclass(slots=True)
class _Unplaced:
    """packed: the tokens as they are hashed. tried: how far the search has come; None: nowhere."""

    tokens: TokenIds
    packed: bytes
    tried: int | None = None


class Chains:
    """The chunks of one model. root: names the empty prefix of a salt; block_size: the engines'."""

    def __init__(self, root: Callable[[str], BlockKey], block_size: Tokens) -> None:
        self.placed: dict[ChunkName, Keys] = {}
        self._unplaced: dict[ChunkName, _Unplaced] = {}
        self._order: list[ChunkName] = []
        self._root = root
        self._block_size = block_size

    @property
    def unplaced(self) -> int:
        """Chunks whose parent is not known."""
        return len(self._unplaced)

    def add(self, name: ChunkName, tokens: TokenIds) -> None:
        """Take a chunk, which `place` will find the parent of. tokens: whole blocks."""
        assert len(tokens) % self._block_size == 0
        self._unplaced[name] = _Unplaced(tokens, tokens.astype(">u4").tobytes())

    def place(self, tries: int) -> tuple[list[Keys], bool]:
        """Place what can be with so many hashes; says whether something is left to try."""
        found: list[ChunkName] = []
        for name, chunk in self._unplaced.items():
            parent, used = self._parent(name, chunk, tries)
            tries -= used
            if parent is not None:
                self.placed[name] = extend_keys(parent, chunk.tokens, self._block_size)
                self._order.append(name)
                found.append(name)
            if tries <= 0:
                break
        for name in found:
            del self._unplaced[name]
        return [self.placed[name] for name in found], tries <= 0

    def forget(self, name: ChunkName) -> Keys | None:
        """Forget a chunk; gives its keys if it had been placed."""
        self._unplaced.pop(name, None)
        keys = self.placed.pop(name, None)
        if len(self._order) > 2 * len(self.placed) + _SLACK:
            self._order = [other for other in self._order if other in self.placed]
            for chunk in self._unplaced.values():
                chunk.tried = None
        return keys

    def _parent(self, name: ChunkName, chunk: _Unplaced, tries: int) -> tuple[BlockKey | None, int]:
        """Find the last key of a chunk's parent; gives the hashes that it took too."""
        salt, digest = name
        used = 0
        if chunk.tried is None:
            chunk.tried, used = 0, 2
            if blake3(_ROOT + chunk.packed).digest() == digest:
                return self._root(salt), used
            if self._order and self._is_parent(self._order[-1], name, chunk):
                return int(self.placed[self._order[-1]][-1]), used
        while used < tries and chunk.tried < len(self._order):
            other = self._order[chunk.tried]
            chunk.tried += 1
            used += 1
            if self._is_parent(other, name, chunk):
                return int(self.placed[other][-1]), used
        return None, used

    def _is_parent(self, other: ChunkName, name: ChunkName, chunk: _Unplaced) -> bool:
        if other[0] != name[0] or other not in self.placed:
            return False
        return blake3(other[1] + chunk.packed).digest() == name[1]
