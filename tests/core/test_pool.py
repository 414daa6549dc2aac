from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from leadsman.pool import Pool
from leadsman.records import Trust

KEYS = range(12)
some_keys = st.lists(st.sampled_from(KEYS), max_size=6, unique=True)


class PoolBesideAList(RuleBasedStateMachine):
    """A pool, and the free queue as a literal list, head first."""

    def __init__(self):
        super().__init__()
        self.pool = Pool()
        self.queue, self.held = [], []
        self.doubted, self.is_blind = set(), False

    def _holds(self, key):
        return any(key in keys for keys in self.held)

    @rule(keys=some_keys)
    def pin(self, keys):
        self.pool.pin(keys)
        self.held.append(keys)
        self.queue = [key for key in self.queue if key not in keys]

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 100))
    def unpin(self, which):
        keys = self.held.pop(which % len(self.held))
        self.pool.unpin(keys)
        self.queue += [key for key in reversed(keys) if not self._holds(key)]

    @rule(keys=some_keys)
    def keep(self, keys):
        self.pool.keep(keys)
        for key in keys:
            if not self._holds(key):
                self.queue = [one for one in self.queue if one != key] + [key]

    @rule(keys=some_keys)
    def remove(self, keys):
        self.pool.remove(keys)
        self.queue = [key for key in self.queue if key not in keys]

    @rule()
    def clear(self):
        self.pool.clear()
        self.queue, self.held, self.doubted = [], [], set()

    @rule(trust=st.sampled_from(Trust))
    def set_trust(self, trust):
        self.pool.set_trust(trust)
        self.is_blind = trust is Trust.BLIND
        self.doubted = set()
        if trust in {Trust.SUSPECT, Trust.BLIND}:
            self.doubted = {key for key in KEYS if self._holds(key) or key in self.queue}

    @rule(keys=some_keys)
    def store(self, keys):
        self.pool.note_stored(keys)
        self.keep(keys)
        self.doubted = self.doubted | set(keys) if self.is_blind else self.doubted - set(keys)

    @rule(keys=some_keys, room=st.integers(0, 14))
    def confirm(self, keys, room):
        gone = self.pool.confirm(keys, room)
        new = [key for key in keys if not self._holds(key) and key not in self.queue]
        self.doubted -= set(keys)
        self.queue += new
        held = sum(map(self._holds, KEYS))
        assert gone == self.queue[: max(0, held + len(self.queue) - room)]
        self.queue = self.queue[len(gone) :]

    @rule()
    def give_up_doubted(self):
        self.pool.give_up_doubted()
        self.queue = [key for key in self.queue if key not in self.doubted]

    @rule()
    def vouch_for_doubted(self):
        self.pool.vouch_for_doubted()
        self.doubted.clear()

    @rule(key=st.sampled_from(KEYS))
    def what_is_in_doubt_is_not_found_but_claimed(self, key):
        there = key in self.queue or self._holds(key)
        assert self.pool.claimed([key], 1) == there
        assert self.pool.depth([key], 1) == (there and key not in self.doubted)

    @rule(lost=st.integers(0, 14), touched=some_keys)
    def a_cutoff_parts_what_is_lost_from_what_stays(self, lost, touched):
        taken = [key for key in self.queue if key in touched]
        untouched = [key for key in self.queue if key not in touched]

        cutoff = self.pool.cutoff(lost, sorted(self.pool.free[key] for key in taken))

        stay = [key for key in untouched if self.pool.free[key] >= cutoff]
        assert stay == untouched[lost:]

    @invariant()
    def both_hold_the_same_in_the_same_order(self):
        self.pool.check()
        assert list(self.pool.free) == self.queue
        self.doubted &= {*self.queue, *(key for keys in self.held for key in keys)}
        assert self.pool.doubted == self.doubted
        assert self.pool.pins.keys() == {key for keys in self.held for key in keys}
        assert len(self.pool) == len([key for key in KEYS if key in self.pool])


TestPoolBesideAList = PoolBesideAList.TestCase


@given(
    pinned=st.integers(0, 8),
    free=st.integers(0, 8),
    most=st.integers(0, 20),
    lost=st.integers(0, 8),
)
def test_depth_is_how_far_a_prefix_is_there_and_outlives_the_cutoff(pinned, free, most, lost):
    keys = list(range(20))
    pool = Pool()
    pool.pin(keys[: pinned + free])
    pool.pin(keys[:pinned])
    pool.unpin(keys[: pinned + free])

    depth = pool.depth(keys, most, pool.cutoff(lost))

    assert depth == min(most, pinned + max(0, free - lost))
    assert pool.pinned(keys, most) == min(most, pinned)


def test_a_prefix_is_lost_from_its_deepest_block_on():
    pool = Pool()
    pool.pin([1, 2, 3])
    pool.unpin([1, 2, 3])

    cutoff = pool.cutoff(1)

    assert pool.depth([1, 2, 3], 3, cutoff) == 2


def test_what_was_used_last_is_lost_last():
    pool = Pool()
    for keys in ([1, 2], [11, 12], [1, 2]):
        pool.pin(keys)
        pool.unpin(keys)

    cutoff = pool.cutoff(2)

    assert pool.depth([1, 2], 2, cutoff) == 2
    assert pool.depth([11, 12], 2, cutoff) == 0


def test_a_block_that_runs_is_not_lost_when_another_copy_is_removed():
    pool = Pool()
    pool.pin([1, 2])

    pool.remove([1, 2])

    assert pool.depth([1, 2], 2) == 2


def test_after_clear_the_end_of_a_request_frees_nothing_that_can_be_found():
    pool = Pool()
    pool.pin([1, 2])
    pool.clear()

    pool.unpin([1, 2])

    assert len(pool) == 0
