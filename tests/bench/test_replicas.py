"""Pickers that hear of each other a little late pick as one, in virtual time.

The same requests go to fleets of the same workers and the same luck, once with one picker and once
with two. Each request is decided by one of them, drawn at random, as a gateway balances over them.
What the operator collects from engines, both hear alike; what one saw of its own requests, grants,
first tokens and ends, the other hears RELAY later, as the fleet stream has it.

Plays of other luck differ by more than a tenth, so a play is drawn anew many times, and two pickers
are worse where nearly all draws say so. `REPLICAS_REQUESTS=400 REPLICAS_SEEDS=8 pytest -s` prints
what longer runs say.
"""

import os
from bisect import bisect_left, insort
from collections import Counter
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from random import Random
from statistics import mean

import numpy as np
from leadsman.budget import Budget
from leadsman.prediction import Admitted
from leadsman.records import Ended, Granted, KvEvents, TokensSeen, Trust, TrustChanged
from leadsman.request import Request
from leadsman_bench.scenario import MODEL, workers
from leadsman_bench.simulate import LivePicker
from leadsman_bench.virtual import Offer, VirtualFleet, request_id

REQUESTS = int(os.environ.get("REPLICAS_REQUESTS", "150"))
SEEDS = range(int(os.environ.get("REPLICAS_SEEDS", "5")))
PER_S = 12.0
TOPICS = 12
ALONE = 0.4
SPECS = [replace(workers()[0], name=f"{n}") for n in range(4)]
SIZE = SPECS[0].settings.block_size
RELAY = 0.02
"""Seconds: twice what a replica waits for company before it tells what it saw."""

WORSE = 1.1
DRAWS = 500
CHANCE = 0.02


class Replicas:
    """Pickers that stand for one.

    are_blind: engines publish no cache events. are_deaf: pickers tell each other nothing.
    """

    def __init__(self, pickers, rng, *, are_blind, are_deaf):
        self.pickers, self.rng = pickers, rng
        self.are_blind, self.are_deaf = are_blind, are_deaf
        self.whose, self.under_way, self.order = {}, [], count()

    def apply(self, record, now):
        self.deliver(now)
        if self.are_blind and isinstance(record, KvEvents):
            return
        if self.are_blind and isinstance(record, TrustChanged):
            record = replace(record, trust=Trust.BLIND)
        if not isinstance(record, TokensSeen | Ended):
            for picker in self.pickers:
                picker.apply(record, now)
            return
        mine = self.whose.get(record.request)
        if mine is not None:
            mine.apply(record, now)
            self.tell_others(mine, record, now)

    def decide(self, request, now):
        self.deliver(now)
        mine = self.rng.choice(self.pickers)
        decision = mine.decide(request, now)
        if isinstance(decision, Admitted):
            self.whose[request.id] = mine
            self.tell_others(mine, granted(request, decision, now), now)
        return decision

    def wants_witness(self, worker):
        return self.rng.choice(self.pickers).wants_witness(worker)

    def tell_others(self, mine, record, now):
        for picker in self.pickers:
            if picker is not mine and not self.are_deaf:
                heappush(self.under_way, (now + RELAY, next(self.order), picker, record))

    def deliver(self, now):
        while self.under_way and self.under_way[0][0] <= now:
            at, _, picker, record = heappop(self.under_way)
            picker.apply(record, at)


def granted(request, admitted, now):
    return Granted(
        worker=admitted.worker,
        request=request.id,
        at=now,
        prompt_tokens=request.prompt_tokens,
        keys=request.keys[SIZE],
        max_tokens=request.max_tokens,
        priority=request.priority,
        predicted_ttft=admitted.prediction.price.ttft,
        reads_cache=request.reads_cache,
    )


class Played:
    """What became of one play's requests."""

    def __init__(self):
        self.streams = []

    def ended(self, stream):
        self.streams.append(stream)

    def refused(self, _offer, refused):
        raise AssertionError(refused)

    def errors(self):
        pairs = ((one.admitted.prediction.price.ttft, one.ttft) for one in self.streams)
        return [abs(predicted - actual) for predicted, actual in pairs]

    def imbalances(self):
        """Give, as each request arrives, how far the fullest and the emptiest worker are apart."""
        running, ends, found = Counter({spec.name: 0 for spec in SPECS}), [], []
        for one in sorted(self.streams, key=lambda one: one.sent_at):
            over = bisect_left(ends, (one.sent_at, ""))
            running.subtract(worker for _, worker in ends[:over])
            del ends[:over]
            running[one.admitted.worker] += 1
            insort(ends, (one.ended_at, one.admitted.worker))
            found.append(max(running.values()) - min(running.values()))
        return found


def offers(seed):
    """Ask about one of a few topics, whose beginning is cached, or about one of its own."""
    rng, now = Random(f"{seed}/callers"), 0.0
    for number in range(REQUESTS):
        now += rng.expovariate(PER_S)
        topic = number + TOPICS if rng.random() < ALONE else rng.randrange(TOPICS)
        prompt = rng.choice([500, 1500, 4000])
        keys = np.random.default_rng(topic).integers(1 << 64, size=prompt // SIZE, dtype=np.uint64)
        request = Request(
            id=request_id(number),
            model=MODEL,
            prompt_tokens=prompt + 20,
            arrived_at=now,
            keys={SIZE: keys},
        )
        yield Offer(request=request, output_tokens=rng.choice([20, 100, 300]))


def play(seed, pickers, *, are_blind=False, are_deaf=False):
    shadow = Budget(mode="shadow")
    made = [LivePicker(shadow, Random(f"{seed}/{n}")) for n in range(pickers)]
    played = Played()
    rng = Random(f"{seed}/gateway")
    picker = Replicas(made, rng, are_blind=are_blind, are_deaf=are_deaf)
    fleet = VirtualFleet(SPECS, picker, played, seed=seed)
    for _ in fleet.run(offers(seed), iter(())):
        pass
    return played


def ratios(one, two, figures):
    """Give what two's figure by one's may as well have been, from the least on."""
    rng = Random(0)
    pairs = [(figures(a), figures(b)) for a, b in zip(one, two, strict=True)]

    def again():
        drawn = rng.choices(pairs, k=len(pairs))
        a, b = (mean([n for pair in drawn for n in pair[which]]) for which in (0, 1))
        return b / a

    found = sorted(again() for _ in range(DRAWS))
    print(f"\n{figures.__name__}: {found[DRAWS // 2]:.2f}, {found[0]:.2f} to {found[-1]:.2f}")
    return found


def test_two_pickers_predict_as_well_and_spread_as_evenly_as_one():
    one, two = ([play(seed, pickers) for seed in SEEDS] for pickers in (1, 2))

    for figures in (Played.errors, Played.imbalances):
        assert ratios(one, two, figures)[int(CHANCE * DRAWS)] <= WORSE


def test_two_pickers_to_whom_nobody_tells_anything_are_found_to_be_worse():
    one = [play(seed, 1, are_blind=True) for seed in SEEDS]
    two = [play(seed, 2, are_blind=True, are_deaf=True) for seed in SEEDS]

    assert ratios(one, two, Played.errors)[int(CHANCE * DRAWS)] > WORSE
