"""What a request's headers ask for: whose it is, how long it may wait, what it prefers.

Gateways set these; a client's own are trusted only where the gateway lets them through. The names
are settings, first present first: ours, then those of the llm-d router and of the Gateway API
inference extension, so that what works with those works here. Milliseconds stop here.

Source: facts of llm-d router pkg/epp/metadata/consts.go: fairness id, objective, TTFT objective.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from leadsman.units import Seconds

from leadsman_extproc.body import BadRequest, Body
from leadsman_extproc.fields import queue_wait_bound
from leadsman_extproc.shapes import Wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderNames:
    """Lower-case names of the headers that are read, in order of preference."""

    tenant: tuple[str, ...] = (
        "x-leadsman-tenant",
        "x-llm-d-inference-fairness-id",
        "x-gateway-inference-fairness-id",
    )
    session: tuple[str, ...] = ("x-leadsman-session", "x-session-id")
    objective: tuple[str, ...] = (
        "x-llm-d-inference-objective",
        "x-gateway-inference-objective",
    )
    ttft_ms: tuple[str, ...] = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
    max_queue_wait_s: tuple[str, ...] = ("x-leadsman-max-queue-wait-s",)
    prefer: tuple[str, ...] = ("x-leadsman-prefer",)
    waited_s: tuple[str, ...] = ("x-leadsman-waited-s",)


def read_wishes(headers: Mapping[str, str], names: HeaderNames, body: Body) -> Wishes | BadRequest:
    """Read the headers; a number that is none, or a bound out of range, is a bad request."""
    bound = body.max_queue_wait
    if bound is None and (found := _first(headers, names.max_queue_wait_s)) is not None:
        asked = queue_wait_bound(_number(found[1]))
        if isinstance(asked, str):
            return BadRequest(api=body.api, message=f"{found[0]} {asked}", param=found[0])
        bound = asked
    ttft: Seconds | None = None
    if (found := _first(headers, names.ttft_ms)) is not None:
        told = _number(found[1])
        if isinstance(told, str) or not 0 < told < math.inf:
            message = f"{found[0]} must be a number of milliseconds above 0, not {found[1]!r:.40}"
            return BadRequest(api=body.api, message=message, param=found[0])
        ttft = told / 1000
    waited: Seconds = 0.0
    if (found := _first(headers, names.waited_s)) is not None:
        said = _number(found[1])
        if isinstance(said, str) or not 0 <= said < math.inf:
            message = f"{found[0]} must be a number of seconds from 0 on, not {found[1]!r:.40}"
            return BadRequest(api=body.api, message=message, param=found[0])
        waited = said
    prefer = _first(headers, names.prefer)
    return Wishes(
        tenant=_value(headers, names.tenant),
        session=_value(headers, names.session),
        objective=_value(headers, names.objective),
        ttft_objective=ttft,
        max_queue_wait=bound,
        waited=waited,
        prefers_cache=prefer is not None and prefer[1].strip().lower() == "cache",
    )


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    for name in names:
        if value := headers.get(name):
            return name, value
    return None


def _value(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    found = _first(headers, names)
    return None if found is None else found[1]


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
