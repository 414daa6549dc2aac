"""What a call is to whoever handles it: messages in, messages out, one end."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Protocol, TypeAlias


class Status(IntEnum):
    """The statuses of gRPC that are sent here. Source: gRPC, statuscodes."""

    OK = 0
    UNKNOWN = 2
    NOT_FOUND = 5
    UNIMPLEMENTED = 12
    UNAVAILABLE = 14


class Call(Protocol):
    """One call, as its handler sees it. After the end, what is sent goes nowhere.

    fields: the headers that it came with.
    """

    fields: Mapping[bytes, bytes]

    def send(self, messages: Sequence[bytes]) -> None:
        """Send messages, in order. Never blocks."""
        ...

    def finish(self, status: Status = Status.OK, why: str = "") -> None:
        """End the call; what was sent before arrives before the end."""
        ...


class Receiver(Protocol):
    """Handles one call. Nothing is called after `gone`, which comes exactly once."""

    def message(self, raw: bytes) -> None:
        """Take the caller's next message."""
        ...

    def whole(self) -> None:
        """Take note that the caller has said all."""
        ...

    def gone(self) -> None:
        """Take leave: the call is over, whoever ended it."""
        ...


Handler: TypeAlias = Callable[[Call], Receiver]
Handlers: TypeAlias = Mapping[str, Handler]
"""What is served, by path: `/package.Service/Method`."""
