"""What a request finds cached, where an engine has several cache groups.

A prefix can be used as far as every group has what it needs of it: one that attends to everything
all blocks, one with a sliding window those that the next token still sees. Each group accepts the
length that the others left, or shortens it, until all agree; those that attend to everything begin.
An EAGLE engine whose block names do not cover the next token finds one block less than it has.
Source: vLLM 0.33 v1/core/kv_cache_coordinator.py, HybridKVCacheCoordinator.find_longest_cache_hit;
v1/core/single_type_kv_cache_manager.py, find_longest_cache_hit of both kinds of group.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from leadsman.copies import Copies, Group, Place
from leadsman.units import BlockKey, Blocks, Tokens

Row: TypeAlias = Place | None
"""A block, or none where nothing is held below a window."""


class Found(NamedTuple):
    """The rows of each group that can be reused, and the longest prefix that any group has."""

    rows: list[list[Row]]
    longest: Blocks


class Prefixes:
    """Looks prefixes up in one pool. `needs`: blocks in a row that each group needs, None all."""

    def __init__(
        self, copies: Copies, windows: tuple[Tokens | None, ...], size: Tokens, *, drops: bool
    ) -> None:
        self._copies, self._drops = copies, drops
        self.needs = [None if w is None else -(-(w - 1) // size) + drops for w in windows]
        kinds = sorted(set(windows), key=lambda w: (w is not None, windows.index(w)))
        self._kinds = [[g for g, w in enumerate(windows) if w == kind] for kind in kinds]
        self._groups = len(windows)

    def find(self, key: Callable[[Blocks], BlockKey], known: Blocks, most: Blocks) -> Found:
        """Find what can be reused of a prompt with `known` keys: at most `most` blocks."""
        rows: list[list[Row]] = [[] for _ in range(self._groups)]
        length, longest = most, 0
        dropped: set[int] = set()
        looked: set[int] = set()
        is_simple = len(self._kinds) == 2 and self.needs[self._kinds[0][0]] is None
        while True:
            now = length
            for kind, groups in enumerate(self._kinds):
                is_whole = self.needs[groups[0]] is None
                if is_whole and kind in looked:
                    now = min(now, len(rows[groups[0]]))
                    continue
                drops = self._drops and kind not in dropped
                within = min(now + 1, known) if drops and self._groups > 1 else now
                found = (self._whole if is_whole else self._windowed)(
                    key, groups, within, drops=drops
                )
                looked.add(kind)
                if drops:
                    dropped.add(kind)
                elif len(found[0]) < now:
                    dropped.clear()
                now = len(found[0])
                for group, its in zip(groups, found, strict=True):
                    rows[group] = its
                longest = max(longest, now)
            if now >= length:
                break
            length = now
            if is_simple:
                break
        return Found([its[:length] for its in rows], longest)

    def _at(self, key: BlockKey, groups: list[Group]) -> list[Place] | None:
        """Return each group's copy, None where one has none."""
        places = [self._copies.find(group, key) for group in groups]
        found = [place for place in places if place is not None]
        return found if len(found) == len(groups) else None

    def _whole(
        self, key: Callable[[Blocks], BlockKey], groups: list[Group], most: Blocks, *, drops: bool
    ) -> list[list[Row]]:
        rows: list[list[Row]] = [[] for _ in groups]
        for number in range(most):
            places = self._at(key(number), groups)
            if places is None:
                break
            for its, place in zip(rows, places, strict=True):
                its.append(place)
        return [its[:-1] if drops else its for its in rows]

    def _windowed(
        self, key: Callable[[Blocks], BlockKey], groups: list[Group], most: Blocks, *, drops: bool
    ) -> list[list[Row]]:
        """Search from the right for as many blocks in a row as the window needs."""
        need = self.needs[groups[0]]
        assert need is not None
        need -= self._drops - drops
        rows: list[list[Row]] = [[None] * most for _ in groups]
        run = 0
        for number in range(most - 1, -1, -1):
            places = self._at(key(number), groups)
            run = 0 if places is None else run + 1
            for its, place in zip(rows, places or (), strict=False):
                its[number] = place
            if run and run >= need:
                rows = [its[: number + run] for its in rows]
                break
        else:
            rows = [its[:run] for its in rows]
        return [its[:-1] if drops else its for its in rows]
