"""Grants: the requests that this picker sent on and that are not over yet.

A grant is opened when a request goes on to an engine and ends exactly once, by what was seen:
the response's last piece, an error status, the stream's end, or the access log's entry. No timer
ever ends one. Whoever sees the end first ends it; what comes later about it is ignored, so the
session and the access log need not agree on an order.

`TokensSeen` and `Ended` leave through `emit`; `on_end` gets each grant once, when it is over.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from leadsman.prediction import Admitted
from leadsman.records import Ended, Granted, Outcome, Record, TokensSeen
from leadsman.request import Request
from leadsman.units import Keys, RequestId, Seconds, Tokens, WorkerId

from leadsman_extproc.guesses import NOTHING, Guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the engine reported of one request; a count that it did not report is None."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None


NO_USAGE = Usage()


@dataclass(slots=True, kw_only=True)
class Grant:
    """One request that went on to `worker` at `sent_at`, and what has been seen of it since.

    guess: what its tokens are estimated from. response: how a next one names this answer.
    """

    request: Request
    admitted: Admitted
    worker: WorkerId
    endpoint: str
    sent_at: Seconds
    guess: Guess = NOTHING
    first_token_at: Seconds | None = None
    tokens: Tokens = 0
    ended_at: Seconds | None = None
    outcome: Outcome | None = None
    usage: Usage = NO_USAGE
    engine_said: str | None = None
    response: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether the end was seen."""
        return self.outcome is not None

    @property
    def ttft(self) -> Seconds | None:
        """Seconds from the moment the request went on to its first content chunk."""
        return None if self.first_token_at is None else self.first_token_at - self.sent_at


@dataclass(slots=True, kw_only=True)
class Grants:
    """Every grant in flight, by request id and counted by worker."""

    emit: Callable[[Record], None]
    on_end: Callable[[Grant], None]
    _by_id: dict[RequestId, Grant] = field(default_factory=dict)
    in_flight: Counter[WorkerId] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request: RequestId) -> bool:
        return request in self._by_id

    def counted(self) -> Mapping[WorkerId, int]:
        """Count the grants in flight by worker, as they are now; any thread may ask."""
        return dict(self.in_flight)

    def of(self, request: str) -> Grant | None:
        """Return the grant in flight of this request id, if there is one."""
        return self._by_id.get(RequestId(request))

    def open(
        self, request: Request, admitted: Admitted, now: Seconds, *, guess: Guess = NOTHING
    ) -> Grant:
        """Open the grant of a request that was decided; the decision has reserved its work."""
        assert request.id not in self._by_id, f"{request.id} is in flight already"
        grant = Grant(
            request=request,
            admitted=admitted,
            worker=admitted.worker,
            endpoint=admitted.endpoint,
            sent_at=now,
            guess=guess,
        )
        self._by_id[request.id] = grant
        self.in_flight[grant.worker] += 1
        return grant

    def see(self, grant: Grant, tokens: Tokens, now: Seconds) -> None:
        """Note that `tokens` output tokens have come so far; the first sets the time of it."""
        if grant.is_over or tokens <= grant.tokens:
            return
        if grant.first_token_at is None:
            grant.first_token_at = now
        grant.tokens = tokens
        self.emit(TokensSeen(worker=grant.worker, request=grant.request.id, at=now, tokens=tokens))

    def move(self, grant: Grant, to: tuple[WorkerId, str, Tokens], now: Seconds) -> None:
        """Move a grant to the worker that the gateway used: (worker, endpoint, block size)."""
        if grant.is_over:
            return
        worker, endpoint, block_size = to
        self.emit(_ended(grant, Outcome.ENGINE_GONE, now))
        self._count(grant.worker, -1)
        grant.worker, grant.endpoint = worker, endpoint
        self._count(worker, +1)
        self.emit(granted(grant, block_size, now))

    def end(self, grant: Grant, outcome: Outcome, now: Seconds, usage: Usage = NO_USAGE) -> None:
        """End a grant; does nothing where its end was seen before."""
        if grant.is_over:
            return
        grant.outcome, grant.ended_at, grant.usage = outcome, now, usage
        del self._by_id[grant.request.id]
        self._count(grant.worker, -1)
        self.emit(_ended(grant, outcome, now))
        self.on_end(grant)

    def _count(self, worker: WorkerId, by: int) -> None:
        self.in_flight[worker] += by
        if not self.in_flight[worker]:
            del self.in_flight[worker]

    def check(self) -> None:
        """Assert that the counts are those of the grants in flight, and that none is over."""
        counted = Counter(grant.worker for grant in self._by_id.values())
        assert counted == self.in_flight, (counted, self.in_flight)
        assert not any(grant.is_over for grant in self._by_id.values())


def granted(grant: Grant, block_size: Tokens | None, now: Seconds) -> Granted:
    """Say a grant as the record that reserves its work, with the keys of this block size."""
    request, prediction = grant.request, grant.admitted.prediction
    budget = grant.admitted.budget
    if budget is not None and not budget.remembers:
        budget = None
    stayed = prediction is not None and prediction.worker == grant.worker
    return Granted(
        worker=grant.worker,
        request=request.id,
        at=now,
        prompt_tokens=request.prompt_tokens,
        keys=request.keys.get(block_size or 0, _no_keys()),
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        priority=request.priority,
        predicted_ttft=prediction.price.ttft if prediction and stayed else None,
        reads_cache=request.reads_cache,
        budget=None if budget is None else budget.name,
        tenant=None if budget is None else request.tenant,
        session=None if budget is None else request.session,
        cached_tokens=prediction.price.cached_tokens if budget and prediction else None,
    )


def _no_keys() -> Keys:
    return np.empty(0, np.uint64)


def _ended(grant: Grant, outcome: Outcome, now: Seconds) -> Ended:
    return Ended(
        worker=grant.worker,
        request=grant.request.id,
        at=now,
        outcome=outcome,
        completion_tokens=grant.usage.completion_tokens,
        cached_tokens=grant.usage.cached_tokens,
    )
