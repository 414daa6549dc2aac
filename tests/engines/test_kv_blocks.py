from collections import Counter

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from leadsman.index import CacheIndex
from leadsman.keys import MultimodalItem, block_keys, mix, namespace_seed
from leadsman.records import GPU, Cleared, Removed, Stored
from leadsman.units import WorkerId
from leadsman.windows import group_tier
from leadsman_engines.blocks import EngineBlocks
from leadsman_engines.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

W = WorkerId("w:1")
SIZE = 2
SEED = namespace_seed(secret=b"s", model="m")
NONE = np.empty(0, dtype=np.uint32)

paths = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
tiers = st.sampled_from([GPU, "CPU"])


def tokens(path):
    return np.array([token for block in path for token in (block, block + 7)], dtype=np.uint32)


def name(path):
    word = 1
    for block in path:
        word = mix(word * 3 + block)
    return word


def keys(path, **space):
    seed = namespace_seed(secret=b"s", model="m", **space)
    return block_keys(tokens(path), SIZE, seed).tolist()


def stored(path, start=0, **more):
    return BlockStored(
        hashes=tuple(name(path[: end + 1]) for end in range(start, len(path))),
        parent=name(path[:start]) if start else None,
        tokens=tokens(path[start:]),
        block_size=SIZE,
        **more,
    )


def bare(*some, tier="CPU"):
    return BlockStored(
        hashes=tuple(map(name, some)), parent=None, tokens=NONE, block_size=0, tier=tier
    )


def removed(*some, tier=GPU):
    return BlockRemoved(hashes=tuple(map(name, some)), tier=tier)


class Pending:
    def __init__(self, parent, names, tier):
        self.parent, self.first, self.names, self.tier = parent, names[0], names, tier


class BlocksMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.blocks = EngineBlocks(secret=b"s", model="m")
        self.index = CacheIndex()
        self.index.store(W, np.empty(0, np.uint64))
        self.copies = Counter()
        self.pending = []
        self.unknown = 0
        self.truth = {}

    def feed(self, *events):
        self.index.apply(W, self.blocks.resolve(events))

    def known(self, path):
        return any(self.copies[path, tier] for tier in (GPU, "CPU"))

    def settle(self):
        moved = True
        while moved:
            moved = False
            for one in list(self.pending):
                if one.parent == () or self.known(one.parent) or self.known(one.first):
                    self.pending.remove(one)
                    self.copies.update((path, one.tier) for path in one.names)
                    moved = True
                    break

    @rule(path=paths, tier=tiers, data=st.data())
    def store(self, path, tier, data):
        start = data.draw(st.integers(0, len(path) - 1))
        self.feed(stored(path, start, tier=tier))
        names = [path[: end + 1] for end in range(start, len(path))]
        self.pending.append(Pending(path[:start], names, tier))
        self.settle()

    @rule(some=st.lists(paths, min_size=1, max_size=3), tier=tiers)
    def store_without_tokens(self, some, tier):
        self.feed(bare(*some, tier=tier))
        for path in some:
            self.pending.append(Pending(path, [path], tier))
            self.settle()

    @rule(some=st.lists(paths, min_size=1, max_size=4), tier=tiers)
    def remove(self, some, tier):
        self.feed(removed(*some, tier=tier))
        for path in some:
            if self.copies[path, tier]:
                self.copies[path, tier] -= 1
                continue
            waiting = [p for p in self.pending if p.tier == tier and path in p.names]
            if waiting:
                waiting[-1].names.remove(path)
                self.pending = [p for p in self.pending if p.names]
            else:
                self.unknown += 1

    @rule()
    def clear(self):
        self.feed(AllBlocksCleared())
        self.copies.clear()
        self.pending.clear()

    @invariant()
    def the_index_holds_the_true_keys_of_all_that_can_be_understood(self):
        self.blocks.check()
        self.index.check()
        held = {
            (key, tier): copies
            for tier, (some, counts) in self.index.held(W).items()
            for key, copies in zip(some.tolist(), counts.tolist(), strict=True)
        }
        assert held == {(keys(path)[-1], tier): n for (path, tier), n in (+self.copies).items()}
        assert self.blocks.waiting == sum(len(one.names) for one in self.pending)
        assert self.blocks.known == len({path for path, _ in +self.copies})
        assert self.blocks.counts["unknown_removal"] == self.unknown
        assert self.index.unknown_removals == 0


