from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from leadsman_engines.simulated.blocks import (
    BlockPool,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
)

SIZE = 12


def stored(names, *, start=0, parent=None):
    return BlocksStored("a", None, tuple(names), parent, start)


@dataclass
class NaiveBlock:
    number: int
    holders: int = 0
    name: int | None = None


@dataclass
class NaivePool:
    """Every rule by linear search over plain lists."""

    blocks: list = field(default_factory=lambda: [NaiveBlock(n) for n in range(SIZE)])
    queue: list = field(default_factory=lambda: list(range(SIZE)))
    named_order: list = field(default_factory=list)
    removed: list = field(default_factory=list)

    def lookup(self, names):
        found = []
        for name in names:
            copies = [number for number, known in self.named_order if known == name]
            if not copies:
                break
            found.append(copies[0])
        return found

    def hold(self, numbers):
        for number in numbers:
            self.blocks[number].holders += 1
            if number in self.queue:
                self.queue.remove(number)

    def take(self, count):
        taken = [self.queue.pop(0) for _ in range(count)]
        for number in taken:
            block = self.blocks[number]
            block.holders = 1
            if block.name is not None:
                self.removed.append(block.name)
                self.named_order.remove((number, block.name))
                block.name = None
        return taken

    def store(self, numbers, names):
        for number, name in zip(numbers, names, strict=True):
            self.blocks[number].name = name
            self.named_order.append((number, name))

    def release(self, numbers):
        nameless, named = [], []
        for number in reversed(numbers):
            block = self.blocks[number]
            block.holders -= 1
            if block.holders == 0:
                (nameless if block.name is None else named).append(number)
        self.queue = nameless + self.queue + named


class PoolAgainstOracle(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pool = BlockPool(SIZE)
        self.oracle = NaivePool()
        self.holders = []
        self.removed = []

    @rule(names=st.lists(st.integers(0, 9), unique=True, max_size=5), extra=st.integers(0, 3))
    def place(self, names, extra):
        found = self.pool.longest_prefix(names, len(names))
        assert found == self.oracle.lookup(names)
        need = len(names) - len(found) + extra
        if need + self.pool.unheld(found) > self.pool.free:
            return
        self.pool.hold(found)
        self.oracle.hold(found)
        taken = self.pool.take(need)
        assert taken == self.oracle.take(need)
        new = names[len(found) :]
        if new:
            self.pool.store(taken[: len(new)], stored(new))
            self.oracle.store(taken[: len(new)], new)
        self.holders.append(found + taken)

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 99))
    def release(self, which):
        blocks = self.holders.pop(which % len(self.holders))
        self.pool.release(blocks)
        self.oracle.release(blocks)

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 99), name=st.integers(0, 9))
    def fill_one_more(self, which, name):
        nameless = [
            block
            for block in self.holders[which % len(self.holders)]
            if self.oracle.blocks[block].name is None
        ]
        if nameless:
            self.pool.store(nameless[:1], stored([name]))
            self.oracle.store(nameless[:1], [name])

    @precondition(lambda self: not self.holders)
    @rule()
    def clear(self):
        assert self.pool.clear()
        for block in self.oracle.blocks:
            block.name = None
        self.oracle.named_order.clear()

    @invariant()
    def agree(self):
        self.pool.check()
        assert list(self.pool._free) == self.oracle.queue
        for event in self.pool.take_events():
            if isinstance(event, BlocksRemoved):
                self.removed += event.hashes
        assert self.removed == self.oracle.removed


TestPoolAgainstOracle = PoolAgainstOracle.TestCase
TestPoolAgainstOracle.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_prompts_deepest_block_goes_first():
    pool = BlockPool(3)
    blocks = pool.take(3)
    pool.store(blocks, stored([1, 2, 3]))
    pool.release(blocks)

    pool.take(1)

    assert pool.longest_prefix([1, 2, 3], 3) == blocks[:2]


def test_blocks_without_a_name_are_used_before_any_cached_one():
    pool = BlockPool(4)
    blocks = pool.take(4)
    pool.store(blocks[:3], stored([1, 2, 3]))
    pool.release(blocks)

    taken = pool.take(1)

    assert taken == blocks[3:]


def test_each_copy_of_a_prefix_is_stored_and_removed_by_itself():
    pool = BlockPool(2)
    for block in pool.take(2):
        pool.store([block], stored([7]))
        pool.release([block])

    pool.take(2)

    assert pool.take_events() == [stored([7]), stored([7]), BlocksRemoved((7, 7))]


def test_a_prefix_lives_on_while_one_copy_is_left():
    pool = BlockPool(2)
    first, second = pool.take(2)
    pool.store([first], stored([7]))
    pool.store([second], stored([7]))
    pool.release([first])

    pool.take(1)

    assert pool.longest_prefix([7], 1) == [second]


def test_a_cache_in_use_is_not_cleared():
    pool = BlockPool(2)
    pool.take(1)

    cleared = pool.clear()

    assert not cleared
    assert CacheCleared() not in pool.take_events()
