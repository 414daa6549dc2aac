"""What the picker needs of others, as the narrowest shapes that will do.

`Picker` is the core's Fleet, `Reads` reads bodies, `Keeps` keeps what was decided. The picking
knows only these, so it can be tested with a few scripted lines.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from random import Random
from typing import Protocol, TypeAlias

import msgspec
from leadsman.budget import Budget
from leadsman.lobby import Held, Settled
from leadsman.prediction import Decision
from leadsman.records import Record
from leadsman.request import Request
from leadsman.units import RequestId, Seconds, Tokens, WorkerId

from leadsman_extproc.body import Api, BadRequest, NotForUs
from leadsman_extproc.grants import Grant
from leadsman_extproc.guesses import NOTHING, Guess

BudgetFor: TypeAlias = Callable[[Request, Mapping[str, str]], Budget]
"""Says which budget a request falls under, by itself and its headers."""


class Picker(Protocol):
    """Decides where a request goes, and reserves its work there; or holds it, until its turn.

    passed: told the name of each phase of `decide` when it is over; None: nobody measures.
    """

    passed: Callable[[str], None] | None

    def apply(self, record: Record, now: Seconds) -> None:
        """Take in a record of fleet state."""
        ...

    def decide(
        self, request: Request, budget: Budget, now: Seconds, rng: Random
    ) -> Decision | Held:
        """Admit the request on one worker, hold it, or refuse it."""
        ...

    def turn(self, now: Seconds, rng: Random, *, everyone: bool = False) -> list[Settled]:
        """Decide on those that are held, where it is their turn; everyone: hold nobody longer."""
        ...

    def next_turn(self) -> Seconds | None:
        """Say when a turn is due; None while nobody is held."""
        ...

    def let_go(self, request: RequestId) -> None:
        """Hold a request no longer, as its client is gone."""
        ...

    def block_sizes(self, model: str) -> tuple[Tokens, ...]:
        """Say which block sizes the workers of a model have."""
        ...

    def wants_witness(self, worker: WorkerId) -> bool:
        """Whether one more stream of this worker should be read chunk by chunk."""
        ...

    def signals(self, worker: WorkerId, now: Seconds) -> Mapping[str, float]:
        """Give what a worker told last of what policies read; what it does not tell is absent."""
        ...

    def in_flight(self) -> Mapping[WorkerId, int]:
        """Count the requests that are granted and not over by worker; any thread may ask."""
        ...


class Trace(Protocol):
    """What is measured of one request whose trace is sampled."""

    def passed(self, phase: str) -> None:
        """Note that a phase is over now; the next begins."""
        ...

    def decided(self, request: Request, decision: Decision, now: Seconds) -> None:
        """Note what was decided; nothing is measured after."""
        ...


class Traces(Protocol):
    """Makes traces of the requests that a gateway samples."""

    def begin(
        self, call: Mapping[bytes, bytes], headers: Mapping[str, str], at: Seconds
    ) -> Trace | None:
        """Begin to measure a request that came at `at`; None where its trace is not sampled.

        call: the headers of the gateway's call; headers: those of the request.
        """
        ...

    def ended(self, grant: Grant) -> None:
        """Note how a granted request ended."""
        ...

    def close(self) -> None:
        """Export what is left; may take seconds."""
        ...


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A whole request as it came. `headers` has lower-case names, `:method` and `:path` too.

    trace: what is measured of it; None where its trace is not sampled.
    """

    id: RequestId
    headers: Mapping[str, str]
    body: bytes
    at: Seconds
    subset: frozenset[str] | None = None
    trace: Trace | None = None

    @property
    def path(self) -> str:
        """The path with its query."""
        return self.headers.get(":path", "")


class TokensBy(StrEnum):
    """How the number of a prompt's tokens is known; all but the first three are estimates.

    HISTORY: part of the conversation is kept by an engine alone. CUT: the engine cuts it.
    """

    OWN = "own"
    ENGINE = "engine"
    CLIENT = "client"
    ESTIMATE = "estimate"
    MEDIA = "media"
    HISTORY = "history"
    CUT = "cut"


class ReadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that can be priced, and whose API's words its refusal needs.

    guess: what its tokens are estimated from, to learn from.
    """

    request: Request
    api: Api
    guess: Guess = NOTHING
    tokens_by: TokensBy = TokensBy.ESTIMATE


Read: TypeAlias = ReadRequest | NotForUs | BadRequest


class Reads(Protocol):
    """Reads a body: tokens, block keys, wishes."""

    def read(self, arrival: Arrival) -> Read | Awaitable[Read]:
        """Read one request: at once, unless it has to wait, as for an engine's tokenizer."""
        ...

    def learn(self, grant: Grant) -> None:
        """Learn from what an answer reported what the request's tokens really were."""
        ...

    def doubt(self, model: str) -> None:
        """Learn that an answer of this model reported another number of tokens than was exact."""
        ...


class Keeps(Protocol):
    """Keeps decisions and their outcomes, off the request path."""

    def decided(self, request: Request, decision: Decision, now: Seconds) -> None:
        """Keep a decision with all its inputs."""
        ...

    def ended(self, grant: Grant) -> None:
        """Keep how a granted request ended."""
        ...
