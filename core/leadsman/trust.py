"""How far one worker's cache view is believed, and why.

Two witnesses speak of it. Its event stream says whether events were missed (live, replaying,
suspect, blind). What requests really found cached says whether the view is right: an engine may
lose its cache without a word, and whoever follows it believes in blocks that are gone. So what was
believed of each request when it was admitted is held against what it found: by its own usage, or by
the engine's counters of prefix hits, over a stretch that some requests surely fell in, whichever is
known first: counters are read while an answer is written, usage comes with its end. Misses in a row
put the whole view in doubt, or one alone where nothing else ran that could have evicted anything.
Blocks that a request found are certain.

What is in doubt is judged both ways. Once requests find again what is believed, all that is still
in doubt is given up; once they find what is in doubt, it is right after all, as it mostly is where
only some events were lost.

Hits that come from elsewhere only hide a miss in the counters, they never make one. Blocks that
nobody holds count as free in an engine's usage of its cache, so that a reset does not show there.
Source: vLLM 0.32 v1/metrics/loggers.py, prefix_cache_queries and prefix_cache_hits: tokens, counted
at a request's first admission. A reset of an idle engine's cache sends no event (issue 2287 of
vllm-project/aibrix).
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from leadsman.records import LoadSample, Trust
from leadsman.units import RequestId, Seconds, Tokens

MISSES: Final = 2
"""Misses in a row that put a view in doubt: one may be a race with an eviction, if others run."""

HITS: Final = 3
"""Hits in a row after which what is left in doubt is given up."""

LONGEST: Final[Seconds] = 5.0
"""A stretch of counters that shows nothing is begun anew after so long."""

SLACK: Final[Seconds] = 0.25
"""A page of counters may be as much newer than the moment at which it was asked for."""


class Finding(Enum):
    """What outcomes say of a view as a whole."""

    DOUBTED = auto()
    """All that is held is in doubt from now on."""
    SETTLED = auto()
    """What is in doubt still is gone; the rest is right."""
    VOUCHED = auto()
    """What is in doubt is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One request that was admitted: what it was believed to find, and between which moments.

    claimed: what it would have found were nothing in doubt. is_alone: nothing else ran meanwhile.
    """

    request: RequestId
    granted_at: Seconds
    first_at: Seconds
    believed: Tokens
    claimed: Tokens
    is_alone: bool = False


class CacheTrust:
    """What the stream and the outcomes say of one worker's view.

    keeps: whether a request was ever seen to find anything, so that it keeps what it computes.
    """

    def __init__(self) -> None:
        self.stream = Trust.BLIND
        self.doubt: str | None = None
        self.keeps = False
        self._stream_reason = "nothing heard of its cache yet"
        self._since: Seconds | None = None
        self._missed = self._held = self._vouched = 0
        self._has_usage = False
        self._counted: LoadSample | None = None
        self._lookups: deque[Lookup] = deque()
        self._judged: set[RequestId] = set()

    @property
    def trust(self) -> Trust:
        """How far the view is believed: doubt makes one suspect that its stream vouches for."""
        return self.stream if self.doubt is None or self.is_weak else Trust.SUSPECT

    @property
    def reason(self) -> str:
        """Why."""
        return self._stream_reason if self.doubt is None or self.is_weak else self.doubt

    @property
    def is_weak(self) -> bool:
        """Whether the stream itself does not vouch for the view."""
        return self.stream in {Trust.SUSPECT, Trust.BLIND}

    def told(self, trust: Trust, reason: str) -> None:
        """Take the stream's own word."""
        self.stream, self._stream_reason = trust, reason

    def cleared(self, now: Seconds) -> None:
        """Note that the engine holds nothing from before `now`: there is nothing left to doubt."""
        self.doubt, self._since = None, now
        self._missed = self._held = self._vouched = 0

    def found(self, lookup: Lookup, found: Tokens, now: Seconds) -> Finding | None:
        """Hold what a request found, by its own usage, against what was believed."""
        self._has_usage = True
        self.keeps |= found > 0
        if lookup.request in self._judged:
            return None
        believed, claimed = lookup.believed, lookup.claimed
        vouched = None
        if claimed > believed:
            vouched = self._vouch(was_there=2 * found > believed + claimed)
        is_sure = lookup.is_alone and not found
        return vouched or self._judge(believed, found, lookup.granted_at, now, is_sure=is_sure)

    def admitted(self, lookup: Lookup) -> None:
        """Keep a lookup until the engine's counters tell of it."""
        is_counted = self._counted is not None and self._counted.prefix_hits is not None
        if lookup.claimed and is_counted:
            self._lookups.append(lookup)

    def ended(self, request: RequestId) -> None:
        """Note that a request is over: where usage is reported, its own has told what it found."""
        self._judged.discard(request)
        if self._has_usage:
            self._lookups = deque(one for one in self._lookups if one.request != request)

    def counted(self, sample: LoadSample) -> Finding | None:
        """Hold the engine's own count of hits against the lookups that surely fell in between."""
        before, hits = self._counted, sample.prefix_hits
        if hits is None or before is None or before.prefix_hits is None:
            self._begin(sample)
            return None
        more = hits - before.prefix_hits
        began = before.at + SLACK
        inside = [x for x in self._lookups if x.granted_at > began and x.first_at <= sample.at]
        if not inside and sample.at - before.at < LONGEST:
            return None
        self._begin(sample)
        if more < 0 or not inside:
            return None
        if self._has_usage:
            self._judged.update(one.request for one in inside)
        believed = sum(one.believed for one in inside)
        claimed = sum(one.claimed for one in inside)
        # To the token: what others found is not taken for what is in doubt, nor held against it.
        is_told = claimed > believed and more <= claimed
        vouched = self._vouch(was_there=more == claimed) if is_told else None
        is_sure = not more and any(one.is_alone for one in inside)
        return vouched or self._judge(believed, round(more), before.at, sample.at, is_sure=is_sure)

    def _begin(self, sample: LoadSample) -> None:
        """Begin a stretch: what was sent before it may have been counted before it."""
        self._counted = sample
        self._lookups = deque(one for one in self._lookups if one.granted_at > sample.at + SLACK)

    def _vouch(self, *, was_there: bool) -> Finding | None:
        """Count how often in a row what was in doubt was found."""
        self._vouched += 1
        if self.stream is Trust.BLIND or not was_there:
            self._vouched = 0
        if self._vouched < HITS:
            return None
        self.doubt, self._vouched = None, 0
        return Finding.VOUCHED

    def _judge(
        self,
        believed: Tokens,
        found: Tokens,
        granted_at: Seconds,
        now: Seconds,
        *,
        is_sure: bool,
    ) -> Finding | None:
        if not believed or (self._since is not None and granted_at <= self._since):
            return None
        if 2 * found > believed:
            self._missed, self._held = 0, self._held + 1
            if self.doubt is None or self._held < HITS:
                return None
            self.doubt = None
            return Finding.SETTLED
        self._missed, self._held = self._missed + 1, 0
        if self._missed < MISSES and not is_sure:
            return None
        self.doubt = f"{self._missed} times in a row less was found cached than believed"
        if is_sure:
            self.doubt = "nothing was found cached, and nothing else ran that could have evicted it"
        self._since, self._missed = now, 0
        return Finding.DOUBTED
