"""When those that decode now will end: as a crowd, not one by one.

Each answer's own median is when it will have ended as likely as not; but of many answers with like
medians some end at once and some much later, and who waits for the first free slot waits for the
soonest. All decode in lockstep, so their ends share one clock, the tick. By t ticks from now
sum(F_i(t)) of them have ended on average, F_i being the chance of the i-th; so the k-th end is
expected where that sum is k - 1/2. Who ends k-th is unknown: the ends are given out in the order of
the medians. One alone ends at its median.

Source: the expected counting process of independent lives; measured against single medians in
docs/adr/0013-ends-as-a-crowd.md.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from leadsman.lengths import PER_OCTAVE, PRIOR_MEAN, Floats
from leadsman.units import Tokens

TICKS: Floats = np.unique(np.round(2.0 ** (np.arange(0.0, 14.1, 0.25))))
"""Where the ends are counted: a quarter of an octave apart, up to 16,384 tokens from now."""


def joint_ends(
    below: Floats, generated: Sequence[Tokens], room: Sequence[Tokens]
) -> npt.NDArray[np.int64]:
    """Give the ticks, at least one, after which each of n decoding answers is expected to end.

    below: each one's chance to end below each edge of `Lengths`, shape (n, edges). generated: its
    output tokens so far. room: tokens that its cap leaves; who will rather come to it than end
    before, ends there. Some 0.3 ms for 64.
    """
    caps = np.array(room, dtype=np.int64)
    ended = _chances(below, np.array(generated, dtype=np.float64))
    medians = (ended < 0.5).sum(axis=1)
    ends = np.maximum(caps, 1)
    free = np.flatnonzero(np.append(TICKS, np.inf)[medians] < caps)
    ended = np.where(caps[free, None] <= TICKS, 1.0, ended[free])
    so_far = np.maximum.accumulate(ended.sum(axis=0)) + 1e-9 * np.arange(len(TICKS))
    moments = np.interp(np.arange(len(free)) + 0.5, so_far, TICKS)
    ends[free[np.argsort(medians[free], kind="stable")]] = np.maximum(1, np.round(moments))
    return np.minimum(ends, np.maximum(caps, 1))


def _chances(below: Floats, generated: Floats) -> Floats:
    """Give each one's chance to have ended at each of TICKS, since it has come so far."""
    alive = 1.0 - _at(below, generated[:, None])
    chances: Floats = 1.0 - (1.0 - _at(below, generated[:, None] + TICKS)) / np.maximum(alive, 1e-9)
    beyond = alive[:, 0] < 1e-6  # longer than any that was seen
    if beyond.any():
        chances[beyond] = 1.0 - np.exp(-TICKS / PRIOR_MEAN)
    return chances


def _at(below: Floats, tokens: Floats) -> Floats:
    """Interpolate each row at its own lengths, shape (n, any)."""
    last = below.shape[1] - 1
    places = np.minimum(PER_OCTAVE * np.log2(np.maximum(tokens, 1.0)), last - 1e-6)
    bins = places.astype(np.int64)
    rows = np.arange(len(below))[:, None]
    low = below[rows, bins]
    at: Floats = low + (places - bins) * (below[rows, bins + 1] - low)
    return at
