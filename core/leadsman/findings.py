"""What one request shows of a worker's cache, once it is over.

It found so many tokens cached, by the engine's own usage; the mirror believed, when it admitted the
request, that it would find so many. The difference bears on the trust in the view
(`leadsman.trust`) and on the tiers below the GPU (`leadsman.lower`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from leadsman.holding import Flight
from leadsman.prediction import Price
from leadsman.records import Ended, LoadSample, Trust
from leadsman.steptime import StepWeights
from leadsman.trust import CacheTrust, Finding, Lookup
from leadsman.units import BlockKey, Seconds, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What an outcome shows of a worker's cache. certain: leading keys that are on its GPU."""

    finding: Finding | None = None
    certain: Sequence[BlockKey] = ()


NOTHING_SEEN = Seen()


def lookup_of(flight: Flight) -> Lookup | None:
    """Say what a request was believed to find; None where it was not seen to be admitted.

    What a lower tier was to bring says nothing of the view of the GPU.
    """
    if flight.believed is None or flight.first_at is None or flight.seq.reach:
        return None
    return Lookup(
        request=flight.seq.id,
        granted_at=flight.granted_at,
        first_at=flight.first_at,
        believed=flight.believed,
        claimed=flight.claimed,
        is_alone=flight.is_alone,
    )


def seen_by(flight: Flight, ended: Ended, belief: CacheTrust, size: Tokens) -> Seen:
    """Hold what a request found cached against what it was believed to find; tells `belief`.

    Where the stream does not vouch for what is held, what it found is certain, and so is what it
    stored, where it shows that all else is lost. An engine that sends no events at all keeps what
    it computes, once a request was seen to find anything again.
    """
    found, believed, seq = ended.cached_tokens, flight.believed, flight.seq
    if found is None or not seq.reads_cache:
        return NOTHING_SEEN
    lookup = lookup_of(flight)
    finding = None if lookup is None else belief.found(lookup, found, ended.at)
    if belief.trust not in {Trust.SUSPECT, Trust.BLIND}:
        return Seen(finding=finding)
    depth = found // size
    is_lost = finding is Finding.DOUBTED
    is_kept = belief.keeps and (is_lost or found >= (believed or 0))
    keeps_all = belief.trust is Trust.BLIND and is_kept
    known = max(depth, flight.blocks_seen if is_lost else 0)
    return Seen(finding=finding, certain=seq.keys if keeps_all else seq.keys[:known])


def counted_by(flights: Iterable[Flight], sample: LoadSample, belief: CacheTrust) -> Seen:
    """Take what an engine's counters show; what those stored that run is there, whatever is not."""
    finding = belief.counted(sample)
    if finding is not Finding.DOUBTED:
        return Seen(finding=finding)
    certain = [key for one in flights for key in one.seq.keys[: one.blocks_seen]]
    return Seen(finding=finding, certain=certain)


def late_by(price: Price, ttft: Seconds, found: Tokens, weights: StepWeights) -> Seconds:
    """Say how much later a first token came than had all that was found been on the GPU."""
    n, c = found - price.cached_tokens, price.cached_tokens
    spared = weights.a * n + weights.b * n * (c + 0.5 * n)
    return ttft - (price.ttft - price.load - spared)
