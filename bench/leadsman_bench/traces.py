"""Rows of a request trace: when each came, how long it was, and which pieces of prompt it shares.

The trace is the FAST'25 conversation trace of Mooncake: one row a request, its prompt given as ids
of 512-token pieces, so that two rows that start with the same ids start with the same text. The
last id names what is left of the prompt, and is shorter. A prompt's answer is no part of it: the
pieces of the next turn repeat only what the prompt itself held.

The package ships about 1,000 rows (`bundled`): whole families of turns, drawn from 17 minutes in
the middle of the trace. Other lengths and rates come from `scaled`, other amounts of requests from
`leadsman_bench.conversation`, whose parameters `python -m leadsman_bench.traces fit FILE` computes.

Source: https://github.com/kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl,
Apache-2.0.
"""

import gzip
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from random import Random

import msgspec
from leadsman.units import Seconds, Tokens

PIECE_TOKENS: Tokens = 512
"""How many tokens one id of the trace stands for."""

CLOCK_STEP: Seconds = 3.0
"""The trace's clock: its timestamps fall on every third second."""

BUNDLED = "conversation.jsonl.gz"


class TraceError(ValueError):
    """A row of a trace file cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a trace.

    pieces: ids of the prompt's pieces, `piece_tokens` long each, the last one what is left.
    former_output: output of the conversation's turn before; None for a first, or if not known.
    """

    at: Seconds
    input_tokens: Tokens
    output_tokens: Tokens
    pieces: tuple[int, ...]
    piece_tokens: Tokens = PIECE_TOKENS
    former_output: Tokens | None = None

    @property
    def full_pieces(self) -> tuple[int, ...]:
        """The pieces that a later prompt can share whole."""
        return self.pieces[: self.input_tokens // self.piece_tokens]


class _Row(msgspec.Struct):
    """A row as the file has it; `timestamp` in milliseconds."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def load(path: Path) -> list[TraceRequest]:
    """Read a trace file, one JSON object a line, gzipped where its name ends in `.gz`.

    Raises TraceError for a row that is malformed, empty, or whose ids do not fit its length.
    """
    content = path.read_bytes()
    return parse(gzip.decompress(content) if path.suffix == ".gz" else content, source=str(path))


def bundled() -> list[TraceRequest]:
    """Return the rows that the package ships, oldest first."""
    content = (resources.files("leadsman_bench") / "data" / BUNDLED).read_bytes()
    return parse(gzip.decompress(content), source=BUNDLED)


def parse(content: bytes, *, source: str) -> list[TraceRequest]:
    """Read rows from bytes; `source` is what an error calls them."""
    decoder = msgspec.json.Decoder(_Row)
    rows: list[TraceRequest] = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            rows.append(_checked(decoder.decode(line)))
        except (msgspec.DecodeError, ValueError) as error:
            raise TraceError(f"{source}, line {number}: {error}") from error
    return rows


def _checked(row: _Row) -> TraceRequest:
    if row.input_length < 1 or row.output_length < 1:
        raise ValueError("input_length and output_length must be at least 1")
    if len(row.hash_ids) != math.ceil(row.input_length / PIECE_TOKENS):
        raise ValueError(
            f"{row.input_length} tokens are {math.ceil(row.input_length / PIECE_TOKENS)} pieces "
            f"of {PIECE_TOKENS}, but hash_ids has {len(row.hash_ids)}"
        )
    return TraceRequest(
        at=row.timestamp / 1e3,
        input_tokens=row.input_length,
        output_tokens=row.output_length,
        pieces=tuple(row.hash_ids),
    )


def scaled(
    rows: Iterable[TraceRequest], *, piece_tokens: Tokens, time: float = 1.0, output: float = 1.0
) -> list[TraceRequest]:
    """Shorten prompts so that a piece has `piece_tokens`, and stretch time and outputs.

    Sharing stays as it is: the number of pieces and their ids do not change.
    """
    factor = piece_tokens / PIECE_TOKENS
    return [
        replace(
            row,
            at=row.at * time,
            input_tokens=math.ceil(row.input_tokens * factor),
            output_tokens=max(1, round(row.output_tokens * output)),
            piece_tokens=piece_tokens,
        )
        for row in rows
    ]


def spread(rows: Sequence[TraceRequest], *, rng: Random) -> list[TraceRequest]:
    """Spread the requests of each tick of the trace's clock evenly at random over the tick.

    Within a tick the counts are those of a Poisson process (variance / mean = 1.1), so nothing is
    lost that the trace knew.
    """
    moved = [replace(row, at=row.at + rng.random() * CLOCK_STEP) for row in rows]
    return sorted(moved, key=lambda row: row.at)


def families(rows: Iterable[TraceRequest], *, shared_pieces: int = 1) -> Iterator[int]:
    """Yield for each row the number of its family: rows that share more than the common start.

    shared_pieces: how many pieces all rows of the trace start with (its system prompt).
    """
    family_of: dict[int, int] = {}
    for number, row in enumerate(rows):
        own = row.pieces[shared_pieces:]
        family = family_of.get(own[0], number) if own else number
        family_of.update((piece, family) for piece in own)
        yield family


def sample_families(
    rows: Sequence[TraceRequest], *, start: Seconds, end: Seconds, every: int
) -> list[TraceRequest]:
    """Keep each `every`-th family that starts in [start, end), without its rows after `end`.

    Times restart at 0, and piece ids are renumbered in order of appearance.
    """
    kept: list[TraceRequest] = []
    begun: dict[int, int] = {}
    numbers: dict[int, int] = {}
    for row, family in zip(rows, families(rows), strict=True):
        if not start <= row.at < end or (family not in begun and rows[family] is not row):
            continue
        if begun.setdefault(family, len(begun)) % every == 0:
            pieces = tuple(numbers.setdefault(piece, len(numbers)) for piece in row.pieces)
            kept.append(replace(row, at=row.at - start, pieces=pieces))
    return kept


def dump(rows: Iterable[TraceRequest]) -> bytes:
    """Write rows as the trace's own format, one JSON object a line."""
    encoded = (
        msgspec.json.encode(
            _Row(round(row.at * 1e3), row.input_tokens, row.output_tokens, list(row.pieces))
        )
        for row in rows
    )
    return b"".join(line + b"\n" for line in encoded)


if __name__ == "__main__":
    from leadsman_bench.fit import main

    sys.exit(main(sys.argv[1:]))