TestBlocksAgainstAllCopies = BlocksMachine.TestCase
TestBlocksAgainstAllCopies.settings = settings(
    max_examples=80,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@given(st.permutations(range(5)))
@settings(deadline=None)
def test_blocks_that_arrive_in_any_order_end_up_under_their_true_keys(order):
    blocks, index = EngineBlocks(secret=b"s", model="m"), CacheIndex()
    path = (0, 1, 0, 0, 1)

    for depth in order:
        index.apply(W, blocks.resolve([stored(path[: depth + 1], depth)]))

    assert sorted(index.held(W)[GPU][0].tolist()) == sorted(keys(path))
    assert blocks.waiting == 0


def test_an_unknown_parent_never_becomes_a_root():
    blocks = EngineBlocks(secret=b"s", model="m")

    resolved = blocks.resolve([stored((0, 1), 1)])

    assert resolved == ()
    assert blocks.waiting == 1


def test_an_adopted_orphan_keeps_its_session():
    blocks = EngineBlocks(secret=b"s", model="m")
    blocks.resolve([stored((0, 1), 1, session="late")])

    resolved = blocks.resolve([stored((0,), session="early")])

    assert [event.session for event in resolved] == ["early", "late"]
    assert [event.keys.tolist() for event in resolved] == [keys((0, 1))[:1], keys((0, 1))[1:]]


def test_an_orphan_that_was_removed_is_not_adopted():
    blocks = EngineBlocks(secret=b"s", model="m")

    resolved = blocks.resolve([stored((0, 1), 1), removed((0, 1)), stored((0,))])

    assert [event.keys.tolist() for event in resolved] == [keys((0,))]
    assert blocks.counts["unknown_removal"] == 0


def test_the_oldest_orphans_leave_when_too_many_wait():
    blocks = EngineBlocks(secret=b"s", model="m", orphan_limit=2)
    blocks.resolve([stored((0, n), 1) for n in range(4)])

    resolved = blocks.resolve([stored((0,))])

    assert [event.keys.tolist() for event in resolved[1:]] == [keys((0, n))[1:] for n in (2, 3)]
    assert blocks.counts["dropped_orphan"] == 2


def test_an_offloaded_block_without_tokens_is_known_by_its_hash():
    blocks = EngineBlocks(secret=b"s", model="m")

    early = blocks.resolve([bare((0,))])
    resolved = blocks.resolve([stored((0,)), bare((0,))])

    assert early == ()
    assert [(event.keys.tolist(), event.tier) for event in resolved] == [
        (keys((0,)), GPU),
        (keys((0,)), "CPU"),
        (keys((0,)), "CPU"),
    ]


def test_a_block_removed_in_one_tier_stays_known_by_the_other():
    blocks = EngineBlocks(secret=b"s", model="m")
    blocks.resolve([stored((0,)), bare((0,)), removed((0,))])

    resolved = blocks.resolve([stored((0, 1), 1), removed((0,), tier="CPU")])

    assert [type(event) for event in resolved] == [Stored, Removed]
    assert resolved[0].keys.tolist() == keys((0, 1))[1:]
    assert resolved[1].tier == "CPU"


def test_an_adapter_and_its_base_never_share_a_key_and_children_inherit_the_adapter():
    blocks = EngineBlocks(secret=b"s", model="m")

    resolved = blocks.resolve(
        [
            stored((0,)),
            BlockStored(hashes=(1,), parent=None, tokens=tokens((0,)), block_size=SIZE, lora="a"),
            BlockStored(hashes=(2,), parent=1, tokens=tokens((1,)), block_size=SIZE, lora="a"),
        ]
    )

    assert [event.keys.tolist() for event in resolved] == [
        keys((0,)),
        keys((0, 1), lora="a")[:1],
        keys((0, 1), lora="a")[1:],
    ]


def test_an_adapter_loaded_anew_under_its_name_gives_up_its_old_blocks():
    blocks = EngineBlocks(secret=b"s", model="m")
    first = stored((0, 1), lora="a", lora_id=1)
    other = stored((1,), lora="b", lora_id=2)
    blocks.resolve([first, first, other, bare((0,)), stored((1, 1, 1), 2, lora="a", lora_id=1)])

    resolved = blocks.resolve(
        [
            BlockStored(
                hashes=(9,), parent=None, tokens=tokens((0,)), block_size=SIZE, lora="a", lora_id=3
            )
        ]
    )

    old = keys((0, 1), lora="a")
    gone = {event.tier: sorted(event.keys.tolist()) for event in resolved[:-1]}
    assert gone == {GPU: sorted(old * 2), "CPU": old[:1]}
    assert resolved[-1].keys.tolist() == old[:1]
    assert blocks.waiting == 0
    blocks.check()


def test_a_cache_salt_separates_the_whole_chain():
    blocks = EngineBlocks(secret=b"s", model="m")

    resolved = blocks.resolve([stored((0, 1), cache_salt="x"), stored((0, 1, 1), 2)])

    assert np.concatenate([event.keys for event in resolved]).tolist() == keys(
        (0, 1, 1), cache_salt="x"
    )


def test_an_item_enters_by_its_place_also_where_the_chain_goes_on_from_its_first_block():
    blocks = EngineBlocks(secret=b"s", model="m")
    item = MultimodalItem(content="cat", offset=3)
    blocks.resolve([stored((0, 1, 0)), removed((0,))])

    resolved = blocks.resolve(
        [
            BlockStored(
                hashes=(name((0, 1)), 5),
                parent=name((0,)),
                tokens=tokens((1, 0)),
                block_size=SIZE,
                items=(item,),
            )
        ]
    )

    whole = block_keys(
        tokens((0, 1, 0)), SIZE, SEED, [MultimodalItem(content="cat", offset=SIZE + 3)]
    )
    assert resolved[0].keys.tolist() == whole[1:].tolist()


def test_groups_that_cannot_be_followed_are_counted_and_make_the_view_incredible():
    blocks = EngineBlocks(secret=b"s", model="m")
    blocks.resolve([stored((0,))])

    resolved = blocks.resolve(
        [stored((0,), group=1, windowed=True), BlockRemoved(hashes=(name((0,)),), group=1)]
    )

    assert resolved == ()
    assert blocks.is_windowed
    assert blocks.counts["other_group"] == 2


def test_a_window_group_says_which_of_the_first_groups_blocks_it_keeps():
    blocks = EngineBlocks(secret=b"s", model="m")
    kept = BlockStored(
        hashes=(name((0, 1)), 77),
        parent=name((0,)),
        tokens=tokens((0, 1, 1)),
        block_size=SIZE,
        group=1,
        windowed=True,
        window=SIZE + 1,
    )

    resolved = blocks.resolve(
        [stored((0, 1)), kept, kept, removed((0, 1)), BlockRemoved(hashes=kept.hashes, group=1)]
    )

    tier = group_tier(1, 1)
    second = keys((0, 1))[1:]
    told = [(type(one), one.tier, one.keys.tolist()) for one in resolved if one.tier == tier]
    assert told == [(Stored, tier, second), (Stored, tier, second), (Removed, tier, second)]
    assert not blocks.is_windowed
    assert blocks.counts["sparse"] == 2


def test_a_further_group_that_keeps_whole_prefixes_asks_for_no_more_than_the_first():
    blocks = EngineBlocks(secret=b"s", model="m")

    resolved = blocks.resolve([stored((0,)), stored((0,), group=1)])

    assert [one.keys.tolist() for one in resolved] == [keys((0,))]
    assert not blocks.is_windowed


def test_a_clear_empties_every_group():
    blocks = EngineBlocks(secret=b"s", model="m")
    whole = stored((0, 1))
    windowed = stored((0, 1), group=1, windowed=True, window=2)
    blocks.resolve([whole, windowed, AllBlocksCleared()])

    resolved = blocks.resolve([windowed, BlockRemoved(hashes=windowed.hashes, group=1)])

    assert [one.keys.tolist() for one in resolved] == [[]]


def test_of_a_sparse_list_only_hashes_known_before_are_credited():
    blocks = EngineBlocks(secret=b"s", model="m")
    blocks.resolve([stored((0,))])

    resolved = blocks.resolve(
        [
            BlockStored(
                hashes=(name((0,)), 77), parent=None, tokens=tokens((0, 1, 1)), block_size=SIZE
            )
        ]
    )

    assert [event.keys.tolist() for event in resolved] == [keys((0,))]
    assert blocks.counts["sparse"] == 1


def test_clearing_forgets_blocks_and_orphans():
    blocks = EngineBlocks(secret=b"s", model="m")
    blocks.resolve([stored((0,)), stored((1, 1), 1)])

    resolved = blocks.resolve([AllBlocksCleared(), stored((0, 1), 1), stored((1,))])

    assert isinstance(resolved[0], Cleared)
    assert [event.keys.tolist() for event in resolved[1:]] == [keys((1,))]
    assert (blocks.known, blocks.waiting) == (1, 1)


def test_a_long_chain_that_comes_backwards_is_adopted_at_once():
    path = (0, 1) * 1500
    blocks = EngineBlocks(secret=b"s", model="m")
    chain = [
        BlockStored(
            hashes=(place + 1,), parent=place or None, tokens=tokens(path[place : place + 1]),
            block_size=SIZE,
        )
        for place in range(len(path))
    ]  # fmt: skip

    waiting = blocks.resolve(reversed(chain[1:]))
    adopted = blocks.resolve(chain[:1])

    assert waiting == ()
    assert [key for event in adopted for key in event.keys.tolist()] == keys(path)
