"""What Envoy tells a picker about one HTTP request, as plain values.

One gRPC stream is one HTTP request; its first message names how the two bodies are handed over,
and each later one is a step of the request or of the response. Nothing here knows the protobuf.

Source: envoy.service.ext_proc.v3 (Envoy 1.40).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class BodyMode(Enum):
    """How Envoy hands a body over. Source: ext_proc v3 ProcessingMode.BodySendMode."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4
    GRPC = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The two body modes of one stream, as its first message names them.

    A proxy too old to name them is taken for full duplex: all that speak the endpoint picker
    protocol use that, and only in that mode does a wrong guess cut responses.
    """

    request: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response: BodyMode = BodyMode.FULL_DUPLEX_STREAMED


@dataclass(slots=True)
class RequestHeaders:
    """The first message of a stream. `subset` is None where the gateway gave no hint."""

    headers: Mapping[str, str]
    end_of_stream: bool
    profile: Profile
    subset: frozenset[str] | None


@dataclass(slots=True)
class RequestBody:
    """A piece of the request's body."""

    data: bytes
    end_of_stream: bool


@dataclass(slots=True)
class RequestTrailers:
    """The request is whole; its end came as trailers."""


@dataclass(slots=True)
class ResponseHeaders:
    """The response begins. `served` is the endpoint that Envoy used, where it says so."""

    status: int
    content_type: str
    from_upstream: bool
    served: str | None
    end_of_stream: bool


@dataclass(slots=True)
class ResponseBody:
    """A piece of the response's body."""

    data: bytes
    end_of_stream: bool


@dataclass(slots=True)
class ResponseTrailers:
    """The response is whole; its end came as trailers."""


Event: TypeAlias = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
)
