"""The request as it is gathered from its pieces, and as it is given back to Envoy."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from leadsman_extproc import wire
from leadsman_extproc.events import RequestHeaders
from leadsman_extproc.shapes import Asked


@dataclass(slots=True)
class Gathered:
    """One request's headers and body; of a body above `max_body` only the size is kept."""

    head: RequestHeaders
    max_body: int
    has_trailers: bool = False
    _pieces: list[bytes] = field(default_factory=list)
    _size: int = 0

    def add(self, piece: bytes) -> None:
        """Take the next piece of the body."""
        self._size += len(piece)
        if self._size > self.max_body:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)

    def whole(self) -> Asked:
        """Hand the request out in one piece."""
        fits = self._size <= self.max_body
        self._pieces = [b"".join(self._pieces)]
        return Asked(
            headers=self.head.headers,
            body=self._pieces[0] if fits else None,
            subset=self.head.subset,
        )

    def given_back(self) -> Iterator[bytes]:
        """Yield the answers that give the body and the trailers back, as full duplex wants."""
        body = b"".join(self._pieces)
        if not self.head.end_of_stream and (body or not self.has_trailers):
            yield from wire.streamed("request", body, end_of_stream=not self.has_trailers)
        if self.has_trailers:
            yield wire.GO_ON_REQUEST_TRAILERS
