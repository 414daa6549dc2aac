"""What the garbage collector has to do while a picker or an operator serves: next to nothing.

A request, or a KV event, leaves no cycle behind (tests hold both to that), so all that it took is
given back when it is over, and a search among the objects that are left finds nothing. What a
process needs to start, modules above all, is some 300,000 objects that live as long as it does:
frozen, they are never walked again. The others are walked once so many have come to stay as make
it worth while.

What does leave cycles are errors with their tracebacks and the libraries that poll engines; they
are found later than before, none is kept.
"""

import gc
from typing import Final

NEW_OBJECTS: Final = 10_000
"""Containers that came to stay before they are looked through: 0.5 ms. Python's own: 700."""


def settle() -> None:
    """Take all that is there for lasting. For a process that serves, once it does."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
