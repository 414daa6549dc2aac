"""Why a request was sent where it was, or refused, in the words of a screen.

Each candidate's price is split into what a request waits behind, what its own prefill takes, and
what the cache spares it (by the speed that it was priced with). Then what would have changed the
outcome: by how much the next best worker lost, or which bound would have let the request in.
`leadsman explain` prints it, and the live page shows it.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
from leadsman.admit import Excess, bounds_of, excess
from leadsman.budget import Budget, BudgetError
from leadsman.prediction import Prediction
from leadsman.request import ENDLESS
from leadsman.units import Seconds, Tokens, WorkerId

from leadsman_extproc.decided import Row, weights_of

MOST_SHOWN: Final = 12
CAPTION: Final = (
    "≤: at the budget's confidence. spared: prefill by what is cached. ahead: requests/tokens."
)


class Came(msgspec.Struct, frozen=True):
    """What became of a request that was sent on; None is not known."""

    worker: str
    outcome: str
    ttft: Seconds | None
    cached_tokens: Tokens | None
    completion_tokens: Tokens | None
    engine_said: str | None


class Priced(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the prices: a candidate's, or the floors of one that was not asked."""

    cells: tuple[str, ...]
    kind: Literal["chosen", "asked", "not_asked"]


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """The screen. prices: in the order of `columns`; because: what it rests on, and what if."""

    request: str
    asked: str
    verdict: str
    allowed: str
    columns: tuple[str, ...]
    prices: tuple[Priced, ...]
    because: tuple[str, ...]
    then: tuple[str, ...]


def explained(row: Row, came: Came | None) -> Explained:
    """Explain a decision, and what became of it."""
    return Explained(
        request=row.request,
        asked=_asked(row),
        verdict=verdict(row),
        allowed=_allowed(row),
        columns=_columns(row),
        prices=tuple(_prices(row)),
        because=(*rests_on(row), *what_if(row)),
        then=tuple(outcome(row, came)),
    )


