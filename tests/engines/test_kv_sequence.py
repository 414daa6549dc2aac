from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from leadsman.records import Trust
from leadsman_engines import kv_sequence
from leadsman_engines.kv_sequence import Apply, AskReplay, Believe, Forget, KvSequence


def payload(engine, sequence):
    return b"%d/%d" % (engine, sequence)


class Follower:
    def __init__(self, *, can_replay=True):
        self.sequence = KvSequence(can_replay=can_replay)
        self.applied = []
        self.since = 0
        self.asked = None

    def do(self, actions):
        for action in actions:
            match action:
                case Apply(sequence=n, payload=p):
                    assert p.endswith(b"/%d" % n)
                    self.applied.append((int(p.split(b"/")[0]), n))
                case Forget():
                    self.applied, self.since = [], 0
                case AskReplay(start=start):
                    self.asked = start
                case Believe(trust=Trust.SUSPECT):
                    self.since = len(self.applied)
                case Believe():
                    self.since = 0
        return actions

    def live(self, *numbers, engine=0):
        for n in numbers:
            self.do(self.sequence.live(n, payload(engine, n)))

    def replay(self, *numbers, engine=0, problem=None):
        self.asked = None
        for n in numbers:
            self.do(self.sequence.replayed(n, payload(engine, n)))
            if self.asked is not None:
                return
        self.do(self.sequence.replay_over(problem))

    @property
    def numbers(self):
        return [n for _, n in self.applied]


def connected(**how):
    follower = Follower(**how)
    follower.do(follower.sequence.connected())
    return follower


class SequenceMachine(RuleBasedStateMachine):
    @initialize(can_replay=st.booleans(), buffered=st.integers(1, 6))
    def connect(self, can_replay, buffered):
        self.can_replay, self.buffered = can_replay, buffered
        self.engine, self.published = 0, 0
        self.wire = []
        self.follower = connected(can_replay=can_replay)
        self.answer = None

    @property
    def sequence(self):
        return self.follower.sequence

    @rule(batches=st.integers(1, 4))
    def publish(self, batches):
        for _ in range(batches):
            self.wire.append((self.engine, self.published))
            self.published += 1

    @precondition(lambda self: self.wire)
    @rule()
    def deliver(self):
        engine, n = self.wire.pop(0)
        self.follower.live(n, engine=engine)

    @precondition(lambda self: self.wire and not self.sequence._unsure)
    @rule()
    def lose(self):
        self.wire.pop(0)

    @rule()
    def reconnect(self):
        while self.wire:
            self.deliver()
        self.follower.do(self.sequence.connected())
        self.answer = None

    @rule()
    def restart(self):
        while self.wire:
            self.deliver()
        self.engine, self.published = self.engine + 1, 0
        self.follower.do(self.sequence.connected())
        self.answer = None

    @precondition(lambda self: self.sequence.is_replaying)
    @rule(fails=st.booleans(), frames=st.integers(1, 8))
    def replay_some(self, fails, frames):
        if self.follower.asked is not None:
            first = max(self.follower.asked, self.published - self.buffered)
            self.answer = list(range(first, self.published))
            self.follower.asked = None
        for _ in range(frames):
            if not self.answer:
                self.follower.do(self.sequence.replay_over("timeout" if fails else None))
                return
            n = self.answer.pop(0)
            self.follower.do(self.sequence.replayed(n, payload(self.engine, n)))
            if self.follower.asked is not None or not self.sequence.is_replaying:
                return

    @invariant()
    def what_is_credited_is_one_unbroken_stretch_of_the_engine_that_runs(self):
        if not hasattr(self, "follower"):
            return
        self.sequence.check()
        credited = self.follower.applied[self.follower.since :]
        if self.sequence.is_replaying or not credited:
            return
        assert {engine for engine, _ in credited} == {self.engine}
        numbers = [n for _, n in credited]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    @rule()
    def quiet_down(self):
        self.publish(1)
        while self.wire or self.sequence.is_replaying:
            if self.wire:
                self.deliver()
            else:
                self.replay_some(fails=False, frames=100)
        assert self.follower.applied[-1] == (self.engine, self.published - 1)


TestSequenceAgainstAnEngine = SequenceMachine.TestCase
TestSequenceAgainstAnEngine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def test_the_history_is_asked_for_first_and_live_batches_wait_for_it():
    follower = connected()

    follower.live(2, 3)
    waiting = follower.numbers
    follower.replay(0, 1, 2)

    assert waiting == []
    assert follower.numbers == [0, 1, 2, 3]
    assert follower.sequence.trust is Trust.LIVE


