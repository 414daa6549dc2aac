"""How well C(N) fits what the engine took for isolated prompts.

The curve is fitted as a picker fits its own, to the same samples: the first one, which warms the
engine up, is thrown away. Residuals are relative, real to fitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from leadsman.curve import CurveLearner
from leadsman.units import Seconds, Tokens
from leadsman_bench.traces import TraceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveFit:
    """C(N) = overhead + a·N + b·N², and by how much single samples differ from it."""

    overhead: Seconds
    a: float
    b: float
    samples: int
    median_residual: float
    largest_residual: float

    def seconds(self, tokens: Tokens) -> Seconds:
        """Give C(tokens)."""
        return self.overhead + self.a * tokens + self.b * tokens**2


def fit(samples: Sequence[tuple[Tokens, Seconds]]) -> CurveFit | None:
    """Fit the curve; None where the samples are too few or too alike."""
    learner = CurveLearner("isolated")
    for tokens, seconds in samples:
        learner.add(tokens, seconds)
    if (curve := learner.curve) is None:
        return None
    off = np.abs([seconds / curve.seconds(tokens) - 1 for tokens, seconds in learner.samples])
    return CurveFit(
        overhead=curve.overhead,
        a=curve.a,
        b=curve.b,
        samples=len(off),
        median_residual=float(np.median(off)),
        largest_residual=float(off.max()),
    )


def work(rows: Sequence[TraceRequest], curve: CurveFit) -> Seconds:
    """Sum the isolated prefills of rows in turn, each without what an earlier one has in common."""
    seen, seconds = set[int](), 0.0
    for row in rows:
        known = sum(1 for _ in takewhile(seen.__contains__, row.pieces)) * row.piece_tokens
        seconds += curve.seconds(row.input_tokens) - curve.seconds(min(known, row.input_tokens))
        seconds += curve.overhead
        seen.update(row.pieces)
    return seconds
