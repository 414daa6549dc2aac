from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from leadsman.index import CacheIndex
from leadsman.keys import mix
from leadsman.records import GPU, Cleared, Removed, Stored, Trust
from leadsman.single import FEW, SingleKeyTable
from leadsman.table import KeyTable, batches
from leadsman.units import WorkerId

A, B = WorkerId("a:1"), WorkerId("b:1")
WORKERS = [WorkerId(f"w{i}:80") for i in range(3)]
TIERS = [GPU, "CPU", "STORAGE"]
POOL = [mix(n) for n in range(1, 13)]


def keys(*numbers):
    return np.array([mix(n) for n in numbers], dtype=np.uint64)


workers = st.sampled_from(WORKERS)
tiers = st.sampled_from(TIERS)
few = st.lists(st.sampled_from(POOL), max_size=8)
many = st.lists(st.sampled_from(POOL), min_size=FEW + 1, max_size=2 * FEW)
some_keys = (few | many).map(lambda ks: np.array(ks, np.uint64))


class Naive:
    def __init__(self):
        self.trust = Trust.LIVE
        self.fresh = Counter()
        self.doubted = Counter()

    @property
    def stores(self):
        return self.doubted if self.trust is Trust.BLIND else self.fresh

    def confirm(self, key):
        if not self.fresh[key, GPU]:
            self.fresh[key, GPU] = 1
            self.doubted[key, GPU] -= bool(self.doubted[key, GPU])

    def remove(self, key, tier):
        for held in (self.fresh, self.doubted):
            if held[key, tier]:
                held[key, tier] -= 1
                return True
        return False

    def run(self, prompt, among):
        depth = 0
        for key in prompt.tolist():
            if not any(self.fresh[key, tier] for tier in among):
                break
            depth += 1
        return depth


class IndexMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.index = CacheIndex()
        self.naive = {}
        self.unknown = 0

    def of(self, worker):
        return self.naive.setdefault(worker, Naive())

    @rule(worker=workers, stored=some_keys, tier=tiers)
    def store(self, worker, stored, tier):
        self.index.store(worker, stored, tier)
        self.of(worker).stores.update((key, tier) for key in stored.tolist())

    @rule(worker=workers, removed=some_keys, tier=tiers)
    def remove(self, worker, removed, tier):
        self.index.remove(worker, removed, tier)
        naive = self.of(worker)
        self.unknown += sum(not naive.remove(key, tier) for key in removed.tolist())

    @rule(worker=workers, stored=some_keys, removed=some_keys, tier=tiers)
    def apply(self, worker, stored, removed, tier):
        batch = (
            Stored(keys=stored, tier=tier),
            Stored(keys=removed[:2], tier=tier),
            Removed(keys=removed, tier=tier),
            Cleared(tier="STORAGE"),
        )
        self.index.apply(worker, batch)
        self.of(worker).stores.update(
            (key, tier) for key in [*stored.tolist(), *removed[:2].tolist()]
        )
        self.unknown += sum(not self.of(worker).remove(key, tier) for key in removed.tolist())
        self.forget(worker, "STORAGE")

    @rule(worker=workers, tier=st.none() | tiers)
    def clear(self, worker, tier):
        self.index.clear(worker, tier)
        self.forget(worker, tier)

    def forget(self, worker, tier):
        for held in (self.of(worker).fresh, self.of(worker).doubted):
            for key, of_tier in list(held):
                if tier in (None, of_tier):
                    del held[key, of_tier]

    @rule(worker=workers)
    def purge(self, worker):
        self.index.purge(worker)
        self.naive.pop(worker, None)

    @rule(worker=workers, trust=st.sampled_from(Trust))
    def set_trust(self, worker, trust):
        self.index.set_trust(worker, trust)
        naive = self.of(worker)
        naive.trust = trust
        if trust in {Trust.SUSPECT, Trust.BLIND}:
            naive.doubted.update(naive.fresh)
            naive.fresh = Counter()
        else:
            naive.fresh.update(naive.doubted)
            naive.doubted = Counter()

    @rule(worker=workers, certain=some_keys)
    def confirm(self, worker, certain):
        self.index.confirm(worker, certain)
        naive = self.of(worker)
        for key in certain.tolist():
            naive.confirm(key)

    @rule(worker=workers)
    def give_up_doubted(self, worker):
        self.index.give_up_doubted(worker)
        if worker in self.naive:
            self.naive[worker].doubted = Counter()

    @rule(worker=workers)
    def vouch_for_doubted(self, worker):
        self.index.vouch_for_doubted(worker)
        if worker in self.naive:
            naive = self.naive[worker]
            naive.fresh, naive.doubted = naive.fresh + naive.doubted, Counter()

    @rule(prompt=some_keys)
    def match(self, prompt):
        found = self.index.match(prompt)
        assert set(found.workers) == set(self.naive)
        for worker, gpu, either in zip(found.workers, found.gpu, found.any_tier, strict=True):
            assert gpu == self.naive[worker].run(prompt, [GPU])
            assert either == self.naive[worker].run(prompt, TIERS)

    @rule(prompt=some_keys, worker=workers)
    def reach_of_all(self, prompt, worker):
        if worker not in self.naive:
            return
        naive = self.naive[worker]

        def is_there(key):
            others = any(n.fresh[key, t] for n in self.naive.values() for t in TIERS[1:])
            return bool(naive.fresh[key, GPU]) or others

        run = next((n for n, k in enumerate(prompt.tolist()) if not is_there(k)), prompt.size)
        assert self.index.reach_of_all(worker, prompt) in {run, 0}
        if any(is_there(key) and not naive.fresh[key, GPU] for key in prompt.tolist()):
            assert self.index.reach_of_all(worker, prompt) == run

    @rule(prompt=some_keys, worker=workers, tier=tiers)
    def holds(self, prompt, worker, tier):
        held = self.index.holds(worker, prompt, tier)
        naive = self.naive.get(worker, Naive())
        both = naive.fresh + naive.doubted
        assert held.tolist() == [both[key, tier] > 0 for key in prompt.tolist()]

    @invariant()
    def everything_held_is_what_was_stored_and_not_removed(self):
        self.index.check()
        assert self.index.unknown_removals == self.unknown
        assert set(self.index.workers) == set(self.naive)
        distinct = set()
        for worker, naive in self.naive.items():
            held = {
                (key, tier): copies
                for tier, (some, counts) in self.index.held(worker).items()
                for key, copies in zip(some.tolist(), counts.tolist(), strict=True)
            }
            assert held == dict(+(naive.fresh + naive.doubted))
            assert self.index.trust(worker) is naive.trust
            distinct |= {key for key, _ in held}
            for tier in TIERS:
                assert self.index.blocks(worker, tier) == sum(t == tier for _, t in held)
        assert self.index.distinct_blocks == len(distinct)


TestIndexAgainstCounters = IndexMachine.TestCase
TestIndexAgainstCounters.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@given(st.integers(0, 2**32), st.lists(st.integers(1, 6000), min_size=1, max_size=12))
@settings(max_examples=15, deadline=None)
def test_a_large_index_holds_what_a_set_of_keys_holds(seed, sizes):
    rng = np.random.default_rng(seed)
    universe = rng.integers(1, 2**64, 9000, dtype=np.uint64)
    index, held = CacheIndex(), set()

    for size in sizes:
        some = rng.choice(universe, size, replace=False)
        if rng.random() < 0.6:
            index.store(A, some[~index.holds(A, some)])
            held |= set(some.tolist())
        else:
            index.remove(A, some)
            held -= set(some.tolist())

    index.check()
    assert set(index.held(A).get(GPU, ([], None))[0]) == held
    assert index.holds(A, universe).tolist() == [key in held for key in universe.tolist()]


