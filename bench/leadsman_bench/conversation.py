"""Conversations without end that have the statistics of the conversation trace.

What does a fleet see when people talk to a model for hours? Families of turns. A family starts
with a prompt whose length follows the trace's first turns; with a chance that depends on how many
turns it has had, another turn follows after a pause; that turn's prompt repeats the one before it
and adds the answer and new text, or repeats only a beginning of it (a document was exchanged, old
turns were dropped), or repeats it whole (the answer is asked for again). Output lengths follow the
trace's, and those of one family resemble each other (a Gaussian copula with the trace's rank
correlation). Families start as a Poisson process: the trace's counts per tick of its clock have
1.1 times the variance of one. The first piece is the same for all, as in the trace.

How a conversation goes on depends on the length that it has: the shortest first prompts (titles,
probes) have no second turn, long ones are rewound more often. Ignored is any daily rhythm: the
trace holds 59 minutes.

Every parameter is computed from the whole trace by `leadsman_bench.fit`, and stands in
data/conversation_model.json with the trace's SHA-256.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import resources
from itertools import count
from random import Random
from statistics import NormalDist

import msgspec
from leadsman.units import Seconds, Tokens

from leadsman_bench.traces import PIECE_TOKENS, TraceRequest

Quantiles = list[float]
"""A distribution as its quantiles at equal steps of probability, first 0, last 1."""

MODEL_FILE = "conversation_model.json"
WARM_UP: Seconds = 1800.0
"""How long families run before time 0, so that later turns have their share from the start."""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model's parameters come from."""

    source: str
    sha256: str
    rows: int
    command: str


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace and its imitation must agree on.

    reused_share: of all pieces, those of a prefix that an earlier request had.
    follow_up_share: of all requests, those that share more than the common start.
    """

    requests: int
    requests_per_s: float
    mean_input_tokens: float
    mean_output_tokens: float
    reused_share: float
    follow_up_share: float
    mean_family_requests: float


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations go on after a prompt of at most `up_to` tokens.

    second_turn: the chance that a first turn of this length is followed by another.
    added: tokens beyond the former prompt and answer.
    kept / resized: where a prompt is rewound, the share of the former's full pieces that stay,
        and the new length in units of the former.
    """

    up_to: Tokens
    second_turn: float
    repeated_share: float
    rewound_share: float
    added: Quantiles
    kept: Quantiles
    resized: Quantiles


