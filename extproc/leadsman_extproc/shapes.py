"""What the readers of a request hand to each other: values, and nothing that is done with them.

They stand apart from those who make and read them since these are compiled, and a compiled module
can hold no msgspec Struct. A Struct it is to be: twenty fields cost 0.3 us to fill, a dataclass ten
times that, and each request fills seven of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from leadsman.units import Seconds, TokenIds

from leadsman_extproc.body import Body, JsonObject
from leadsman_extproc.ports import Arrival
from leadsman_extproc.prompts import Prompt


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A whole request that waits for a verdict. `body` is None where it was above the cap."""

    headers: Mapping[str, str]
    body: bytes | None
    subset: frozenset[str] | None


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the headers of one request say; a bound in the body overrides the header's."""

    tenant: str | None = None
    session: str | None = None
    objective: str | None = None
    ttft_objective: Seconds | None = None
    max_queue_wait: Seconds | None = None
    prefers_cache: bool = False
    waited: Seconds = 0.0


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation as templates see it.

    messages: in the shape that `chat.normalized` gives. variables: everything else that the
    template may name, from the request and from the engine's defaults.
    """

    messages: Sequence[JsonObject]
    tools: Sequence[JsonObject] | None = None
    variables: Mapping[str, Any] = msgspec.field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The text that an engine tokenizes.

    media: how many items add tokens which only it knows. certain: bytes before the first of them.
    """

    text: bytes
    media: int = 0
    certain: int = 0


class Plan(msgspec.Struct, frozen=True):
    """A text cut into pieces, and the ids of those that were known.

    base: a remembered prompt whose first `shared` pieces are the text's; `pieces` are the rest.
    """

    pieces: Sequence[bytes]
    known: Sequence[TokenIds | None]
    base: Prompt | None = None
    shared: int = 0

    @property
    def missing_bytes(self) -> int:
        """Bytes that are still to be tokenized."""
        pairs = zip(self.pieces, self.known, strict=True)
        return sum(len(piece) for piece, ids in pairs if ids is None)


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What a body's prompts are made of.

    plans: texts to tokenize; ids: prompts that came as ids; both empty where only the engine can
    say. media: items that add tokens of their own, the first of them behind the `certain` bytes of
    the one text.
    """

    plans: Sequence[Plan] = ()
    ids: Sequence[Prompt] = ()
    media: int = 0
    certain: int = 0


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is read but not tokenized. needs_offload: `finish` is worth a thread."""

    arrival: Arrival
    body: Body
    wishes: Wishes
    model: str
    adapter: str | None
    parts: Parts
    wraps: bool = False
    needs_offload: bool = False