def test_a_removed_block_ends_every_prefix_through_it_and_storing_it_revives_them():
    index = CacheIndex()
    prompt = keys(1, 2, 3, 4, 5)
    index.store(A, prompt)

    index.remove(A, prompt[2:3])
    holed = index.match(prompt).gpu.tolist()
    index.store(A, prompt[2:3])

    assert holed == [2]
    assert index.match(prompt).gpu.tolist() == [5]


def test_a_block_stored_twice_survives_one_removal():
    index = CacheIndex()
    for _ in range(3):
        index.store(A, keys(1, 2))

    index.remove(A, keys(2))
    index.remove(A, keys(2))
    after_two = index.match(keys(1, 2)).gpu.tolist()
    index.remove(A, keys(2))

    assert after_two == [2]
    assert index.match(keys(1, 2)).gpu.tolist() == [1]


def test_a_removal_in_one_tier_leaves_the_other_tiers_alone():
    index = CacheIndex()
    index.store(A, keys(1), "CPU_PINNED")

    index.remove(A, keys(1), GPU)

    assert index.match(keys(1)).any_tier.tolist() == [1]
    assert index.match(keys(1)).gpu.tolist() == [0]
    assert index.unknown_removals == 1


def test_a_run_over_any_tier_may_change_tiers_on_its_way():
    index = CacheIndex()
    index.store(A, keys(1, 3), GPU)
    index.store(A, keys(2, 4), "CPU")

    found = index.match(keys(1, 2, 3, 4, 5))

    assert (found.gpu.tolist(), found.any_tier.tolist()) == ([1], [4])


def test_a_suspect_worker_is_credited_only_what_was_stored_since():
    index = CacheIndex()
    index.store(A, keys(1, 2, 3))
    index.set_trust(A, Trust.SUSPECT)

    index.store(A, keys(1))
    suspect = index.match(keys(1, 2, 3)).gpu.tolist()
    index.set_trust(A, Trust.LIVE)

    assert suspect == [1]
    assert index.match(keys(1, 2, 3)).gpu.tolist() == [3]


@pytest.mark.parametrize(("trust", "credit"), [(Trust.BLIND, 0), (Trust.REPLAYING, 2)])
def test_a_blind_worker_is_credited_nothing_and_a_replaying_one_what_it_holds(trust, credit):
    index = CacheIndex()
    index.store(A, keys(1, 2))

    index.set_trust(A, trust)

    assert index.match(keys(1, 2)).gpu.tolist() == [credit]
    assert index.holds(A, keys(1, 2)).all()


def test_a_match_answers_in_the_order_that_the_caller_asks_in():
    index = CacheIndex()
    index.store(A, keys(1))
    index.store(B, keys(1, 2))

    found = index.match(keys(1, 2), [B, WorkerId("unknown:1"), A])

    assert found.workers == (B, "unknown:1", A)
    assert found.gpu.tolist() == [2, 0, 1]


@pytest.mark.parametrize("blocks", [400, 1200])
def test_three_hundred_workers_each_get_their_own_depth(blocks):
    index = CacheIndex()
    prompt = keys(*range(1, blocks))
    crowd = [WorkerId(f"w{i}") for i in range(300)]
    for depth, worker in enumerate(crowd):
        index.store(worker, prompt[:depth])

    found = index.match(prompt, crowd)

    assert found.gpu.tolist() == list(range(300))
    index.check()


def test_workers_that_come_and_go_leave_no_memory_behind():
    index = CacheIndex()
    rng = np.random.default_rng(1)
    empty = index.nbytes

    for turn in range(20):
        index.store(WorkerId(f"w{turn}"), rng.integers(1, 2**64, 5000, dtype=np.uint64))
        index.set_trust(WorkerId(f"w{turn}"), Trust.SUSPECT)
        index.store(WorkerId(f"w{turn}"), rng.integers(1, 2**64, 500, dtype=np.uint64), "CPU")
        index.purge(WorkerId(f"w{turn}"))

    assert index.nbytes <= empty + 64 * 1024
    assert index.workers == ()
    assert index.distinct_blocks == 0
    index.check()


