"""What becomes of a whole request: it is sent on, passed on, or answered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from leadsman_extproc.grants import Grant
from leadsman_extproc.refusals import Reply


@dataclass(frozen=True, slots=True)
class SendOn:
    """Send the request to the grant's endpoint, with these headers set.

    fallbacks: endpoints that the gateway may try after it, in order.
    """

    grant: Grant
    headers: Mapping[str, str]
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PassOn:
    """Send the request to this endpoint; it is not ours to watch."""

    endpoint: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer the client now."""

    reply: Reply


Verdict: TypeAlias = SendOn | PassOn | Answer
