"""Fit a curve of three non-negative terms to a few samples of which some are wrong.

Errors are relative. A miss is the logarithm of fit over sample, so that a sample ten times too low
pulls no harder than one ten times too high. Wrong samples are weighed down by reweighting: least
absolute misses first, which no few outliers can drag far, then Tukey's bisquare, which forgets what
lies more than 4.685 robust standard deviations off. Where two of the few samples that carry a term
are wrong by ten times, no reweighting helps (1 in 1,000 with 3 wrong samples of 40).
Source: Beaton and Tukey 1974 (the bisquare); Holland and Welsch 1977 (reweighting, the constant).
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDS_ABSOLUTE = 12
_ROUNDS = 18
_SUPPORTS = tuple(
    np.array(columns) for columns in ((0, 1, 2), (1, 2), (0, 1), (0, 2), (1,), (2,), (0,))
)


def fit_square(
    tokens: Floats, seconds: Floats, *, weights: Floats, start: Floats
) -> tuple[float, float, float]:
    """Fit seconds = overhead + a*tokens + b*tokens^2; returns (overhead, a, b), none negative.

    start: a rough guess of `seconds` to begin from, up to a factor. All shapes (samples,).
    """
    columns = np.stack([np.ones_like(tokens), tokens, tokens * tokens], axis=1)
    scales = columns.max(axis=0)
    rows = columns / scales / seconds[:, None]
    ratios = start / seconds
    ratios /= np.median(ratios)
    for turn in range(_ROUNDS):
        misses = np.abs(np.log(np.maximum(ratios, 1e-6)))
        if turn < _ROUNDS_ABSOLUTE:
            believed = 1.0 / np.maximum(misses, 0.01)
        else:
            spread = max(float(np.median(misses)) * 1.4826, 0.01)
            believed = np.maximum(1.0 - (misses / (4.685 * spread)) ** 2, 0.0) ** 2
        # The solver squares `ratio - 1`; the slope makes that the square of the logarithm.
        slope = np.maximum(misses, 1e-6) / np.maximum(np.abs(ratios - 1.0), 1e-6)
        theta = non_negative(rows, weights * believed * slope**2)
        ratios = rows @ theta
    overhead, a, b = (theta / scales).tolist()
    return overhead, a, b


def non_negative(rows: Floats, weights: Floats) -> Floats:
    """Minimise sum(weights * (rows @ theta - 1)^2) over theta >= 0, shape (3,).

    Tries every support of three variables. The full one, if it is feasible, is the optimum.
    """
    weighted = rows * weights[:, None]
    gram, target = weighted.T @ rows, weighted.sum(axis=0)
    gram[np.diag_indices(3)] *= 1.0 + 1e-12
    best, least = np.zeros(3), 0.0
    for support in _SUPPORTS:
        try:
            part = np.linalg.solve(gram[np.ix_(support, support)], target[support])
        except np.linalg.LinAlgError:
            continue
        if (part < 0).any():
            continue
        loss = -float(part @ target[support])
        if loss < least:
            best, least = np.zeros(3), loss
            best[support] = part
        if len(support) == 3:
            break
    return best