def seconds(value: float | None) -> str:
    """Write a time as people say it."""
    if value is None:
        return "-"
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def _asked(row: Row) -> str:
    told = [f"{row.model or 'unread'}, {row.prompt_tokens:,} prompt tokens"]
    told += _answer(row.min_tokens or 0, row.max_tokens)
    told += [
        f"{name} {value}"
        for name in ("tenant", "session", "objective")
        if (value := getattr(row, name)) is not None
    ]
    if row.time is not None:
        told.append(datetime.fromtimestamp(row.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"))
    return ", ".join(told)


def _answer(least: Tokens, most: Tokens | None) -> Iterator[str]:
    if most is not None and least >= most:
        yield f"exactly {most:,} of answer"
        return
    if least >= ENDLESS:
        yield "an answer until its context is full"
    elif least:
        yield f"at least {least:,} of answer"
    if most is not None:
        yield f"at most {most:,} of answer"


BECAUSE: Final = {
    "cheapest": "the least predicted time to first token",
    "home": "its session lives there, and nobody is cheaper by more than the cost of moving",
    "cache": "it prefers its cache, and nobody holds more of the prompt",
    "look": "routing passes it over, and looked whether rightly, at the price of a short wait",
    "least_loaded": "it could not be priced in time, so the least loaded took it",
    "shadow": "it would have been refused, but the budget is in shadow mode",
    "probe": "it would have been refused, but was let in to see what becomes of it",
}


def verdict(row: Row) -> str:
    """Say in a sentence what was decided, and why."""
    told = row.decision
    if row.was_admitted:
        return f"Sent to {row.worker}: {BECAUSE.get(row.because or '', row.because)}."
    reason = (row.reason or "unknown").replace("_", " ")
    after = "" if told.retry_after is None else f"; come back in {seconds(told.retry_after)}"
    if told.predicted_wait is None or told.bound is None:
        return f"Refused with {told.status}: {reason}{after}."
    return (
        f"Refused with {told.status}: {reason}. At best {seconds(told.predicted_wait)}, "
        f"allowed are {seconds(told.bound)}{after}."
    )


def _allowed(row: Row) -> str:
    budget = _budget(row)
    if budget is None:
        return "no budget was recorded"
    bounds = bounds_of(row.as_request(), budget)
    told = [f"queue wait {_bound(bounds.wait)}", f"time to first token {_bound(bounds.ttft)}"]
    if row.waited:
        held = row.decision.held_for
        where = "" if held is None else f", {seconds(held)} while it was held here"
        told.append(f"{seconds(row.waited)} of them are over{where}")
    return (
        f"{', '.join(told)}, at {100 * budget.confidence:g} % confidence "
        f"(budget {budget.name}, {budget.mode})"
    )


def _bound(bound: Seconds) -> str:
    return "unbounded" if bound == float("inf") else f"at most {seconds(bound)}"


def _budget(row: Row) -> Budget | None:
    try:
        return row.as_budget() if row.decision.budget is not None else None
    except (BudgetError, ValueError):
        return None


def _columns(row: Row) -> tuple[str, ...]:
    candidates = row.decision.candidates
    at_most = f"≤ {100 * candidates[0].confidence:g} %" if candidates else "at most"
    return ("worker", "TTFT", at_most, "wait", at_most, "prefill", "spared", "cached", "ahead", "")


def _prices(row: Row) -> list[Priced]:
    asked = [
        Priced(cells=_priced(row, one), kind="chosen" if one.worker == row.worker else "asked")
        for one in row.decision.candidates[:MOST_SHOWN]
    ]
    others = [Priced(cells=cells, kind="not_asked") for cells in _not_asked(row)]
    return asked + others[: max(0, MOST_SHOWN - len(row.decision.candidates))]


def _priced(row: Row, one: Prediction) -> tuple[str, ...]:
    price = one.price
    return (
        price.worker,
        seconds(price.ttft),
        seconds(one.ttft_bound),
        seconds(price.queue_wait),
        seconds(one.queue_wait_bound),
        seconds(price.own_prefill),
        seconds(spared(one)),
        _thousands(price.cached_tokens),
        f"{price.queued_requests}/{_thousands(price.queued_tokens)}",
        _fits(row, one),
    )


def spared(one: Prediction) -> Seconds | None:
    """Give the prefill that the cached tokens spare, less what loading them takes."""
    weights, cached = weights_of(one), one.price.cached_tokens
    if weights is None:
        return None
    return max(0.0, cached * (weights.a + 0.5 * weights.b * cached) - one.price.load)


def _fits(row: Row, one: Prediction) -> str:
    if one.worker == row.worker:
        return "chosen"
    missed = _missed(row, one)
    if missed is not None:
        what = "TTFT" if missed.reason == "would_miss_ttft" else "wait"
        return f"{what} +{seconds(missed.seconds)}"
    return "would do"


def _missed(row: Row, one: Prediction) -> Excess | None:
    budget = _budget(row)
    if budget is None:
        return None
    request = row.as_request()
    is_alone = all(other.curve == "unmeasured" for other in row.decision.candidates)
    return excess(one, request.waited, bounds_of(request, budget), is_alone=is_alone)


def _not_asked(row: Row) -> list[tuple[str, ...]]:
    survey = row.decision.survey
    if survey is None:
        return []
    asked = {one.worker for one in row.decision.candidates}
    return [
        (
            name,
            f"≥ {seconds(survey.own_floors[i] + survey.wait_floors[i])}",
            "",
            f"≥ {seconds(survey.wait_floors[i])}",
            "",
            f"≥ {seconds(survey.own_floors[i])}",
            "",
            _thousands(survey.cached[i]),
            "",
            "not asked",
        )
        for i, name in enumerate(survey.workers)
        if WorkerId(name) not in asked
    ]


def _thousands(tokens: Tokens) -> str:
    return f"{tokens / 1000:.1f}K" if tokens >= 1000 else str(tokens)


SPEEDS: Final = {"own": "its own", "borrowed": "that of one like it", "unmeasured": "a default"}


def rests_on(row: Row) -> list[str]:
    """Say what the prediction of the chosen worker, or of the best, rests on."""
    candidates = row.decision.candidates
    if not candidates:
        return []
    one = next((each for each in candidates if each.worker == row.worker), candidates[0])
    heard = "never heard" if one.state_age is None else f"heard {seconds(one.state_age)} before"
    view = f"its cache view is {one.trust} ({one.trust_reason}), {heard}"
    return [f"The speed of {one.worker} is {SPEEDS[one.curve]}; {view}."]


def what_if(row: Row) -> list[str]:
    """Say what would have changed the outcome."""
    candidates = row.decision.candidates
    if not candidates:
        return []
    found = _if_sent(row, candidates) if row.was_admitted else _if_refused(row, candidates)
    survey = row.decision.survey
    if survey is not None:
        credited = next((c.price.cached_tokens for c in candidates if c.worker == row.worker), 0)
        if survey.held > credited and survey.holder != row.worker:
            found.append(f"{survey.holder} held most of the prompt: {survey.held:,} tokens.")
        if survey.ready > len(candidates):
            many = f"{len(candidates)} of {survey.ready} workers were asked"
            found.append(f"{many}; the others could not have been cheaper, or not by much.")
    return found


def _if_sent(row: Row, candidates: Sequence[Prediction]) -> list[str]:
    chosen = next((one for one in candidates if one.worker == row.worker), None)
    if chosen is None:
        return []
    found = []
    others = [one for one in candidates if one.worker != row.worker]
    if others:
        least = min(others, key=lambda one: one.price.ttft)
        behind = least.price.ttft - chosen.price.ttft
        told = f"{seconds(behind)} more on {row.worker}" if behind > 0 else "routing by price alone"
        found.append(f"{told} would have sent it to {least.worker} ({seconds(least.price.ttft)}).")
    wait = (row.waited or 0.0) + chosen.queue_wait_bound
    found.append(f"A bound on the queue wait below {seconds(wait)} would not have held here.")
    if row.decision.refusal is not None:
        reason = str(row.decision.refusal.get("reason")).replace("_", " ")
        found.append(f"Set aside: refused as {reason}.")
    return found


def _if_refused(row: Row, candidates: Sequence[Prediction]) -> list[str]:
    missed = [(m, one) for one in candidates if (m := _missed(row, one)) is not None]
    if not missed:
        return ["By the code of today this would be let in: `leadsman replay` says more."]
    least, best = min(missed, key=lambda pair: pair[0].rank)
    instead = f"{seconds(least.predicted)} instead of {seconds(least.bound)}"
    less = f"{seconds(least.seconds)} less ahead of it there"
    found = [f"A bound of {instead} would have sent it to {best.worker}; so would {less}."]
    is_ttft = least.reason == "would_miss_ttft"
    expected = (row.waited or 0.0) + (best.price.ttft if is_ttft else best.price.queue_wait)
    if least.bound is not None and expected <= least.bound:
        found.append(
            f"It is the uncertainty that refused it: expected there are {seconds(expected)}, and "
            f"{seconds(least.predicted)} at {100 * best.confidence:g} % confidence."
        )
    if not least.ever_fits:
        found.append("Its own prefill alone takes longer than is allowed: no wait would help.")
    return found


def outcome(row: Row, came: Came | None) -> list[str]:
    """Say what became of it, beside what was predicted."""
    if came is None:
        return (
            [] if not row.was_admitted else ["No outcome is recorded: in flight, or sampled out."]
        )
    told = f"Then: {came.outcome.replace('_', ' ')}"
    if came.worker != row.worker:
        told += f" on {came.worker}, where the gateway sent it instead"
    chosen = next((one for one in row.decision.candidates if one.worker == came.worker), None)
    if came.ttft is not None:
        told += f", first token after {seconds(came.ttft)}"
        if chosen is not None:
            off = came.ttft - chosen.price.ttft
            told += f" ({seconds(abs(off))} {'later' if off > 0 else 'sooner'} than predicted)"
    lines = [told + "."]
    if chosen is not None and came.cached_tokens is not None:
        credited, found = chosen.price.cached_tokens, came.cached_tokens
        size = chosen.block_size or 1
        alike = "as credited" if found // size == credited // size else f"credited {credited:,}"
        lines.append(f"The engine found {found:,} tokens cached, {alike}.")
    if came.engine_said:
        lines.append(f"The engine said: {came.engine_said}")
    return lines
