"""Fits the conversation model to a whole trace, and measures what both must agree on.

A turn's former turn is the latest request that had its last shared piece. The trace's ends hide
turns: families are counted that start after its first ten minutes (before, a first turn may be the
later turn of a family whose start is cut off), chances of another turn until fifteen minutes before
its end (97 % of the pauses are shorter).
"""

import argparse
import gzip
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import pi, sin
from pathlib import Path

import msgspec
import numpy as np
from leadsman.units import Seconds, Tokens

from leadsman_bench.conversation import (
    Continuation,
    ConversationModel,
    Provenance,
    Quantiles,
    Statistics,
)
from leadsman_bench.traces import TraceError, TraceRequest, dump, load, sample_families

SHARED_PIECES = 1
FAMILY_STARTS_AFTER: Seconds = 600.0
SEEN_FOR: Seconds = 900.0
LENGTHS = (1000, 8000, 40000)
LAST_TURN = 8
QUANTILES = 257


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A row with its place in its family; `former` is None for the first turn.

    reused: how many leading pieces an earlier request had.
    """

    row: TraceRequest
    former: TraceRequest | None
    number: int
    started_at: Seconds
    reused: int

    @property
    def beyond(self) -> int:
        """Pieces shared beyond the former prompt's full ones: > 0 repeated, < 0 rewound."""
        return self.reused - len(self.former.full_pieces) if self.former else 0


def turns_of(rows: Sequence[TraceRequest]) -> list[Turn]:
    """Find each row's former turn. O(pieces)."""
    owner: dict[int, Turn] = {}
    turns: list[Turn] = []
    for row in rows:
        reused = next((n for n, piece in enumerate(row.pieces) if piece not in owner), None)
        reused = len(row.pieces) if reused is None else reused
        before = owner[row.pieces[reused - 1]] if reused > SHARED_PIECES else None
        turn = Turn(
            row=row,
            former=before.row if before else None,
            number=before.number + 1 if before else 1,
            started_at=before.started_at if before else row.at,
            reused=reused,
        )
        owner.update((piece, turn) for piece in row.pieces)
        turns.append(turn)
    return turns


def measure(turns: Sequence[Turn]) -> Statistics:
    """Measure the statistics of a trace. turns: at least one, in order of arrival."""
    span = max(turns[-1].row.at - turns[0].row.at, 1e-9)
    first = sum(turn.former is None for turn in turns)
    return Statistics(
        requests=len(turns),
        requests_per_s=len(turns) / span,
        mean_input_tokens=float(np.mean([turn.row.input_tokens for turn in turns])),
        mean_output_tokens=float(np.mean([turn.row.output_tokens for turn in turns])),
        reused_share=sum(turn.reused for turn in turns)
        / sum(len(turn.row.pieces) for turn in turns),
        follow_up_share=1 - first / len(turns),
        mean_family_requests=len(turns) / first,
    )


def fit(rows: Sequence[TraceRequest], *, provenance: Provenance) -> ConversationModel:
    """Compute every parameter of the model from a trace's rows."""
    turns = turns_of(rows)
    later = [(turn, turn.former) for turn in turns if turn.former]
    later_turn = [_chance(turns, number, None) for number in range(2, LAST_TURN)]
    later_turn.append(_chance(turns, LAST_TURN, None))
    longest = max(row.input_tokens for row in rows)
    continuations = [_continuation(turns, band) for band in pairwise((0, *LENGTHS, longest))]
    return ConversationModel(
        provenance=provenance,
        statistics=msgspec.structs.replace(
            measure(turns), mean_family_requests=_mean_family(turns, continuations, later_turn)
        ),
        first_input=_quantiles([turn.row.input_tokens for turn in _first_turns(turns)]),
        output=_quantiles([row.output_tokens for row in rows]),
        output_correlation=_rank_correlation(
            [former.output_tokens for _, former in later],
            [turn.row.output_tokens for turn, _ in later],
        ),
        later_turn=later_turn,
        pause=_quantiles([turn.row.at - former.at for turn, former in later]),
        continuations=continuations,
    )


