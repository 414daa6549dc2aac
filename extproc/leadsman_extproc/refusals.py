"""Refusals on the wire: status, headers and body, in the shape of the API that was called.

The question: what must a refusal look like so that the clients which exist do the right thing
with it. The SDKs of both families obey `x-should-retry` first, then wait what `retry-after-ms`
or `retry-after` says. OpenAI's gives up above 120 s of waiting; Anthropic's would sleep as long
as it is told. So a wait is told finite, rounded up to whole seconds beside its milliseconds, and
above that cap a refusal says not to retry, so that the client falls back at once instead of
sleeping or giving up silently. The body names the kind of error that the SDKs know, and carries
reason, predicted wait, bound and retry as numbers, beside the sentence for people.

Source: openai 3.57 _base_client.py, _should_retry, and _constants.py, MAX_RETRY_AFTER_DELAY;
anthropic 2.14 _base_client.py; RFC 9110 section 10.2.3.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from leadsman.prediction import Reason, Refused
from leadsman.units import RequestId, Seconds

from leadsman_extproc.body import Api, BadRequest

LONGEST_RETRY: Final[Seconds] = 120.0
"""The longest wait that client libraries honour."""

_SENTENCES: Final[Mapping[Reason, str]] = {
    Reason.WOULD_WAIT_TOO_LONG: "The request would wait too long behind other work",
    Reason.WOULD_MISS_TTFT: "The first token would come too late",
    Reason.OVER_SHARE: "The caller is over its share",
    Reason.OVERLOADED: "The pool is overloaded",
    Reason.BURST_DEFERRED: "Too many requests came at once",
    Reason.NO_ENDPOINT: "No endpoint is ready",
}
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_OPENAI_TYPES: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer given in the engine's place; `details` is for the gateway's access log."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    details: str


def explain(refused: Refused) -> dict[str, object]:
    """Say a refusal in fields that a program can act on; null is what no rule predicted.

    read: what the rule read and its limits, by name; for a tenant, its share and what it has had.
    """
    wait = _wait(refused.retry_after)
    return {
        "reason": refused.reason.value,
        "policy": refused.policy,
        "predicted_wait_s": _rounded(refused.predicted_wait),
        "bound_s": _rounded(refused.bound),
        "retry_after_s": wait,
        "retry": refused.should_retry and wait <= LONGEST_RETRY,
        "read": {name: _rounded(value) for name, value in refused.read.items()},
    }


def refusal(refused: Refused, api: Api) -> Reply:
    """Tell a client that its request is refused, why, and when to come back."""
    wait = _wait(refused.retry_after)
    fields = explain(refused)
    headers = {
        "content-type": "application/json",
        "retry-after": str(math.ceil(wait)),
        "retry-after-ms": str(math.ceil(wait * 1000)),
        "x-should-retry": "true" if fields["retry"] else "false",
        "x-llm-d-request-dropped-reason": refused.reason.value,
    }
    error = _Told(
        status=refused.status, message=_sentence(refused), code=refused.reason.value, more=fields
    )
    return Reply(
        status=refused.status,
        headers=headers,
        body=_body(error, api, refused.request),
        details=f"leadsman_{refused.reason.value}",
    )


def bad_request(bad: BadRequest, request: RequestId | None = None) -> Reply:
    """Tell a client what to change in its request."""
    code = "body_too_large" if bad.status == 413 else "invalid_request"
    error = _Told(status=bad.status, message=bad.message, code=code, param=bad.param)
    return Reply(
        status=bad.status,
        headers={"content-type": "application/json", "x-should-retry": "false"},
        body=_body(error, bad.api, request),
        details=f"leadsman_{code}",
    )


def too_large(api: Api, cap: int) -> BadRequest:
    """Refuse a body above `cap` bytes."""
    return BadRequest(api=api, status=413, message=f"The request body is larger than {cap} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    status: int
    message: str
    code: str
    param: str | None = None
    more: Mapping[str, object] | None = None


def _body(told: _Told, api: Api, request: RequestId | None) -> bytes:
    """Write an error in the shape of the API; both have our fields beside their own.

    Source: the OpenAI and the Anthropic API references, errors.
    """
    more = told.more or {}
    if api is Api.OPENAI:
        kind = _OPENAI_TYPES.get(told.status, "server_error")
        error: dict[str, Any] = {"message": told.message, "type": kind}
        error |= {"param": told.param, "code": told.code, **more}
        return msgspec.json.encode({"error": error})
    kind = _ANTHROPIC_TYPES.get(told.status, "api_error")
    error = {"type": kind, "message": told.message, **more}
    if told.param is not None:
        error["param"] = told.param
    return msgspec.json.encode({"type": "error", "error": error, "request_id": request})


def _sentence(refused: Refused) -> str:
    said = _SENTENCES[refused.reason]
    if refused.predicted_wait is not None and refused.bound is not None:
        said += f": {refused.predicted_wait:.1f} s predicted, {refused.bound:.1f} s allowed"
    return f"{said}. Retry after {math.ceil(_wait(refused.retry_after))} s."


def _wait(retry_after: Seconds) -> Seconds:
    """Make a wait fit to be told: a second at least, a day at most, whole milliseconds."""
    if not math.isfinite(retry_after):
        return 86400.0
    return math.ceil(min(max(retry_after, 1.0), 86400.0) * 1000) / 1000


def _rounded(seconds: Seconds | None) -> Seconds | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds, 3)