def test_a_gap_is_filled_from_the_replay_before_what_followed_it():
    follower = connected()
    follower.replay(0, 1)

    follower.live(4, 5)
    asked = follower.asked
    follower.replay(1, 2, 3, 4)

    assert asked == 1
    assert follower.numbers == [0, 1, 2, 3, 4, 5]
    assert follower.sequence.trust is Trust.LIVE


def test_a_gap_that_stays_makes_the_view_suspect_before_what_followed_it():
    follower = connected()
    follower.replay(0, 1)

    follower.live(5)
    follower.replay(4, 5)

    assert follower.sequence.trust is Trust.SUSPECT
    assert follower.numbers[follower.since :] == [4, 5]


def test_a_gap_without_a_replay_socket_makes_the_view_suspect():
    follower = connected(can_replay=False)

    follower.live(7, 8, 11, 12)

    assert follower.sequence.trust is Trust.SUSPECT
    assert follower.numbers[follower.since :] == [11, 12]


def test_history_from_before_the_first_batch_seen_is_no_gap():
    follower = connected()

    follower.replay(900, 901)

    assert follower.sequence.trust is Trust.LIVE
    assert follower.numbers == [900, 901]


def test_a_number_that_goes_back_is_a_new_engine_and_forgets_all():
    follower = connected(can_replay=False)
    follower.live(899, 900)

    follower.live(0, engine=1)

    assert follower.applied == [(1, 0)]
    assert follower.sequence.trust is Trust.LIVE


def test_an_echo_of_what_the_replay_brought_is_no_restart():
    follower = connected()
    follower.replay(0, 1, 2)

    follower.live(1, 2, 3)

    assert follower.numbers == [0, 1, 2, 3]


def test_a_restart_that_looks_like_an_echo_is_told_by_its_content():
    follower = connected()
    follower.replay(0, 1, 2)

    follower.live(0, 1, engine=1)

    assert follower.applied == [(1, 0), (1, 1)]


def test_a_new_engine_that_is_idle_is_found_out_on_reconnecting():
    follower = connected()
    follower.replay(0, 1, 2)

    follower.do(follower.sequence.connected())
    follower.replay()

    assert follower.applied == []
    assert follower.asked == 0
    assert follower.sequence.trust is Trust.REPLAYING


def test_a_new_engine_that_is_as_far_as_the_old_one_is_found_out_by_its_last_batch():
    follower = connected()
    follower.replay(0, 1)

    follower.do(follower.sequence.connected())
    follower.replay(1, engine=1)
    follower.replay(0, 1, engine=1)

    assert follower.applied == [(1, 0), (1, 1)]


def test_without_a_replay_the_next_batch_in_turn_clears_the_doubt_of_a_reconnect():
    follower = connected(can_replay=False)
    follower.live(4)

    follower.do(follower.sequence.connected())
    doubt = follower.sequence.trust
    follower.live(5)

    assert (doubt, follower.sequence.trust) == (Trust.SUSPECT, Trust.LIVE)


def test_a_reconnect_does_not_lift_a_suspicion_that_had_its_own_reason():
    follower = connected(can_replay=False)
    follower.live(4, 6)

    follower.do(follower.sequence.connected())
    follower.live(7)

    assert follower.sequence.trust is Trust.SUSPECT


def test_a_clear_lifts_every_suspicion():
    follower = connected(can_replay=False)
    follower.live(4, 6)

    follower.do(follower.sequence.cleared())

    assert follower.sequence.trust is Trust.LIVE


def test_a_batch_that_cannot_be_understood_makes_the_view_suspect():
    follower = connected(can_replay=False)
    follower.live(0)

    follower.do(follower.sequence.lost("unreadable"))

    assert follower.sequence.trust is Trust.SUSPECT


def test_too_many_batches_held_end_the_replay(monkeypatch):
    monkeypatch.setattr(kv_sequence, "HELD_LIMIT", 3)
    follower = connected()
    follower.replay(0)

    follower.live(2, 3, 4, 5)

    assert not follower.sequence.is_replaying
    assert follower.sequence.trust is Trust.SUSPECT
    assert follower.numbers[follower.since :] == [2, 3, 4, 5]