def _continuation(turns: Sequence[Turn], band: tuple[Tokens, Tokens]) -> Continuation:
    """Describe what follows prompts longer than `band[0]` and up to `band[1]` tokens."""
    over, up_to = band
    later = [(t, t.former) for t in turns if t.former and over < t.former.input_tokens <= up_to]
    whole = [(turn.row, former) for turn, former in later if turn.beyond == 0]
    rewound = [(turn, former) for turn, former in later if turn.beyond < 0]
    return Continuation(
        up_to=up_to,
        second_turn=_chance(turns, 1, band),
        repeated_share=round(float(np.mean([turn.beyond > 0 for turn, _ in later])), 4),
        rewound_share=round(len(rewound) / len(later), 4),
        added=_quantiles(
            [row.input_tokens - former.input_tokens - former.output_tokens for row, former in whole]
        ),
        kept=_quantiles([turn.reused / len(former.full_pieces) for turn, former in rewound]),
        resized=_quantiles(
            [turn.row.input_tokens / former.input_tokens for turn, former in rewound]
        ),
    )


def _quantiles(values: Sequence[float]) -> Quantiles:
    """Return about as many quantiles as there are values, at most QUANTILES; none of none."""
    if not values:
        return []
    steps = np.linspace(0, 1, min(QUANTILES, max(2, len(values))))
    return [float(f"{value:.5g}") for value in np.quantile(values, steps)]


def _rank_correlation(left: Sequence[float], right: Sequence[float]) -> float:
    """Return the correlation of a Gaussian copula that has the ranks' correlation."""
    ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (left, right)]
    return round(2 * sin(pi / 6 * float(np.corrcoef(ranks[0], ranks[1])[0, 1])), 4)


def _first_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Return the first turns, without early ones, which may be later turns cut off."""
    return [turn for turn in turns if turn.former is None and turn.row.at > FAMILY_STARTS_AFTER]


def _chance(turns: Sequence[Turn], number: int, band: tuple[Tokens, Tokens] | None) -> float:
    """Return how often a `number`-th turn (or later, of LAST_TURN) was followed by another."""
    end = turns[-1].row.at
    continued = {id(turn.former) for turn in turns if turn.former}
    seen = [
        id(turn.row) in continued
        for turn in turns
        if min(turn.number, LAST_TURN) == number
        and turn.started_at > FAMILY_STARTS_AFTER
        and turn.row.at < end - SEEN_FOR
        and (band is None or band[0] < turn.row.input_tokens <= band[1])
    ]
    return round(float(np.mean(seen)), 4)


def _mean_family(
    turns: Sequence[Turn], continuations: Sequence[Continuation], later_turn: Sequence[float]
) -> float:
    """Return a family's mean requests by the chances, unlike the trace's count free of its ends."""
    firsts = [turn.row.input_tokens for turn in _first_turns(turns)]
    alive = float(
        np.mean([next(c.second_turn for c in continuations if n <= c.up_to) for n in firsts])
    )
    mean = 1 + alive
    for chance in later_turn[:-1]:
        alive *= chance
        mean += alive
    last = later_turn[-1]
    return round(mean + alive * last / (1 - last), 4)


def main(argv: list[str]) -> int:
    """Run `python -m leadsman_bench.traces fit FILE` or `... sample FILE`."""
    parser = argparse.ArgumentParser(prog="python -m leadsman_bench.traces")
    parser.add_argument("action", choices=["fit", "sample"])
    parser.add_argument("file", type=Path, help="conversation_trace.jsonl of Mooncake's FAST'25")
    parser.add_argument("--out", type=Path, help="write there instead of to the terminal")
    arguments = parser.parse_args(argv)
    try:
        rows = load(arguments.file)
    except (OSError, TraceError) as error:
        print(f"cannot read the trace: {error}", file=sys.stderr)
        return 2
    if arguments.action == "sample":
        kept = sample_families(rows, start=1200.0, end=2220.0, every=3)
        content = gzip.compress(dump(kept), mtime=0)
    else:
        provenance = Provenance(
            source="Mooncake FAST25-release/traces/conversation_trace.jsonl, Apache-2.0",
            sha256=hashlib.sha256(arguments.file.read_bytes()).hexdigest(),
            rows=len(rows),
            command="python -m leadsman_bench.traces fit conversation_trace.jsonl",
        )
        encoded = msgspec.json.encode(fit(rows, provenance=provenance))
        content = msgspec.json.format(encoded, indent=1) + b"\n"
    if arguments.out:
        arguments.out.write_bytes(content)
    else:
        sys.stdout.buffer.write(content)
    return 0
