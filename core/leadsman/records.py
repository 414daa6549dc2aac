"""The records that fleet state is made of: the one vocabulary between collectors and pickers.

A collector (which talks to engines) and every picker (which decides) exchange nothing but these,
also when both run in one process. Times are seconds on the clock of whoever writes the record,
except `engine_time`, which is the engine's own. A quantity that is not known is None.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from leadsman.engine import EngineSettings
from leadsman.units import Keys, RequestId, Seconds, Tokens, WorkerId

GPU = "GPU"

STORE: Final = "store "
"""Begins the name of a store that many workers share. It holds blocks and is no worker: all that is
said of it is `StoreSeen`, `KvEvents` and `WorkerGone`, and no request goes there."""


def is_store(worker: WorkerId) -> bool:
    """Say whether a name is that of a shared store."""
    return worker.startswith(STORE)


class Trust(StrEnum):
    """How far a worker's cache view can be believed."""

    LIVE = "live"
    REPLAYING = "replaying"
    SUSPECT = "suspect"
    BLIND = "blind"


class Outcome(StrEnum):
    """How a granted request ended."""

    FINISHED = "finished"
    CLIENT_GONE = "client_gone"
    ENGINE_GONE = "engine_gone"
    ENGINE_REFUSED = "engine_refused"
    CUT_OFF = "cut_off"
    """It broke off, and nobody said at whose end."""
    SERVED_ELSEWHERE = "served_elsewhere"
    """The gateway took a worker that is none of this fleet's, as with two pools in one rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A worker is there, with these settings; said again whenever anything of it changes."""

    worker: WorkerId
    endpoint: str
    settings: EngineSettings
    ready: bool = True
    dp_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGone:
    """A worker left: all that was held for it is given back."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSeen:
    """A shared store is there; said again whenever its reading went otherwise than before.

    chunks: of it, those that are known by their keys; unused: those that are not, by reason, when
    it was last read. problem: why it cannot be read now; None while it can.
    """

    worker: WorkerId
    chunks: int
    unused: Mapping[str, int]
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Blocks that one physical copy was added of; `session` is the request that wrote them."""

    keys: Keys
    tier: str = GPU
    session: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """Blocks that one physical copy went away of."""

    keys: Keys
    tier: str = GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Everything that the worker held in `tier` is gone; in every tier where it is None."""

    tier: str | None = None


KvEvent: TypeAlias = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEvents:
    """One batch of KV events: what one engine step did to the cache, in order."""

    worker: WorkerId
    sequence: int
    engine_time: Seconds
    received_at: Seconds
    events: tuple[KvEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustChanged:
    """A worker's cache view is now to be believed this far."""

    worker: WorkerId
    trust: Trust
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """What the engine said of its own load at `at`; prefix_hits: tokens found cached, in all."""

    worker: WorkerId
    at: Seconds
    running: int
    waiting: int
    kv_usage: float | None = None
    prefix_hits: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A picker sent a request to a worker; `keys` are those of the worker's block size.

    budget: whose rules let it in; None where they remember nothing. tenant, session: whom that
    budget's shares, or sessions, count it for. cached_tokens: what it was to find. min_tokens: its
    answer does not end before.
    """

    worker: WorkerId
    request: RequestId
    at: Seconds
    prompt_tokens: Tokens
    keys: Keys
    max_tokens: Tokens | None
    priority: int
    predicted_ttft: Seconds | None
    reads_cache: bool = True
    budget: str | None = None
    tenant: str | None = None
    session: str | None = None
    cached_tokens: Tokens | None = None
    min_tokens: Tokens = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensSeen:
    """`tokens` output tokens of a request have come so far; the first of them may be 1."""

    worker: WorkerId
    request: RequestId
    at: Seconds
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A granted request is over; usage where it was reported."""

    worker: WorkerId
    request: RequestId
    at: Seconds
    outcome: Outcome
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What has been learned of a worker's speed, so that nobody has to learn it again.

    samples: (prompt tokens, seconds) of isolated requests, oldest first.
    step_weights: (t0, a, b, t_d, e, s), see `steptime`; None until learned.
    """

    worker: WorkerId
    fingerprint: str
    samples: tuple[tuple[Tokens, Seconds], ...]
    step_weights: tuple[float, ...] | None = None


Record: TypeAlias = (
    WorkerSeen
    | WorkerGone
    | StoreSeen
    | KvEvents
    | TrustChanged
    | LoadSample
    | Granted
    | TokensSeen
    | Ended
    | Learned
)
