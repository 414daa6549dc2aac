"""What enters a simulated engine, and what its scheduler keeps about each such request."""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """One request, as an engine's front end hands it to the scheduler.

    prompt_hashes: one per full block of the prompt, each naming the whole prefix up to it.
    output_tokens: how many tokens it will generate if nothing caps it (the model's own stop).
    max_tokens: the caller's cap; None is max_model_len.
    output_hash: index of a block (counted from the prompt's first) that holds generated tokens →
        its hash; called once a block. None makes names that no other request shares.
    priority: lower goes first, under the priority policy only.
    """

    id: str
    prompt_tokens: int
    prompt_hashes: Sequence[int] = ()
    output_tokens: int
    max_tokens: int | None = None
    output_hash: Callable[[int], int] | None = None
    session_id: str | None = None
    priority: int = 0
    reads_cache: bool = True

    def validate(self, *, longest: int, in_use: Container[str]) -> None:
        """Raise ValueError for what no engine takes.

        That is a prompt that leaves no room for a token, no output, and an id that is in use.
        longest: tokens that a prompt and its answer may have together.
        """
        if not 0 < self.prompt_tokens < longest:
            raise ValueError(f"prompt of {self.prompt_tokens} tokens, at most {longest - 1} fit")
        if self.output_tokens < 1 or self.max_tokens == 0:
            raise ValueError("a request generates at least one token")
        if self.id in in_use:
            raise ValueError(f"request id {self.id} is in use")


class Tracked:
    """A request in the scheduler. `tokens` are known ones; `computed` have, or will have, their KV.

    placeholders: tokens that scheduled steps will have made, not known yet (async only).
    stale: tokens in steps that were scheduled before it was preempted, and are not processed yet.
    named: leading blocks that carry their hash. names_next: the token count that fills the next.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "cached",
        "computed",
        "done",
        "ends_at",
        "hashes",
        "id",
        "last_useful",
        "named",
        "names_next",
        "placeholders",
        "preemptions",
        "prompt",
        "request",
        "running",
        "stale",
        "tokens",
    )

    def __init__(self, request: SimulatedRequest, *, arrival: float, max_model_len: int) -> None:
        room = max_model_len - request.prompt_tokens
        cap = room if request.max_tokens is None else min(room, request.max_tokens)
        self.id = request.id
        self.request = request
        self.arrival = arrival
        self.prompt = self.tokens = request.prompt_tokens
        self.ends_at = request.prompt_tokens + min(request.output_tokens, cap)
        self.last_useful = request.prompt_tokens + cap
        self.hashes = list(request.prompt_hashes)
        self.blocks: list[int] = []
        self.cached: int | None = None
        self.computed = self.named = self.names_next = 0
        self.placeholders = self.stale = self.preemptions = 0
        self.running = self.done = False

    def copy(self) -> "Tracked":
        """Copy everything; what names blocks is shared, since it never changes."""
        twin = Tracked(self.request, arrival=self.arrival, max_model_len=0)
        twin.prompt, twin.tokens, twin.computed = self.prompt, self.tokens, self.computed
        twin.ends_at, twin.last_useful, twin.cached = self.ends_at, self.last_useful, self.cached
        twin.hashes, twin.blocks = self.hashes[:], self.blocks[:]
        twin.named, twin.names_next = self.named, self.names_next
        twin.placeholders, twin.stale = self.placeholders, self.stale
        twin.preemptions, twin.running, twin.done = self.preemptions, self.running, self.done
        return twin

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """Why it ended: its own stop, or the cap."""
        return "stop" if self.ends_at < self.last_useful else "length"

    def hashes_up_to(self, blocks: int) -> list[int]:
        """Name the leading full blocks, those with generated tokens too."""
        known = self.hashes
        while len(known) < blocks:
            known.append(self._name(len(known)))
        return known

    def _name(self, block: int) -> int:
        if self.request.output_hash is not None:
            return self.request.output_hash(block)
        digest = blake2b(f"{self.id}/{block}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")


class Twins:
    """Copies of requests, one of each, however many places hold it."""

    def __init__(self) -> None:
        self._of: dict[Tracked, Tracked] = {}

    def of(self, request: Tracked) -> Tracked:
        """Give a request's copy."""
        twin = self._of.get(request)
        if twin is None:
            twin = self._of[request] = request.copy()
        return twin

    def all(self, requests: Iterable[Tracked]) -> list[Tracked]:
        """Give the copies of some, in their order."""
        return [self.of(request) for request in requests]
