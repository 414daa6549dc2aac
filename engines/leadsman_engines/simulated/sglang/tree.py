"""The radix tree: which prefixes are held, in the device's memory and in the host's.

Model. A node is a run of pages that follow their parent's; its pages are known by hashes that name
the whole prefix, and memory is told by counting. A node is split where prompts part. Each lookup
and each insertion touches what it goes through, and the least lately touched leaf goes first; a
node that requests hold, or that has a child in the device's memory, does not go. A lookup touches
the deepest node last, a split the rest that it cuts off: also if nobody has asked for that rest.

With a host's memory behind, each node is written through to it, and known to be there a pass
later; one that leaves the device then stays findable, and a hit brings it back. Each residency is
told by itself. From the host's memory, leaves go that are nowhere else; where there are none,
nothing more is written.

Source: SGLang 0.5.23 srt/mem_cache/unified_cache/unified_tree_core.py, match_prefix, begin_insert,
_split_node, evict_device_leaf; components/full.py; mem_cache/events.py.
"""

import heapq
from collections.abc import Callable, Sequence

from leadsman_engines.simulated.blocks import BlocksRemoved, BlocksStored, CacheCleared, CacheEvent
from leadsman_engines.simulated.sglang.nodes import (
    GPU,
    HOST,
    Inserted,
    Match,
    Node,
    common_pages,
    parent_of,
)


