"""What a scheduler keeps about each request: what it has computed, and the memory that it holds."""

from collections.abc import Callable, Sequence
from typing import Literal

from leadsman_engines.simulated.sequences import SimulatedRequest
from leadsman_engines.simulated.sglang.nodes import Node

CLIP = 4096
"""An answer is never taken to need more tokens than that."""


class Live:
    """One request in a scheduler.

    outputs: answer tokens that are known. prefix, end: what the pass that computes, or computed, it
    starts from and comes to. filled: tokens known when it was last looked at for computing, 0
    before. committed: tokens with a place in memory; protected: pages of them that are the tree's.
    lock: the node that it holds. middle: unprocessed chunks that bring no token. cached: tokens
    found at its first admission. entered: its place in the order of coming to the queue.
    """

    __slots__ = (
        "aborted", "arrival", "cached", "committed", "end", "ends_at", "entered", "filled",
        "finished", "has_row", "hashes", "host_found", "id", "limit", "lock", "middle", "outputs",
        "prefix", "prompt", "protected", "request", "retracted",
    )  # fmt: skip

    def __init__(self, request: SimulatedRequest, *, arrival: float, room: int) -> None:
        cap = room if request.max_tokens is None else min(room, request.max_tokens)
        self.request, self.id, self.arrival = request, request.id, arrival
        self.prompt = request.prompt_tokens
        self.limit = cap
        self.ends_at = min(cap, request.output_tokens)
        self.hashes = list(request.prompt_hashes)
        self.entered = 0
        self.outputs = self.filled = self.middle = 0
        self.finished: Literal["stop", "length", "abort"] | None = None
        self.cached: int | None = None
        self.aborted = self.has_row = self.retracted = False
        self.forget_memory()

    def forget_memory(self) -> None:
        """Hold nothing of the cache, as before any admission."""
        self.prefix = self.end = self.committed = self.protected = self.host_found = 0
        self.lock: Node | None = None

    @property
    def tokens(self) -> int:
        """Tokens known: the prompt's and the answer's."""
        return self.prompt + self.outputs

    @property
    def left(self) -> int:
        """Bound the tokens that the answer may still get."""
        return min(max(self.limit - self.outputs, 0), CLIP)

    def add_token(self) -> None:
        """Learn one more token of the answer; it may be the last."""
        self.outputs += 1
        if self.aborted:
            self.finished = "abort"
        elif self.outputs >= self.ends_at:
            self.finished = "stop" if self.ends_at < self.limit else "length"

    def pages(self, count: int) -> Sequence[int]:
        """Name the leading whole pages, those with answer tokens too."""
        while len(self.hashes) < count:
            self.hashes.append(self._namer(len(self.hashes)))
        return self.hashes[:count]

    @property
    def _namer(self) -> Callable[[int], int]:
        if self.request.output_hash is not None:
            return self.request.output_hash
        return lambda page: hash((self.id, page)) & (2**64 - 1)
