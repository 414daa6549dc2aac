"""Whether our tokens are the engines', and who tokenizes where they are not.

The question: can a model's own tokenizer here be believed. A template or a vocabulary that is not
quite the engine's makes every block key wrong, and nothing says so: caches look empty, and
predictions are off by what is really cached. So engines are asked for the tokens of a few
conversations and of a sample of requests (see `comparing`), and this says what follows.

A model is trusted until an engine gives other tokens than we. From then on its requests are
tokenized by an engine, until the one that differed gives ours for all that is asked, what showed
the difference included. It is asked after 1 s, then after twice as long each time, up to 5 min. A
difference ends with its engine. No answer is no verdict.

What is told of a difference is where it begins and the ids around it; text is never told. The body
that showed it is kept in memory until it is settled, one for each engine.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import numpy as np
from leadsman.units import Seconds, TokenIds

from leadsman_extproc.metrics import Counts
from leadsman_extproc.prompts import Prompt

LOG: Final = logging.getLogger(__name__)
LARGEST: Final = 2**18
"""Bytes of a body above which it is no sample: the engine would tokenize it while others wait."""
SOONEST: Final[Seconds] = 1.0
LATEST: Final[Seconds] = 300.0
_AROUND: Final = 4
_WAITING: Final = 16


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it was sent, and the tokens that it was priced by."""

    model: str
    path: str
    sent: bytes
    prompt: Prompt


class Asked(NamedTuple):
    """One body that one engine is asked about."""

    model: str
    endpoint: str
    path: str
    sent: bytes


class _Difference(NamedTuple):
    """What an engine's difference was first found by, and when it is asked about again."""

    asked: Asked
    again: Seconds
    pause: Seconds


@dataclass(slots=True, kw_only=True)
class Parity:
    """Which models are trusted, which requests are samples, and what is to be asked again.

    every: seconds between two samples of a model; None: none are taken.
    """

    counts: Counts
    every: Seconds | None = 30.0
    _taken: dict[str, Seconds] = field(default_factory=dict)
    _doubted: set[str] = field(default_factory=set)
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_WAITING))
    _differences: dict[tuple[str, str], _Difference] = field(default_factory=dict)

    def trusts(self, model: str) -> bool:
        """Whether our own tokens of this model's requests are believed."""
        return self.counts.token_parity.get(model, True)

    def wants(self, model: str, now: Seconds) -> bool:
        """Whether a request that came now should be a sample."""
        if self.every is None:
            return False
        pause = min(self.every, SOONEST) if model in self._doubted else self.every
        taken = self._taken.get(model)
        return taken is None or now - taken >= pause

    def offer(self, sample: Sample, now: Seconds) -> None:
        """Take a sample; where too many wait, the oldest is dropped."""
        self._taken[sample.model] = now
        self._doubted.discard(sample.model)
        self._samples.append(sample)

    def doubt(self, model: str) -> None:
        """Take the next sample soon: an answer reported another number of tokens than ours."""
        self.counts.parity["miscounted"] += 1
        self._doubted.add(model)

    def samples(self) -> Iterator[Sample]:
        """Hand out what was taken."""
        while self._samples:
            yield self._samples.popleft()

    def due(self, now: Seconds) -> list[Asked]:
        """List what is to be asked again."""
        return [one.asked for one in self._differences.values() if one.again <= now]

    def agree(self, asked: Asked, ours: TokenIds, theirs: TokenIds | None) -> bool | None:
        """Compare, count, and tell of a difference; None where the engine did not say."""
        if theirs is None:
            self.counts.parity["unanswered"] += 1
            return None
        at = first_difference(ours, theirs)
        self.counts.parity["alike" if at is None else "unlike"] += 1
        self.counts.token_parity.setdefault(asked.model, True)
        if at is not None:
            fields = {"model": asked.model, "endpoint": asked.endpoint, "path": asked.path}
            shown = _shown(at, ours, theirs)
            LOG.warning("tokens differ from the engine's", extra=fields | shown)
        return at is None

    def differs(self, asked: Asked, now: Seconds) -> None:
        """Distrust the model, and ask this engine again later, by what it was first found by."""
        name = asked.model, asked.endpoint
        known = self._differences.get(name)
        pause = SOONEST if known is None else min(2 * known.pause, LATEST)
        first = asked if known is None else known.asked
        self._differences[name] = _Difference(first, now + pause, pause)
        self.counts.token_parity[asked.model] = False

    def settle(self, model: str, endpoint: str) -> None:
        """End an engine's difference; trust the model again if it was the last."""
        if self._differences.pop((model, endpoint), None) is None:
            return
        holds = all(one != model for one, _ in self._differences)
        self.counts.token_parity[model] = holds
        fields = {"model": model, "endpoint": endpoint, "trusted": holds}
        LOG.info("an engine's tokens differ no more", extra=fields)

    def forget(self, model: str, there: Collection[str]) -> None:
        """End the differences of engines that are no longer there."""
        gone = [e for m, e in self._differences if m == model and e not in there]
        for endpoint in gone:
            self.settle(model, endpoint)


def _shown(at: int, ours: TokenIds, theirs: TokenIds) -> dict[str, object]:
    around = slice(max(0, at - _AROUND), at + _AROUND + 1)
    return {
        "position": at,
        "ids_from": around.start,
        "ours": ours[around].tolist(),
        "theirs": theirs[around].tolist(),
        "our_tokens": len(ours),
        "their_tokens": len(theirs),
    }


def first_difference(ours: TokenIds, theirs: TokenIds) -> int | None:
    """Say where two prompts begin to differ; None where they do not."""
    shared = min(len(ours), len(theirs))
    places = np.flatnonzero(ours[:shared] != theirs[:shared])
    if len(places):
        return int(places[0])
    return None if len(ours) == len(theirs) else shared
