"""What was known of the candidates of one decision without a replay: what a record of it needs.

A decision predicts on few workers and knows a floor of all. Who reads its record later asks what
the others would have cost, and what of the prompt the fleet held anywhere. Plain values, since a
record outlives the arrays' owner; the likeliest workers alone, since a fleet may have hundreds.
"""

from dataclasses import dataclass
from typing import Final

from leadsman.units import Seconds, Tokens, WorkerId

MOST_TOLD: Final = 16
"""Workers that are told of: twice as many as a routing asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The candidates with the lowest floors, in that order, and what holds of all of them.

    Lists have one entry a worker of `workers`, as in `Candidates`. ready: how many candidates there
    were. held: the most prompt tokens that any of them holds, and `holder` is who does. home: where
    the request's session lives; None: nowhere.
    """

    workers: tuple[WorkerId, ...]
    cached: list[Tokens]
    own_floors: list[Seconds]
    wait_floors: list[Seconds]
    measured: list[bool]
    ready: int
    held: Tokens
    holder: WorkerId
    home: WorkerId | None = None
