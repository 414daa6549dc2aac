"""One request inside an engine's scheduler, what it finds cached, and what one step does.

A sequence is counted in tokens: `computed` have their KV, `generated` are known output. While it
decodes in lockstep with others (`crowd`), both stand as they were at tick `base`.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from leadsman.steptime import StepFeatures
from leadsman.units import BlockKey, Blocks, RequestId, Seconds, Tokens


class Seq:
    """What a scheduler knows of one request.

    limit: output tokens at which the engine itself ends it; it knows so beforehand. stops: those
        after which the request stops by itself, which the engine cannot foresee. expected: what is
        believed of either.
    rows: blocks that its table has in each cache group; blocks: those it holds, in all groups;
        shared: those of them that others held when it came.
    last_tick: the tick of its last token for certain, once it decodes.
    reach: leading blocks that a lower tier brings where the GPU does not have them.
    flying: tokens of the step that an asynchronous engine is still at; rejected: drafts among them
        that will turn out wrong, computed for nothing.
    vain: its last token is out, but the engine does not know, and computes one more step of it.
    """

    __slots__ = (
        "arrival", "base", "blocks", "cached", "computed", "due", "expected", "flying", "generated",
        "id", "keys", "kin", "last_tick", "limit", "order", "priority", "prompt", "reach",
        "reads_cache", "rejected", "rows", "shared", "stops", "uncached", "vain", "visible_at",
    )  # fmt: skip

    def __init__(self, request: RequestId, prompt: Tokens, visible_at: Seconds) -> None:
        self.id = request
        self.prompt = prompt
        self.visible_at = visible_at
        self.priority = 0
        self.arrival = 0
        self.limit: Tokens | None = None
        self.stops: Tokens | None = None
        self.expected: Tokens = 1
        self.computed: Tokens = 0
        self.generated: Tokens = 0
        self.base = 0
        self.order = 0
        self.cached: Tokens | None = None
        self.rows: Blocks = 0
        self.blocks: Blocks = 0
        self.shared: Blocks = 0
        self.due = 0
        self.last_tick: int | None = None
        self.keys: list[BlockKey] = []
        self.kin: list[tuple[RequestId, Blocks]] = []
        self.reads_cache = True
        self.reach: Blocks = 0
        self.uncached: Tokens = 0
        self.flying: Tokens = 0
        self.rejected: Tokens = 0
        self.vain = False

    def copy(self) -> "Seq":
        """Copy everything; a fork may then move it. Spelt out: a loop over the slots takes 4 us."""
        twin = Seq(self.id, self.prompt, self.visible_at)
        twin.arrival, twin.base, twin.blocks = self.arrival, self.base, self.blocks
        twin.cached, twin.computed, twin.due = self.cached, self.computed, self.due
        twin.expected, twin.generated, twin.limit = self.expected, self.generated, self.limit
        twin.keys, twin.kin, twin.order = self.keys, self.kin, self.order
        twin.priority, twin.reads_cache = self.priority, self.reads_cache
        twin.uncached, twin.shared, twin.last_tick = self.uncached, self.shared, self.last_tick
        twin.reach = self.reach
        twin.rows, twin.stops, twin.vain = self.rows, self.stops, self.vain
        twin.flying, twin.rejected = self.flying, self.rejected
        return twin

    @property
    def certain(self) -> Tokens | None:
        """Output tokens at which it ends for certain, foreseen by the engine or not."""
        if self.limit is None or self.stops is None:
            return self.stops if self.limit is None else self.limit
        return min(self.limit, self.stops)

    @property
    def target(self) -> Tokens:
        """Tokens to compute before the next output token: the prompt, and what it had said."""
        return self.prompt + self.generated


class Hit(NamedTuple):
    """What a lookup finds: `tokens` reusable, `pinned` of their blocks held by others already."""

    tokens: Tokens
    pinned: Blocks


NOTHING = Hit(0, 0)

Lookup: TypeAlias = Callable[[Seq], Hit]

Chunk: TypeAlias = tuple[Seq, Tokens]


class Step(NamedTuple):
    """What `repeats` equal engine steps did; `chunks` are prompts', what decodes is in `features`.

    turns: who was served, in order, and with how many tokens, where the replay serves one by one.
    """

    features: StepFeatures
    chunks: list[Chunk]
    finals: list[Seq]
    admitted: list[Seq]
    repeats: int
    preempted: list[Seq]
    turns: list[Chunk]
