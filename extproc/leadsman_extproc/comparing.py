"""Asks engines which tokens they make of a body, beside ours, off the request path.

An engine is asked for the probes when it is first seen ready, and again whenever it comes back. A
request that was taken as a sample is compared with what one engine of its model says, drawn by
chance, and with the very ids that it was priced by, caches and all. Engines that differed are asked
again, with the probes and with the body that showed it. One thing is asked at a time: an engine's
front end has better to do.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from leadsman.units import Seconds, TokenIds

from leadsman_extproc.asking import Question
from leadsman_extproc.parity import Asked, Parity, Sample
from leadsman_extproc.probes import probes

LOG: Final = logging.getLogger(__name__)
ROUND: Final[Seconds] = 1.0


class Engines(Protocol):
    """The engines of a model, and what they say."""

    def endpoints(self, model: str) -> Collection[str]:
        """Say where those are that are ready."""
        ...

    async def ask(self, endpoint: str, question: Question) -> TokenIds | None:
        """Return the ids of a body; None where the engine does not say."""
        ...


class Own(Protocol):
    """Our own tokenizer, whoever is trusted."""

    def tokens(self, path: str, sent: bytes) -> TokenIds | None:
        """Return the ids of a body; None where only an engine could say."""
        ...

    def question(self, path: str, sent: bytes) -> Question | None:
        """Put a body as a question; None where no engine could be asked."""
        ...


@dataclass(slots=True, kw_only=True)
class Comparing:
    """Compares for as long as `run` runs. models: those that we tokenize ourselves."""

    models: Sequence[str]
    parity: Parity
    engines: Engines
    own: Own
    clock: Callable[[], Seconds]
    rng: Random = field(default_factory=Random)
    _met: dict[str, set[str]] = field(default_factory=dict)

    async def run(self) -> None:
        """Compare until cancelled."""
        while True:
            try:
                await self.once()
            except Exception:
                LOG.exception("comparing tokens failed")
                self.parity.counts.errors["parity"] += 1
            await asyncio.sleep(ROUND)

    async def once(self) -> None:
        """Meet new engines, compare the samples taken, and ask again where it is time."""
        for model in self.models:
            await self._meet(model)
        for sample in self.parity.samples():
            await self._compare(sample)
        for asked in self.parity.due(self.clock()):
            await self._ask_again(asked)

    async def _meet(self, model: str) -> None:
        there = set(self.engines.endpoints(model))
        met = self._met.setdefault(model, set())
        met &= there
        self.parity.forget(model, there)
        for endpoint in sorted(there - met):
            met.add(endpoint)
            await self._all_alike(model, endpoint)

    async def _compare(self, sample: Sample) -> None:
        there = sorted(self.engines.endpoints(sample.model))
        if there:
            asked = Asked(sample.model, self.rng.choice(there), sample.path, sample.sent)
            if await self._alike(asked, sample.prompt.whole()) is False:
                self.parity.differs(asked, self.clock())

    async def _ask_again(self, asked: Asked) -> None:
        """Settle a difference if the engine now gives ours for the body that showed it, and all."""
        ours = await asyncio.to_thread(self.own.tokens, asked.path, asked.sent)
        if ours is None or not await self._alike(asked, ours):
            self.parity.differs(asked, self.clock())
        elif await self._all_alike(asked.model, asked.endpoint):
            self.parity.settle(asked.model, asked.endpoint)

    async def _all_alike(self, model: str, endpoint: str) -> bool:
        """Compare the probes, up to the first that differs; an engine may refuse some."""
        for path, sent in probes(model):
            asked = Asked(model, endpoint, path, sent)
            ours = await asyncio.to_thread(self.own.tokens, path, sent)
            if ours is not None and await self._alike(asked, ours) is False:
                self.parity.differs(asked, self.clock())
                return False
        return True

    async def _alike(self, asked: Asked, ours: TokenIds) -> bool | None:
        """Compare one body; None where the engine does not say."""
        question = self.own.question(asked.path, asked.sent)
        if question is None:
            return None
        theirs = await self.engines.ask(asked.endpoint, question)
        return self.parity.agree(asked, ours, theirs)
