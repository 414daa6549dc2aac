"""What a page is told, as JSON. No word of a prompt, and no name of who sent it.

A page gets one `State` when it connects, and a `Tick` a second from then on. What it keeps of them
is bounded on its side (static/store.js) as it is here (`history`).
"""

from collections.abc import Mapping

import msgspec
from leadsman.units import Seconds, Tokens


class Point(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """One served request: predicted and real time to first token, and queue wait.

    at: since 1970. bounds: what it could take; None: anything. matched: whether the engine found as
    much cached as was credited; None: it did not say.
    """

    request: str
    at: Seconds
    worker: str
    predicted: Seconds
    actual: Seconds
    bound: Seconds | None = None
    predicted_wait: Seconds | None = None
    wait: Seconds | None = None
    wait_bound: Seconds | None = None
    matched: bool | None = None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that a worker holds in one tier. room: that fit; None: nobody tells."""

    tier: str
    tokens: Tokens
    room: Tokens | None


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """How one worker stands. None is not known.

    wait: what a prompt of one token would wait there. unheard: since anything was heard of it.
    running, waiting: by the engine's own word.
    """

    worker: str
    model: str
    ready: bool
    trust: str
    reason: str
    unheard: Seconds | None
    queued_tokens: Tokens
    queued_requests: int
    wait: Seconds
    in_flight: int
    slots: int
    running: int | None
    waiting: int | None
    cache: tuple[Held, ...]


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How long a worker takes for a prompt of N tokens alone, by two accounts.

    curve: (overhead, a, b) of C(N) = overhead + a·N + b·N², by isolated requests, which `samples`
    are; curve_from: own, borrowed or unmeasured. now: (a prompt, a step, a token, a token squared)
    of what prices now, which busy steps have taught too, in steps of at most step_tokens;
    now_from: likewise.
    """

    curve: tuple[Seconds, float, float]
    curve_from: str
    samples: tuple[tuple[Tokens, Seconds], ...]
    now: tuple[Seconds, Seconds, float, float]
    now_from: str
    step_tokens: Tokens


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided in `history.WIDTH` seconds from `at` on: refusals by reason."""

    at: Seconds
    admitted: int
    refused: Mapping[str, int]


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """What is new. speeds: of those workers whose speed changed. buckets: that may have grown."""

    at: Seconds
    workers: tuple[Worker, ...]
    speeds: Mapping[str, Speed]
    points: tuple[Point, ...]
    buckets: tuple[Bucket, ...]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All that a page that connects has to know. decides: whether decisions can be explained."""

    pool: str
    pools: tuple[str, ...]
    decides: bool
    most_points: int
    width: Seconds
    buckets: tuple[Bucket, ...]
    points: tuple[Point, ...]
    speeds: Mapping[str, Speed]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that a search found; became: its worker, or why it was refused."""

    request: str
    at: Seconds
    model: str
    is_refused: bool
    became: str
