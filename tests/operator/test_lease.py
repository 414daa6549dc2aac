from hypothesis import given
from hypothesis import strategies as st
from leadsman_operator.lease import Candidate, LeaseSpec, LeaseTiming

TIMING = LeaseTiming(duration=4, leading=2.7, renew=0.8)
SLACK = 0.002
"""The shortest pause, and what sums of floats are off."""
OLD = LeaseSpec(holder_identity="old", lease_duration_seconds=4, renew_time="then")


class Store:
    """A Lease on an API server: who writes must have read what is there."""

    def __init__(self, lease=None):
        self.lease = lease
        self.version = 0

    def attempt(self, candidate, began, asked, wrote):
        """Let a candidate read, then write; the two may be apart, and another come between."""
        read, version = self.lease, self.version
        claim = candidate.claim(read, asked, str(wrote))

        def write():
            if claim is not None and version == self.version:
                self.lease, self.version = claim, version + 1
                candidate.held(began)

        return write


# Who acts, how long after the one before, how long its request takes, and when its write lands.
steps = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0, 6), st.floats(0, 1), st.booleans()), max_size=60
)


@given(steps)
def test_there_are_never_two_leaders(moves):
    candidates = [Candidate(name=str(n), timing=TIMING) for n in range(3)]
    store, now, late = Store(), 0.0, []

    for who, pause, delay, is_late in moves:
        now += pause
        assert sum(one.leads(now) for one in candidates) <= 1
        write = store.attempt(candidates[who], now, now, now + delay)
        if is_late:
            late.append(write)
        else:
            write()
            while late:
                late.pop()()
        assert sum(one.leads(now) for one in candidates) <= 1


def test_a_lease_that_nobody_holds_is_taken_at_once():
    candidate, store = Candidate(name="a", timing=TIMING), Store()

    store.attempt(candidate, 0.0, 0.0, 0.0)()

    assert candidate.leads(0.0)
    assert store.lease.holder_identity == "a"
    assert store.lease.lease_transitions == 1


def test_anothers_lease_is_left_alone_until_it_was_seen_unchanged_for_its_duration():
    candidate = Candidate(name="a", timing=TIMING)

    assert candidate.claim(OLD, 100.0, "now") is None
    assert candidate.claim(OLD, 103.9, "now") is None
    taken = candidate.claim(OLD, 104.0, "now")

    assert taken.holder_identity == "a"
    assert taken.acquire_time == "now"


def test_a_lease_that_is_renewed_meanwhile_is_waited_for_anew():
    candidate = Candidate(name="a", timing=TIMING)
    renewed = LeaseSpec(holder_identity="old", lease_duration_seconds=4, renew_time="later")

    candidate.claim(OLD, 100.0, "now")
    candidate.claim(renewed, 103.0, "now")

    assert candidate.claim(renewed, 106.9, "now") is None
    assert candidate.claim(renewed, 107.0, "now") is not None


@given(killed_at=st.floats(0, 20), began=st.floats(0, 20))
def test_the_lease_of_who_was_killed_is_taken_when_it_was_seen_to_run_out(killed_at, began):
    both = {name: Candidate(name=name, timing=TIMING) for name in ("killed", "other")}
    turns, store, now, renewed_at = {"killed": 0.0, "other": began}, Store(), 0.0, 0.0

    while not both["other"].leads(now):
        name = min(turns, key=turns.get)
        now = turns[name]
        if name == "killed" and now > killed_at:
            del turns[name]
            continue
        renewed_at = now if name == "killed" else renewed_at
        store.attempt(both[name], now, now, now)()
        turns[name] = now + both[name].pause(now)

    late = max(renewed_at, began) + TIMING.duration
    assert late <= now + SLACK
    assert now <= late + TIMING.look + SLACK


def test_who_cannot_renew_stops_leading_before_another_may_start():
    candidate, store = Candidate(name="a", timing=TIMING), Store()
    store.attempt(candidate, 0.0, 0.0, 0.0)()

    assert candidate.leads(TIMING.leading - 0.1)
    assert not candidate.leads(TIMING.leading)
    assert TIMING.leading < TIMING.duration


def test_who_cannot_renew_is_succeeded_only_once_it_reads_that_another_holds_the_lease():
    candidate, other, store = (
        Candidate(name="a", timing=TIMING),
        Candidate(name="b", timing=TIMING),
        Store(),
    )
    store.attempt(candidate, 0.0, 0.0, 0.0)()
    store.attempt(other, 0.0, 0.0, 0.0)()
    lapsed = TIMING.duration
    store.attempt(other, lapsed, lapsed, lapsed)()

    assert other.leads(lapsed)
    assert not candidate.leads(lapsed)
    assert not candidate.is_succeeded
    assert candidate.claim(store.lease, lapsed, "now") is None
    assert candidate.is_succeeded


def test_who_takes_a_lease_over_is_not_succeeded_by_who_held_it_before():
    candidate, store = Candidate(name="a", timing=TIMING), Store(OLD)
    store.attempt(candidate, 0.0, 0.0, 0.0)()
    store.attempt(candidate, 4.0, 4.0, 4.0)()

    assert candidate.leads(4.0)
    assert not candidate.is_succeeded


def test_a_lease_that_is_given_back_is_free():
    candidate, other, store = (
        Candidate(name="a", timing=TIMING),
        Candidate(name="b", timing=TIMING),
        Store(),
    )
    store.attempt(candidate, 0.0, 0.0, 0.0)()

    given_back = candidate.resign(store.lease)

    assert not candidate.leads(0.0)
    assert other.claim(given_back, 0.1, "now") is not None


def test_anothers_lease_is_not_given_back():
    assert Candidate(name="a", timing=TIMING).resign(OLD) is None
