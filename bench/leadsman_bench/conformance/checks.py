"""The whole script, in the order in which it is played."""

from typing import Final

from leadsman_bench.conformance import buffered, duplex, subsets
from leadsman_bench.conformance.script import CHECKS as _ADDED
from leadsman_bench.conformance.script import Check

_ORDER: Final = [module.__name__ for module in (duplex, subsets, buffered)]

CHECKS: Final[list[Check]] = sorted(_ADDED, key=lambda one: _ORDER.index(one.run.__module__))
