"""How well could anybody predict? The share of hits that chance leaves to a perfect forecaster.

At some decisions, just after the request was sent, the worker's *true* engine is copied, and run to
the request's first token again and again. What has been decided is kept: who runs and waits there
with how many tokens, every block, the time of the step that runs, how fast the hardware is. What
has not been decided is drawn anew each time, from what the simulation itself draws it from: how
long the answers will be (`undecided`), each step's jitter and stalls, and who will come next (gaps
and prompts of the worker's recent requests, at random). So the first tokens are spread as they are
by chance alone, and a forecaster who knew everything could do no better than name the point that
most of them are near. That point is scored twice: on what really came, which no draw knew, and on
draws that it was not chosen from.

Ignored: that an engine may be killed or slowed before the first token.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean

import msgspec
from leadsman.residuals import unit
from leadsman.units import Seconds, Tokens, WorkerId
from leadsman_engines.simulated.engine import SimulatedEngine
from leadsman_engines.simulated.sequences import SimulatedRequest

from leadsman_bench.conversation import ConversationModel
from leadsman_bench.scenario import load_at
from leadsman_bench.summary import band
from leadsman_bench.undecided import undecided_length
from leadsman_bench.virtual import NETWORK, Offer, Stream, VirtualWorker

DRAWS = 32
RECENT = 32
"""Requests of a worker that those who come next are drawn from."""

FOLLOWERS = 16
"""How many come next, at most: those behind them wait for a request's first token themselves."""

STRIDE: Seconds = 0.5
"""How far a copy is run at a time."""

Reach = Callable[[Seconds], Seconds]
"""How far a prediction may be off that came out so."""


def one_second(_actual: Seconds) -> Seconds:
    """Give the absolute criterion."""
    return 1.0


@dataclass(slots=True)
class Sampled:
    """A decision, and the seconds to its first token that chance might have made of it."""

    stream: Stream
    draws: list[Seconds]


class Odds(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of hits at the sampled decisions of a group.

    ours: of the predictions. best: of the perfect forecaster, on what came. expected: of the same,
    on draws.
    """

    decisions: int
    within_1s_ours: float
    within_1s_best: float
    within_1s_expected: float
    within_relative_ours: float
    within_relative_best: float
    within_relative_expected: float


class Chance:
    """Looks on at a run, and draws what might have come of every so many decisions."""

    def __init__(self, model: ConversationModel, *, every: int, seed: int) -> None:
        self._model = model
        self._every = every
        self._rng = Random(f"{seed}/chance")
        self._sent = 0
        self._recent: defaultdict[WorkerId, deque[tuple[Seconds, Tokens, Offer]]] = defaultdict(
            lambda: deque(maxlen=RECENT)
        )
        self.sampled: list[Sampled] = []

    def sent(self, stream: Stream, worker: VirtualWorker) -> None:
        """See a request that has just been sent, and the worker as it is now."""
        self._sent += 1
        if self._sent % self._every == 0:
            draws = [self._draw(stream, worker) for _ in range(DRAWS)]
            self.sampled.append(Sampled(stream, draws))
        prediction = stream.admitted.prediction
        request = stream.offer.request
        cached = 0 if prediction is None else prediction.price.cached_tokens
        came = (stream.sent_at, request.prompt_tokens - cached, stream.offer)
        self._recent[worker.id].append(came)

    def _draw(self, stream: Stream, worker: VirtualWorker) -> Seconds:
        """Run a copy of the engine to the request's first token, with a chance of its own."""
        assert isinstance(worker.engine, SimulatedEngine)
        engine = worker.engine.copy(Random(self._rng.random()))
        for tracked in engine.unfinished:
            offer, cap = worker.streams[tracked.id].offer, tracked.last_useful - tracked.prompt
            made = tracked.tokens - tracked.prompt
            length = undecided_length(self._model, offer, made, self._rng)
            tracked.ends_at = tracked.prompt + min(length, cap)
        for at, follower in self._followers(stream.sent_at, worker.id):
            engine.submit(follower, at)
        while (moment := engine.next_time()) is not None:
            for output in engine.advance(moment + STRIDE):
                if stream.offer.request.id in output.first:
                    return output.ended_at + NETWORK - stream.sent_at
        raise AssertionError("an engine gives each request a first token")

    def _followers(
        self, at: Seconds, worker: WorkerId
    ) -> Iterator[tuple[Seconds, SimulatedRequest]]:
        """Draw who comes next: nothing is cached of the tokens that others had to compute."""
        recent = self._recent[worker]
        if len(recent) < 2:
            return
        gaps = [after[0] - before[0] for before, after in pairwise(recent)]
        for number in range(FOLLOWERS):
            at += self._rng.choice(gaps)
            _, tokens, offer = self._rng.choice(recent)
            yield (
                at,
                SimulatedRequest(
                    id=f"follower {number}",
                    prompt_tokens=max(1, tokens),
                    output_tokens=offer.output_tokens,
                ),
            )

    def by_load(self) -> dict[str, Odds]:
        """Sum up by offered load."""
        bands: defaultdict[str, list[Sampled]] = defaultdict(list)
        for one in self.sampled:
            if one.stream.ttft is not None and one.stream.admitted.prediction is not None:
                bands[band(load_at(one.stream.sent_at))].append(one)
        return {name: odds(group) for name, group in sorted(bands.items())}


def odds(sampled: Sequence[Sampled]) -> Odds:
    """Compute the shares of a group; each member has a prediction and a first token."""
    ours: dict[Reach, list[bool]] = {one_second: [], unit: []}
    best: dict[Reach, list[bool]] = {one_second: [], unit: []}
    expected: dict[Reach, list[float]] = {one_second: [], unit: []}
    for one in sampled:
        actual, prediction = one.stream.ttft, one.stream.admitted.prediction
        assert actual is not None
        assert prediction is not None
        for reach in (one_second, unit):
            ours[reach].append(abs(prediction.price.ttft - actual) <= reach(actual))
            best[reach].append(abs(best_point(one.draws, reach) - actual) <= reach(actual))
            halves = one.draws[::2], one.draws[1::2]
            expected[reach] += [
                share_hit(best_point(a, reach), b, reach) for a, b in (halves, halves[::-1])
            ]
    return Odds(
        decisions=len(sampled),
        within_1s_ours=fmean(ours[one_second]),
        within_1s_best=fmean(best[one_second]),
        within_1s_expected=fmean(expected[one_second]),
        within_relative_ours=fmean(ours[unit]),
        within_relative_best=fmean(best[unit]),
        within_relative_expected=fmean(expected[unit]),
    )


def best_point(draws: Sequence[Seconds], reach: Reach) -> Seconds:
    """Give the point that is near enough to most of the draws, in the middle of all such points."""
    edges = [(draw - reach(draw), 1) for draw in draws]
    edges += [(draw + reach(draw), -1) for draw in draws]
    depth = deepest = 0
    best = (0.0, 0.0)
    for (edge, change), (following, _) in pairwise(sorted(edges, key=lambda e: (e[0], -e[1]))):
        depth += change
        if depth > deepest:
            deepest, best = depth, (edge, following)
    return sum(best) / 2


def share_hit(point: Seconds, draws: Sequence[Seconds], reach: Reach) -> float:
    """Give the share of the draws that the point is near enough to."""
    return sum(abs(point - draw) <= reach(draw) for draw in draws) / len(draws)
