"""Lines that wait to be written, in memory that is used again and again.

The request path fills one buffer while a thread writes the other. A line that is an object of its
own takes fresh memory until it is written, and the system clears every page of it first: that costs
the path as much as making the line does.
"""

import threading
from typing import Final

from leadsman_extproc.columns import encoder

FIRST: Final = 1 << 16
USUAL: Final = 16 * 1024 * 1024
"""A buffer that had to be larger, since the disk stood, is given back."""
NEWLINE: Final = 10


class Pending:
    """Rows of one kind as JSON lines, at most `most` bytes. One thread puts, one takes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._encode_into = encoder().encode_into
        self._line = bytearray()
        self._filled = bytearray(FIRST)
        self._spare = bytearray(FIRST)
        self._end = 0
        self._lock = threading.Lock()

    def put(self, row: object) -> bool:
        """Add a row's line; False where there is no room for it."""
        line = self._line
        self._encode_into(row, line)
        line.append(NEWLINE)
        with self._lock:
            start, end = self._end, self._end + len(line)
            if end > self._most:
                return False
            if end > len(self._filled):
                self._filled.extend(bytes(end))
            self._filled[start:end] = line
            self._end = end
        return True

    def take(self) -> memoryview:
        """Give all that waits. It is to be released before more is taken."""
        with self._lock:
            full, end = self._filled, self._end
            self._filled, self._end = self._spare, 0
            self._spare = full if len(full) <= USUAL else bytearray(FIRST)
        return memoryview(full)[:end]
