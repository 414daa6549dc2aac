"""Ports that follow each other: a server's ranks have theirs in a row."""

import socket
from contextlib import ExitStack


class Ports:
    """Free ports of one address. Others may take them in between, as with any free port."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._given: set[int] = set()

    def free(self, count: int) -> int:
        """Find the first of so many free ports in a row, none of them given before."""
        while True:
            with ExitStack() as stack:
                first = self._bind(stack, 0)
                if first is None or first + count > 2**16:
                    continue
                row = range(first, first + count)
                rest = [self._bind(stack, port) for port in row[1:]]
                if None not in rest and self._given.isdisjoint(row):
                    self._given.update(row)
                    return first

    def _bind(self, stack: ExitStack, port: int) -> int | None:
        listening = stack.enter_context(socket.socket())
        try:
            listening.bind((self._host, port))
        except OSError:
            return None
        bound: int = listening.getsockname()[1]
        return bound