def test_a_purged_workers_place_is_taken_by_another_without_its_blocks():
    index = CacheIndex()
    index.store(A, keys(1, 2))

    index.purge(A)
    index.store(B, keys(1))

    assert index.match(keys(1, 2), [A, B]).gpu.tolist() == [0, 1]


def test_a_lookup_reads_at_most_four_times_the_longest_match(monkeypatch):
    index = CacheIndex()
    prompt = np.random.default_rng(1).integers(1, 2**64, 50_000, dtype=np.uint64)
    index.store(A, prompt[:300])
    asked = []
    rows = index._table.rows
    monkeypatch.setattr(index._table, "rows", lambda some: asked.append(some.size) or rows(some))

    found = index.match(prompt)

    assert found.gpu.tolist() == [300]
    assert sum(asked) <= 64 + 4 * 300


def test_a_block_costs_at_most_eighty_bytes_among_256_workers():
    index = CacheIndex()
    rng = np.random.default_rng(2)

    sizes = []
    for worker in range(256):
        index.store(WorkerId(f"w{worker}"), rng.integers(1, 2**64, 700, dtype=np.uint64))
    for worker in range(256):
        index.store(WorkerId(f"w{worker}"), rng.integers(1, 2**64, 350, dtype=np.uint64))
        sizes.append(index.nbytes / index.distinct_blocks)

    assert max(sizes) <= 80


def test_steady_churn_does_not_grow_the_index():
    index = CacheIndex()
    rng = np.random.default_rng(3)
    held = [rng.integers(1, 2**64, 100, dtype=np.uint64) for _ in range(100)]
    for some in held:
        index.store(A, some)
    before = index.nbytes

    for turn in range(1000):
        fresh = rng.integers(1, 2**64, 100, dtype=np.uint64)
        index.remove(A, held[turn % 100])
        index.store(A, fresh)
        held[turn % 100] = fresh

    index.check()
    assert index.nbytes <= 1.3 * before


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2900), st.integers(1, 1500)), max_size=12))
def test_rows_of_many_keys_are_those_of_each_however_they_came_to_lie(changes):
    table, prompt = SingleKeyTable(), np.random.default_rng(6).integers(1, 2**64, 3000, np.uint64)

    for adds, start, length in changes:
        some = prompt[start : start + length]
        slots = table.find(some)
        (table.add(some) if adds else table.drop(slots[table.rows_at(slots) != 0]))

    table.check()
    singly = [table.row_at(table.find_one(key)) for key in prompt.tolist()]
    assert table.rows(prompt).tolist() == singly
    assert table.rows(prompt[::-1].copy()).tolist() == singly[::-1]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=40))
def test_keys_of_one_bucket_are_found_whether_they_came_singly_or_together(changes):
    index, held, rng = CacheIndex(), set(), np.random.default_rng(5)
    crowded = np.arange(1, 61, dtype=np.uint64) + np.uint64(7 << 32)

    for adds, number in changes:
        some = rng.choice(crowded, number, replace=False)
        fresh = set(some.tolist()) - held if adds else set(some.tolist()) & held
        (index.store if adds else index.remove)(A, np.array(sorted(fresh), np.uint64))
        held = held | fresh if adds else held - fresh

    index.check()
    assert index.distinct_blocks == len(held)
    assert index.holds(A, crowded).tolist() == [key in held for key in crowded.tolist()]


def test_keys_that_all_belong_to_one_bucket_are_found_without_running_out_of_stack():
    keys = np.random.default_rng(8).permutation(np.arange(1, 12_001, dtype=np.uint64))
    table = KeyTable()
    rows = np.concatenate([table.add(part) for part in batches(keys)])

    found, absent = table.rows(keys), table.rows(keys + np.uint64(keys.size))

    assert np.array_equal(found, rows)
    assert not absent.any()
