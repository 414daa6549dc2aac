"""What one request shows of a worker's cache, once it is over.

It found so many tokens cached, by the engine's own usage; the mirror believed, when it admitted the
request, that it would find so many. The difference bears on the trust in the view
(`leadsman.trust`) and on the tiers below the GPU (`leadsman.lower`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from leadsman.holding import Flight
from leadsman.prediction import Price
from leadsman.records import Ended, Trust
from leadsman.steptime import StepWeights
from leadsman.trust import CacheTrust, Finding
from leadsman.units import BlockKey, Seconds, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an outcome shows of a worker's cache. certain: leading keys that are on its GPU."""

    finding: Finding | None = None
    certain: Sequence[BlockKey] = ()


NOTHING_SEEN = Seen()


def seen_by(flight: Flight, ended: Ended, belief: CacheTrust, size: Tokens) -> Seen:
    """Hold what a request found cached against what it was believed to find; tells `belief`.

    Where the stream does not vouch for what is held, what it found is certain. An engine that
    sends no events at all keeps what it computes, if it is seen to find anything again. What a
    lower tier did not bring says nothing of the view of the GPU.
    """
    found, believed, seq = ended.cached_tokens, flight.believed, flight.seq
    if found is None or not seq.reads_cache:
        return NOTHING_SEEN
    finding = None
    if believed is not None and not (seq.reach and found < believed):
        finding = belief.found(
            believed=believed, found=found, granted_at=flight.granted_at, now=ended.at
        )
    if belief.trust not in {Trust.SUSPECT, Trust.BLIND}:
        return Seen(finding=finding)
    depth = found // size
    keeps_all = belief.trust is Trust.BLIND and depth and found >= (believed or 0)
    return Seen(finding=finding, certain=seq.keys if keeps_all else seq.keys[:depth])


def late_by(price: Price, ttft: Seconds, found: Tokens, weights: StepWeights) -> Seconds:
    """Say how much later a first token came than had all that was found been on the GPU."""
    n, c = found - price.cached_tokens, price.cached_tokens
    spared = weights.a * n + weights.b * n * (c + 0.5 * n)
    return ttft - (price.ttft - price.load - spared)
