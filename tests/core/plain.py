"""What objects hold, as values that can be kept and compared, whether compiled or interpreted."""

from collections import deque
from inspect import isdatadescriptor

from leadsman.holding import Flight
from leadsman.sequence import Seq


def names_of(kind):
    """Name what an object of a class holds, and what it says of itself by properties."""
    names = [name for name in dir(kind) if not name.startswith("__")]
    return [name for name in names if isdatadescriptor(getattr(kind, name))]


def plain(value):
    """Sequences and flights as lists of what they hold, wherever they stand."""
    if isinstance(value, Seq | Flight):
        return [plain(getattr(value, name)) for name in names_of(type(value))]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | deque):
        return [plain(one) for one in value]
    return value
