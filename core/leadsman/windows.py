"""Cache groups that keep only part of each prefix: sliding windows, and states.

Such an engine can go on from a prefix only where every group has what the next token needs: the
first group all blocks, a window group the last few, a state group the last one. What the groups
keep of an older prefix is the engine's choice (a retention interval), and its events tell it block
by block, so what is held here needs no rule of it. A group's blocks travel as those of a tier of
their own, whose name says how many blocks in a row are needed.

Source: vLLM 0.33 v1/core/kv_cache_coordinator.py, HybridKVCacheCoordinator.find_longest_cache_hit.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from leadsman.records import GPU, Cleared, Removed, Stored
from leadsman.units import BlockKey, Blocks, Tokens

STATE: Final[Tokens] = 2
"""A state stands for a prefix that ends with a block: it sees as far as a window of so many."""

_TIER: Final = re.compile(rf"{GPU}/(\d+):(\d+)")


def group_tier(group: int, need: Blocks) -> str:
    """Name the tier of a cache group that needs so many blocks in a row."""
    return f"{GPU}/{group}:{need}"


def is_group(tier: str) -> bool:
    """Say whether a tier is a cache group's."""
    return tier.startswith(f"{GPU}/")


class Windows:
    """What the further cache groups of one engine hold."""

    def __init__(self) -> None:
        self._held: dict[str, Counter[BlockKey]] = {}
        self._needs: dict[str, Blocks] = {}

    def move(self, event: Stored | Removed | Cleared) -> None:
        """Take an event of any tier; those of no cache group change nothing."""
        if isinstance(event, Cleared):
            if event.tier in (None, GPU):
                self.clear()
            return
        if not is_group(event.tier):
            return
        if event.tier not in self._held:
            named = _TIER.fullmatch(event.tier)
            if named is None:
                return
            self._held[event.tier] = Counter()
            self._needs[event.tier] = int(named[2])
        held = self._held[event.tier]
        if isinstance(event, Stored):
            held.update(event.keys.tolist())
            return
        for key in event.keys.tolist():
            held[key] -= 1
            if held[key] <= 0:
                del held[key]

    def clear(self) -> None:
        """Forget what is held; the groups stay."""
        for held in self._held.values():
            held.clear()

    def usable(self, keys: Sequence[BlockKey], depth: Blocks) -> Blocks:
        """Count the leading blocks, of `depth` that the first group has, that all can go on from.

        O(depth) a group, and again where one shortens what another accepted.
        """
        before = -1
        while depth != before:
            before = depth
            for tier, held in self._held.items():
                depth = _resumable(keys, depth, held, self._needs[tier])
        return depth


def _resumable(
    keys: Sequence[BlockKey], depth: Blocks, held: Counter[BlockKey], need: Blocks
) -> Blocks:
    """Find the deepest end of so many held blocks in a row; else the run at the very beginning."""
    run = 0
    for number in range(depth - 1, -1, -1):
        run = run + 1 if keys[number] in held else 0
        if run >= need:
            return number + run
    return run