class ConversationModel(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the conversations.

    later_turn: chance of one more turn after 2, 3, ... turns; the last holds for all later.
    pause: seconds from a turn to the next.
    continuations: by length of the former prompt, shortest first; the last one's `up_to` is the
        longest prompt there is.
    """

    provenance: Provenance
    statistics: Statistics
    first_input: Quantiles
    output: Quantiles
    output_correlation: float
    later_turn: list[float]
    pause: Quantiles
    continuations: list[Continuation]

    def continuation(self, input_tokens: Tokens) -> Continuation:
        """Return how a conversation goes on after a prompt of that length."""
        return next(c for c in self.continuations if input_tokens <= c.up_to)

    @property
    def longest_input(self) -> Tokens:
        """Tokens of the longest prompt."""
        return self.continuations[-1].up_to


def bundled_model() -> ConversationModel:
    """Return the model that was fitted to the whole trace."""
    content = (resources.files("leadsman_bench") / "data" / MODEL_FILE).read_bytes()
    return msgspec.json.decode(content, type=ConversationModel)


def draw(quantiles: Quantiles, probability: float) -> float:
    """Return the value at `probability`, linear between the given quantiles."""
    position = probability * (len(quantiles) - 1)
    below = min(int(position), len(quantiles) - 2)
    share = position - below
    return quantiles[below] * (1 - share) + quantiles[below + 1] * share


def generate(
    model: ConversationModel, *, requests_per_s: float, seed: int
) -> Iterator[TraceRequest]:
    """Yield requests for ever, in order of arrival, from time 0 on.

    Draws are the seed's alone: the same seed gives the same requests. O(log open families) each.
    """
    for request in _Conversations(model, Random(seed)).run(requests_per_s):
        if request.at >= 0:
            yield request


def warped(
    requests: Iterator[TraceRequest], arrival: Callable[[Seconds], Seconds]
) -> Iterator[TraceRequest]:
    """Move each arrival to `arrival(at)`, a rising function: how a load that varies is made.

    Pauses shrink where load is high, so the order of requests and what they share do not change.
    """
    for request in requests:
        yield replace(request, at=arrival(request.at))


class _Conversations:
    """Open families, and the draws that continue them."""

    def __init__(self, model: ConversationModel, rng: Random) -> None:
        self._model = model
        self._rng = rng
        self._next_piece = 1
        self._mood = NormalDist()

    def run(self, requests_per_s: float) -> Iterator[TraceRequest]:
        """Yield the requests of all families, from the warm-up on."""
        starts_per_s = requests_per_s / self._model.statistics.mean_family_requests
        order = count()
        turns: list[tuple[Seconds, int, TraceRequest, float, int]] = []
        start = -WARM_UP
        while True:
            while not turns or start <= turns[0][0]:
                first, mood = self._first(start)
                heapq.heappush(turns, (start, next(order), first, mood, 1))
                start += self._rng.expovariate(starts_per_s)
            _, _, request, mood, number = heapq.heappop(turns)
            yield request
            if self._continues(request, number):
                follower, mood = self._next(request, mood)
                follower = replace(follower, former_output=request.output_tokens)
                heapq.heappush(turns, (follower.at, next(order), follower, mood, number + 1))

    def _continues(self, request: TraceRequest, turns: int) -> bool:
        later = self._model.later_turn
        if turns == 1:
            chance = self._model.continuation(request.input_tokens).second_turn
        else:
            chance = later[min(turns - 1, len(later)) - 1]
        return self._rng.random() < chance

    def _first(self, at: Seconds) -> tuple[TraceRequest, float]:
        mood = self._rng.gauss(0.0, 1.0)
        tokens = round(draw(self._model.first_input, self._rng.random()))
        return self._request(at, tokens, (0,), mood), mood

    def _next(self, former: TraceRequest, mood: float) -> tuple[TraceRequest, float]:
        rng = self._rng
        alike = self._model.output_correlation
        mood = alike * mood + (1 - alike**2) ** 0.5 * rng.gauss(0.0, 1.0)
        at = former.at + draw(self._model.pause, rng.random())
        how = self._model.continuation(former.input_tokens)
        kind = rng.random()
        if kind < how.repeated_share:
            return self._request(at, former.input_tokens, former.pieces, mood), mood
        if kind < how.repeated_share + how.rewound_share:
            kept = int(draw(how.kept, rng.random()) * len(former.full_pieces))
            tokens = round(draw(how.resized, rng.random()) * former.input_tokens)
            return self._request(at, tokens, former.full_pieces[: max(1, kept)], mood), mood
        added = round(draw(how.added, rng.random()))
        tokens = former.input_tokens + former.output_tokens + added
        return self._request(at, tokens, former.full_pieces or (0,), mood), mood

    def _request(
        self, at: Seconds, tokens: Tokens, start: tuple[int, ...], mood: float
    ) -> TraceRequest:
        shared = (len(start) - 1) * PIECE_TOKENS + 1
        tokens = min(max(tokens, shared), self._model.longest_input)
        pieces = -(-tokens // PIECE_TOKENS)
        first, self._next_piece = self._next_piece, self._next_piece + max(0, pieces - len(start))
        output = draw(self._model.output, self._mood.cdf(mood))
        return TraceRequest(
            at=at,
            input_tokens=tokens,
            output_tokens=max(1, round(output)),
            pieces=start[:pieces] + tuple(range(first, self._next_piece)),
        )