class RadixTree:
    """One scheduler's tree. evictable: pages in the device's memory that nobody holds."""

    def __init__(self, host_pages: int = 0) -> None:
        self.root = Node(None, (), 0.0)
        self.evictable = 0
        self.host_free = self._host_pages = host_pages
        self.events: list[CacheEvent] = []
        self._time = 1.0
        self._leaves: set[Node] = set()
        self._writing: list[Node] = []

    # -- lookups -------------------------------------------------------------------------------

    def match(self, pages: Sequence[int]) -> Match:
        """Find the longest prefix that is held anywhere, and touch it."""
        node, place = self.root, 0
        while place < len(pages) and (child := node.children.get(pages[place])) is not None:
            common = common_pages(child.pages, pages, place)
            if common < len(child.pages):
                node = self._split(child, common)
                break
            node, place = child, place + common
        moment = self._tick()
        deepest, seen = node, [0, 0]
        while node is not self.root:
            node.touched = moment
            moment -= 1e-5
            seen[node.on_device] += len(node.pages)
            node = parent_of(node)
        self.root.touched = moment
        last = deepest
        while not last.on_device:
            last = parent_of(last)
        return Match(last, seen[True], deepest, seen[False])

    def _tick(self) -> float:
        self._time += 1.0
        return self._time

    def _split(self, child: Node, pages: int) -> Node:
        """Cut a node in two; returns the upper one, which is new."""
        above = parent_of(child)
        upper = Node(above, child.pages[:pages], self._tick())
        upper.children = {child.pages[pages]: child}
        upper.locks, upper.on_device, upper.on_host = child.locks, child.on_device, child.on_host
        upper.writes = child.writes
        above.children[upper.pages[0]] = upper
        child.parent, child.pages = upper, child.pages[pages:]
        child.touched = self._tick()
        self._note_leaf(upper)
        self._note_leaf(child)
        return upper

    # -- insertions ----------------------------------------------------------------------------

    def insert(
        self, pages: Sequence[int], held: int, of: tuple[str, str | None] = ("", None)
    ) -> Inserted:
        """Let a request's pages be found; the first `held` of them are the tree's already.

        of: the request's and the session's names, for the event.
        """
        self.root.touched = self._tick()
        node, place, spare = self.root, 0, 0
        while place < len(pages) and (child := node.children.get(pages[place])) is not None:
            child.touched = self._tick()
            common = common_pages(child.pages, pages, place)
            if common < len(child.pages):
                child = self._split(child, common)
            if child.on_device:
                spare += max(0, place + common - max(place, held))
            else:
                self._bring_back(child, of)
            node, place = child, place + common
            self._write_through(node)
        if place < len(pages):
            leaf = Node(node, pages[place:], self._tick())
            node.children[leaf.pages[0]] = leaf
            self.evictable += len(leaf.pages)
            self._note_leaf(leaf)
            self._note_leaf(node)
            self._tell_stored(leaf, GPU, of)
            self._write_through(leaf)
            node = leaf
        return Inserted(node, spare)

    def _bring_back(self, node: Node, of: tuple[str, str | None]) -> None:
        node.on_device = True
        if not node.locks:
            self.evictable += len(node.pages)
        self._note_leaf(node)
        self._note_leaf(parent_of(node))
        self._tell_stored(node, GPU, of)

    def load(self, match: Match, of: tuple[str, str | None]) -> None:
        """Bring back to the device what only the host has of a match; the caller found room."""
        node, path = match.deepest, []
        while node is not match.node:
            path.append(node)
            node = parent_of(node)
        for missing in reversed(path):
            self._bring_back(missing, of)

    # -- holding and evicting ------------------------------------------------------------------

    def lock(self, node: Node) -> None:
        """Hold a node and all above it."""
        while node is not self.root:
            if not node.locks and node.on_device:
                self.evictable -= len(node.pages)
            node.locks += 1
            self._leaves.discard(node)
            node = parent_of(node)

    def unlock(self, node: Node) -> None:
        """Let go of what `lock` held."""
        while node is not self.root:
            node.locks -= 1
            assert node.locks >= 0
            if not node.locks:
                if node.on_device:
                    self.evictable += len(node.pages)
                self._note_leaf(node)
            node = parent_of(node)

    def evict(self, enough: Callable[[int], bool]) -> int:
        """Push out leaves until `enough` of the pages pushed out, or none is left; returns them."""
        heap = [(leaf.touched, number, leaf) for number, leaf in enumerate(self._leaves)]
        heapq.heapify(heap)
        pages = 0
        while heap and not enough(pages):
            leaf = heapq.heappop(heap)[2]
            above = parent_of(leaf)
            pages += len(leaf.pages)
            self._leave_device(leaf)
            if above in self._leaves:
                heapq.heappush(heap, (above.touched, -pages, above))
        return pages

    def _leave_device(self, leaf: Node) -> None:
        above = parent_of(leaf)
        self.evictable -= len(leaf.pages)
        leaf.on_device = False
        self._leaves.discard(leaf)
        self.events.append(BlocksRemoved(tuple(leaf.pages)))
        if not leaf.on_host:
            self._cut_off(leaf)
        self._note_leaf(above)

    def _cut_off(self, node: Node) -> None:
        del parent_of(node).children[node.pages[0]]

    def _note_leaf(self, node: Node) -> None:
        held = node.locks or not node.on_device or node is self.root
        if held or any(child.on_device for child in node.children.values()):
            self._leaves.discard(node)
        else:
            self._leaves.add(node)

    # -- the host's memory ---------------------------------------------------------------------

    def _write_through(self, node: Node) -> None:
        """Begin to copy a node to the host, if its parent is there and there is room."""
        above = parent_of(node)
        follows = above is self.root or above.on_host or above.writes
        if not (self._host_pages and follows) or node.on_host or node.writes:
            return
        if self.host_free < len(node.pages):
            self._make_host_room(len(node.pages))
        if self.host_free >= len(node.pages):
            self.host_free -= len(node.pages)
            node.writes = True
            self.lock(node)
            self._writing.append(node)

    def note_written(self) -> None:
        """Take notice of what has been copied to the host since the last pass."""
        copied, self._writing = self._writing, []
        for node in copied:
            parts, part = [], node
            while part.writes:
                parts.append(part)
                part = parent_of(part)
            for part in reversed(parts):
                part.on_host, part.writes = True, False
                self._tell_stored(part, HOST, ("", None))
            self.unlock(node)

    def _make_host_room(self, pages: int) -> None:
        """Push out host leaves, least lately touched first."""
        while self.host_free < pages:
            leaves = [
                node
                for node in self._everything()
                if node.on_host and not node.on_device and not node.locks and not node.children
            ]
            if not leaves:
                return
            leaf = min(leaves, key=lambda node: node.touched)
            self.host_free += len(leaf.pages)
            self.events.append(BlocksRemoved(tuple(leaf.pages), HOST))
            self._cut_off(leaf)

    def _everything(self) -> list[Node]:
        found, todo = [], list(self.root.children.values())
        while todo:
            node = todo.pop()
            found.append(node)
            todo.extend(node.children.values())
        return found

    # -- all of it -----------------------------------------------------------------------------

    def _tell_stored(self, node: Node, medium: str, of: tuple[str, str | None]) -> None:
        above = parent_of(node)
        parent = above.pages[-1] if above is not self.root else None
        pages = tuple(node.pages)
        self.events.append(BlocksStored(of[0], of[1], pages, parent, node.start, medium))

    @property
    def held(self) -> int:
        """Count the pages in the device's memory. O(everything held)."""
        return sum(len(node.pages) for node in self._everything() if node.on_device)

    def clear(self) -> None:
        """Forget everything; nobody may hold anything."""
        assert not any(node.locks for node in self._everything())
        self.root = Node(None, (), 0.0)
        self.evictable, self.host_free = 0, self._host_pages
        self._leaves.clear()
        self.events.append(CacheCleared())

    def check(self) -> None:
        """Assert every invariant. O(everything held)."""
        everything = self._everything()
        on_device = [node for node in everything if node.on_device]
        assert self.evictable == sum(len(node.pages) for node in on_device if not node.locks)
        for node in everything:
            assert node.pages
            assert parent_of(node).children[node.pages[0]] is node
            assert node.on_device or node.on_host
            assert parent_of(node).on_device or not node.on_device
            assert parent_of(node) is self.root or parent_of(node).locks >= node.locks
            is_leaf = not any(child.on_device for child in node.children.values())
            assert (node in self._leaves) == (is_leaf and node.on_device and not node.locks)
