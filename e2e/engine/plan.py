"""What is played: isolated prompts, a backlog, slices of the conversation trace.

The trace's prompts and answers are taken at an eighth of their lengths, which prompts share which
pieces is exactly the trace's. A slice is drawn by whole conversations, most of its rows from those
of several turns, and played in the trace's order with its bunching, pressed into the time that
makes the load. Each slice has texts of its own, so that the cache helps only within it, and is full
of others' blocks all the same.

Half of the callers name max_tokens, more than is used. Every fifth bounds its queue wait.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any, Final

import msgspec
from leadsman.units import Seconds, Tokens
from leadsman_bench.player import Planned
from leadsman_bench.scenario import BOUNDS, CAPS
from leadsman_bench.traces import PIECE_TOKENS, TraceRequest, bundled, families, scaled, spread

from engine.vllm import NAME

SHORTENED: Final = 8
BOUNDED_SHARE: Final = 0.2
CAPPED_SHARE: Final = 0.5
ISOLATED: Final[tuple[Tokens, ...]] = (64, 128, 256, 400, 700, 1024, 1500, 2200, 3200, 4600, 8000)
TURNS_SHARE: Final = 0.6
"""The share of a slice's rows from conversations of several turns: those that the cache helps."""
SHORTEST_ANSWER: Final[Tokens] = 2
"""The last token ends the answer, and shows nothing: a first one to be seen comes before it."""
WORDS_APART: Final = 1 << 32
"""Between the piece numbers of two slices: their texts share nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Planned):
    """A request whose answer has the row's output tokens; told: and its body says so."""

    told: bool = False

    def body(self) -> bytes:
        """Encode it: a length that is told is a cap, and that the answer ignores its end."""
        plain = Planned.body(self)
        if not self.told:
            return plain
        wanted: dict[str, Any] = msgspec.json.decode(plain)
        del wanted["vllm_xargs"]
        ends = {"max_tokens": self.row.output_tokens, "ignore_eos": True}
        return msgspec.json.encode(wanted | ends)


@dataclass(slots=True)
class Plans:
    """Makes plans; no two of them share a text."""

    seed: int
    _slices: Iterator[int] = field(default_factory=lambda: count(1))
    _rows: list[TraceRequest] = field(init=False)

    def __post_init__(self) -> None:
        rows = scaled(bundled(), piece_tokens=PIECE_TOKENS // SHORTENED, output=1 / SHORTENED)
        self._rows = spread(rows, rng=Random(f"{self.seed}/spread"))

    def isolated(self, rounds: int) -> list[TraceRequest]:
        """Give prompts of many lengths, short and long in turn, that share nothing.

        Their answers are as long as the trace's: how long answers are is learned of them too.
        """
        order, rng = [*ISOLATED] * rounds, Random(f"{self.seed}/isolated")
        rng.shuffle(order)
        return [
            TraceRequest(
                at=0.0, input_tokens=size, pieces=(self._unique(),), piece_tokens=size,
                output_tokens=max(SHORTEST_ANSWER, rng.choice(self._rows).output_tokens),
            )
            for size in order
        ]  # fmt: skip

    def slice(self, rows: int) -> list[TraceRequest]:
        """Give so many rows of the trace, drawn by conversation, with texts of their own."""
        apart = self._unique()
        return [
            replace(
                row,
                pieces=tuple(piece + apart for piece in row.pieces),
                output_tokens=max(SHORTEST_ANSWER, row.output_tokens),
            )
            for row in by_conversation(self._rows, rows, Random(f"{self.seed}/{apart}"))
        ]

    def _unique(self) -> int:
        return next(self._slices) * WORDS_APART


def by_conversation(rows: Sequence[TraceRequest], count: int, rng: Random) -> list[TraceRequest]:
    """Draw so many rows, in their order: all turns of one conversation after the other.

    TURNS_SHARE of them come from conversations of several turns. Raises ValueError where the trace
    has too few of those, or of single ones.
    """
    turns = defaultdict[int, list[int]](list)
    for number, family in enumerate(families(rows)):
        turns[family].append(number)
    drawn = list[int]()
    several = round(TURNS_SHARE * count)
    for long, share in ((False, count - several), (True, several)):
        found = [family for family in turns.values() if (len(family) > 1) is long]
        rng.shuffle(found)
        numbers = [number for family in found for number in family][:share]
        if len(numbers) < share:
            raise ValueError(f"the trace has {len(numbers)} such rows, {share} are wanted")
        drawn += numbers
    return [rows[number] for number in sorted(drawn)]


def wanted(
    name: str, rows: Sequence[TraceRequest], seconds: Seconds, *, told: bool = False
) -> list[Planned]:
    """Press rows into so many seconds, and draw what their callers wish.

    told: whether they say how long their answers will be, as benchmarks do.
    """
    rng = Random(f"{name}/callers")
    first, span = rows[0].at, max(rows[-1].at - rows[0].at, 1e-9)
    return [
        Wanted(
            id=f"{name}-{number:04d}",
            at=(row.at - first) / span * seconds,
            row=row,
            model=NAME,
            max_queue_wait=rng.choice(BOUNDS) if rng.random() < BOUNDED_SHARE else None,
            max_tokens=_cap(row) if rng.random() < CAPPED_SHARE else None,
            told=told,
        )
        for number, row in enumerate(rows)
    ]


def _cap(row: TraceRequest) -> Tokens:
    return next(cap for cap in (c // SHORTENED for c in CAPS) if cap > row.output_tokens)


def at_once(name: str, rows: Sequence[TraceRequest]) -> list[Planned]:
    """Send all at once, without wishes: a backlog, or one alone."""
    return [
        Wanted(id=f"{name}-{number:04d}", at=0.0, row=row, model=NAME)
        for number, row in enumerate(rows)
    ]


def parted(
    planned: Sequence[Planned], share: float, seed: int
) -> tuple[list[Planned], list[Planned]]:
    """Part requests: those that go through Leadsman, and at random the `share` that goes around."""
    rng = Random(f"{seed}/around")
    around = {one.id for one in planned if rng.random() < share}
    return (
        [one for one in planned if one.id not in around],
        [one for one in planned if one.id in around],
    )
