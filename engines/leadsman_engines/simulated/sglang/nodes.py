"""The nodes of the radix tree, and what a walk through it finds.

Source: SGLang 0.5.23 srt/mem_cache/unified_cache/unified_tree_core.py, UnifiedTreeNode.
"""

from collections.abc import Sequence
from dataclasses import dataclass

GPU, HOST = "GPU", "CPU_PINNED"


class Node:
    """A run of pages. touched: when it was last gone through, by the tree's own count."""

    __slots__ = (
        "children", "locks", "on_device", "on_host", "pages", "parent", "touched", "writes"
    )  # fmt: skip

    def __init__(self, parent: "Node | None", pages: Sequence[int], touched: float) -> None:
        self.parent = parent
        self.pages = list(pages)
        self.children: dict[int, Node] = {}
        self.touched = touched
        self.locks = 0
        self.on_device, self.on_host, self.writes = True, False, False

    @property
    def start(self) -> int:
        """Count the pages before its first."""
        pages, node = 0, self.parent
        while node is not None:
            pages, node = pages + len(node.pages), node.parent
        return pages


@dataclass(frozen=True, slots=True)
class Match:
    """What was found: pages in the device's memory, those behind them that only the host has.

    node: the last in the device's memory. deepest: the last of all.
    """

    node: Node
    pages: int
    deepest: Node
    host_pages: int = 0


@dataclass(frozen=True, slots=True)
class Inserted:
    """Where an insertion ended; spare: its pages that were held already, but not by its request."""

    node: Node
    spare: int


def parent_of(node: Node) -> Node:
    """Give the node that it follows; the root follows none."""
    assert node.parent is not None
    return node.parent


def common_pages(run: Sequence[int], pages: Sequence[int], place: int) -> int:
    """Count the leading pages of a node that stand at a place of a prompt; the first one does."""
    most = min(len(run), len(pages) - place)
    if run[:most] == pages[place : place + most]:
        return most
    return next(n for n in range(1, most) if run[n] != pages[place + n])
