"""Which worker to send a request to: the one with the least predicted TTFT, without asking all.

A price costs 40-250 us, so 256 of them are out of the question. But a worker's TTFT is never below
its floor (`standing`): the request's own uncached prefill plus the prefill that is surely ahead.
Replaying in the order of the floors, until the next floor is no better than the best price so far,
finds the same worker as replaying all. Two prices within 1 ms or 1 % of each other are the same:
predictions are not good to that, and identical idle workers must not all be replayed. After
`MOST_REPLAYS` the best so far is taken: many equally loaded workers differ by less than their
predictions err.

A session keeps its home until another worker is cheaper by more than the budget's cost of moving;
a request that prefers its cache goes to the cheapest of those that hold most of its prompt. A
request of no session now and then goes to who is passed over, to see whether rightly (`looks`).
Deliberately not here: any weight on load or cache beside the price, which has both in it.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np

from leadsman.budget import Budget
from leadsman.candidates import Candidates, Floats, Ints, Soundings
from leadsman.looks import MOST, REST
from leadsman.units import Seconds

MOST_REPLAYS = 8
"""Replays that one routing may cost: 0.3-2 ms."""

SAME_SECONDS = 1e-3
SAME_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The candidate to take, by its place among the candidates, and why this one."""

    index: int
    because: Literal["cheapest", "home", "cache", "look"]


def route(soundings: Soundings, budget: Budget, rng: Random) -> Choice:
    """Choose among one or more ready candidates."""
    candidates = soundings.candidates
    if soundings.request.prefers_cache and (most := candidates.cached.max()) > 0:
        warm = np.flatnonzero(candidates.cached == most)
        return Choice(index=_cheapest(soundings, warm, rng, home=None), because="cache")
    everyone = np.arange(len(candidates.workers))
    home = _home(candidates)
    below = math.inf
    if home is not None:
        below = soundings.sound(home).price.ttft - budget.session_move_cost
    index = _cheapest(soundings, everyone, rng, home=home, below=below)
    if home is None and (passed_over := _look(soundings, index)) is not None:
        return Choice(index=passed_over, because="look")
    return Choice(index=index, because="home" if index == home else "cheapest")


def _home(candidates: Candidates) -> int | None:
    if candidates.home is None:
        return None
    here = (i for i, worker in enumerate(candidates.workers) if worker.worker == candidates.home)
    return next(here, None)


def _cheapest(
    soundings: Soundings, among: Ints, rng: Random, *, home: int | None, below: Seconds = math.inf
) -> int:
    """Find the least price below `below`; `home` where nobody's is."""
    best, best_ttft = home, below
    for index in by_floor(soundings.floors, among, rng):
        if soundings.floors[index] >= best_ttft - same(best_ttft) or len(soundings) >= MOST_REPLAYS:
            break
        ttft = soundings.sound(index).price.ttft
        if ttft < best_ttft:
            best, best_ttft = index, ttft
    assert best is not None, "the first candidate is always sounded where there is no home"
    return best


def _look(soundings: Soundings, best: int) -> int | None:
    """Find who has idled longest of those passed over, where it costs no more than a look may."""
    candidates, now = soundings.candidates, soundings.now
    rested = candidates.idle_since <= now - REST
    most = candidates.looks.affordable(now)
    if most <= SAME_SECONDS or not rested.any():
        return None
    best_ttft = soundings.sound(best).price.ttft
    more = soundings.floors - best_ttft
    is_short = soundings.floors <= MOST
    places = np.flatnonzero(rested & is_short & (more > same(best_ttft)) & (more <= most))
    if not len(places):
        return None
    index = int(places[candidates.idle_since[places].argmin()])
    price = soundings.sound(index).price.ttft - best_ttft
    if price > most:
        return None
    candidates.looks.spend(price, now)
    return index


def same(seconds: Seconds) -> Seconds:
    """Give the difference below which two prices of this size are the same."""
    return max(SAME_SECONDS, SAME_SHARE * seconds) if math.isfinite(seconds) else 0.0


def by_floor(floors: Floats, among: Ints, rng: Random) -> Iterator[int]:
    """Walk candidates in the order of their floors, those of the same floor at random.

    Of a group of the same floor at most MOST_REPLAYS are given: no more can be asked. Each is drawn
    as it is asked for, since the first is mostly enough.
    """
    order = among[floors[among].argsort()]
    places, ranked = order.tolist(), floors[order].tolist()
    start = 0
    while start < len(places):
        end = bisect_right(ranked, ranked[start] + same(ranked[start]), start)
        for at in range(start, min(end, start + MOST_REPLAYS)):
            drawn = at + int(rng.random() * (end - at))
            places[at], places[drawn] = places[drawn], places[at]
            yield places[at]
        start = end
