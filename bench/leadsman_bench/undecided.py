"""What is not decided yet of an answer's length, by the very model that the lengths come from.

The conversation model draws a mood for each answer, and the mood's rank among all is the answer's
length; moods of one conversation's turns are correlated (`leadsman_bench.conversation`). A caller
who names a cap names the least of the usual ones that holds his answer (`scenario.wishes`), so the
cap tells a range. What is known of a running answer is therefore the former one's mood, that range,
and the tokens that it has: a cut normal distribution, drawn from here. No forecaster can know more.

A former answer's length says its mood but for the rounding to whole tokens; the middle is taken.
"""

from bisect import bisect_left
from random import Random
from statistics import NormalDist

from leadsman.units import Tokens

from leadsman_bench.conversation import ConversationModel, Quantiles, draw
from leadsman_bench.scenario import CAPS
from leadsman_bench.virtual import Offer

NORMAL = NormalDist()
SURE = 1e-12
"""Ranks are kept so far from 0 and 1, where a normal value has no end."""


def undecided_length(
    model: ConversationModel, offer: Offer, generated: Tokens, rng: Random
) -> Tokens:
    """Draw how long an answer will be that has come to `generated` tokens and goes on."""
    fewest, most = generated + 1, round(model.output[-1])
    cap = offer.request.max_tokens
    if cap is not None:
        smaller = max((other for other in CAPS if other < cap), default=0)
        fewest, most = max(fewest, smaller + 1), min(cap, most)
    if fewest >= most:
        return fewest
    mean, spread = 0.0, 1.0
    if offer.former_output is not None:
        alike = model.output_correlation
        ranks = (rank(model.output, offer.former_output + half) for half in (-0.5, 0.5))
        mean, spread = alike * NORMAL.inv_cdf(_inner(sum(ranks) / 2)), (1 - alike**2) ** 0.5
    moods = NormalDist(mean, spread)
    low, high = (
        moods.cdf(NORMAL.inv_cdf(_inner(rank(model.output, tokens))))
        for tokens in (fewest - 0.5, most + 0.5)
    )
    mood = moods.inv_cdf(_inner(low + rng.random() * (high - low)))
    return min(max(round(draw(model.output, NORMAL.cdf(mood))), fewest), most)


def rank(quantiles: Quantiles, value: float) -> float:
    """Give the probability at which `draw` gives `value`: its inverse."""
    above = bisect_left(quantiles, value)
    if above in (0, len(quantiles)):
        return float(above > 0)
    low, high = quantiles[above - 1], quantiles[above]
    return (above - 1 + (value - low) / (high - low)) / (len(quantiles) - 1)


def _inner(probability: float) -> float:
    return min(max(probability, SURE), 1 - SURE)
