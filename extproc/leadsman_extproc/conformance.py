"""What the upstream conformance suite asks of a picker beyond the protocol, behind a setting.

Its tests name by a request header the endpoint that they want, have the backend echo which one it
was sent to, and read from the response which one the gateway says that it used. With these any
client could go past every price, so only a picker under test listens to them.

Source: Gateway API Inference Extension v1.6.0, conformance/ and pkg/lwepp.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from leadsman_extproc import wire
from leadsman_extproc.events import ResponseHeaders

SELECTION: Final = "test-epp-endpoint-selection"
ECHO: Final = "x-echo-set-header"
REPORT: Final = "x-conformance-test-served-endpoint"
UNTOLD: Final = "fail: missing destination endpoint served metadata"


def selected(headers: Mapping[str, str], endpoints: Iterable[str]) -> frozenset[str] | None:
    """Give those endpoints that the request names by address, or address and port.

    None where it names none; empty where it names only such as are not there.
    """
    text = headers.get(SELECTION)
    if not text:
        return None
    named = {one.strip() for one in text.split(",")}
    return frozenset(
        endpoint
        for endpoint in endpoints
        if endpoint in named or endpoint.rpartition(":")[0].strip("[]") in named
    )


def echo(endpoint: str) -> Mapping[str, str]:
    """Have the backend set a header of its response to the endpoint that was picked."""
    return {ECHO: f"{REPORT}:{endpoint}"}


def report(head: ResponseHeaders) -> bytes:
    """Answer the response's headers with where the gateway says that it sent the request."""
    return wire.response_headers({REPORT: head.served or UNTOLD})
