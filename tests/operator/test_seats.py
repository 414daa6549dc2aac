"""Several operators at one table: nothing is done by two, and nobody's share stays undone."""

from functools import partial

from hypothesis import example, given, settings
from hypothesis import strategies as st
from leadsman_operator.lease import LeaseTiming
from leadsman_operator.seats import SEATS, Seat, Shares, Sitter

TIMING = LeaseTiming(duration=3, leading=2.2, renew=0.6)
NAMES = [f"endpoint-{number}" for number in range(12)]


class Table:
    """Leases on an API server, and replicas that read and write them in two requests."""

    def __init__(self, replicas):
        self.seats, self.versions = {}, {}
        self.sitters = [Sitter(name=f"r{number}", timing=TIMING) for number in range(replicas)]
        self.doing = [set() for _ in self.sitters]
        self.now = 0.0

    def attempt(self, who, *, late=None):
        """Let one read, make way and write; late: what happens before its write lands."""
        sitter, asked_at = self.sitters[who], self.now
        sitter.read(dict(self.seats), self.now)
        versions = dict(self.versions)
        self.fit(who)
        claim = sitter.claim(self.now, str(self.now))
        if late is not None:
            late()
        if claim is not None and versions.get(claim[0]) == self.versions.get(claim[0]):
            self.write(*claim)
            sitter.written(claim[0], asked_at=asked_at, now=self.now)
        self.fit(who)

    def write(self, seat, said):
        self.seats[seat] = said
        self.versions[seat] = self.versions.get(seat, 0) + 1

    def fit(self, who):
        shares = self.sitters[who].shares(self.now)
        self.doing[who] = {name for name in NAMES if shares.owns(name)}

    def resign(self, who):
        self.doing[who] = set()
        given_back = self.sitters[who].resign()
        if given_back is not None:
            self.write(*given_back)

    def pass_time(self, seconds):
        """Time passes; whoever's seat runs out lets go by itself."""
        self.now += seconds
        for who, sitter in enumerate(self.sitters):
            if sitter.left(self.now) <= 0:
                self.doing[who] = set()

    def turns(self, seconds, *, but=()):
        """Let everybody turn as often as they would."""
        until = self.now + seconds
        while self.now < until:
            for who in range(len(self.sitters)):
                if who not in but:
                    self.attempt(who)
            self.pass_time(0.1)

    def check(self):
        done = [name for doing in self.doing for name in doing]
        assert len(done) == len(set(done)), "something is done by two"


def meanwhile(table, other):
    table.pass_time(1.0)
    table.attempt(other)


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["attempt", "attempt", "attempt", "late", "fit", "resign"]),
        st.integers(0, 3),
        st.integers(0, 3),
        st.floats(0, 2),
    ),
    max_size=80,
)


WRITTEN_TOO_LATE = [
    ("attempt", 1, 0, 0.0),
    ("attempt", 0, 0, 0.0),
    ("attempt", 0, 0, 1.25),
    ("attempt", 0, 0, 0.5),
    ("attempt", 0, 0, 0.25),
    ("late", 1, 0, 0.0),
]
"""A renewal lands once its seat has run out, and another has taken the share."""


@example(WRITTEN_TOO_LATE)
@given(MOVES)
def test_nothing_is_ever_done_by_two(moves):
    table = Table(4)

    for what, who, other, pause in moves:
        table.pass_time(pause)
        table.check()
        match what:
            case "late":
                table.attempt(who, late=None if other == who else partial(meanwhile, table, other))
            case "fit":
                table.fit(who)
            case "resign":
                table.resign(who)
            case _:
                table.attempt(who)
        table.check()


@settings(max_examples=30)
@given(MOVES, st.sets(st.integers(0, 3), max_size=3))
def test_whatever_happened_soon_everything_is_done_by_those_who_are_left(moves, dead):
    table = Table(4)
    for what, who, _, pause in moves:
        table.pass_time(pause)
        (table.resign if what == "resign" else table.attempt)(who)

    table.turns(2 * TIMING.duration + 2 * TIMING.renew, but=dead)

    table.check()
    assert set().union(*table.doing) == set(NAMES)
    assert all(not table.doing[who] for who in dead)


def test_the_share_of_one_that_dies_is_taken_over_within_its_lease():
    table = Table(3)
    table.turns(3.0)
    before = [set(doing) for doing in table.doing]

    table.turns(TIMING.duration + TIMING.renew, but=[1])

    table.check()
    assert before[1]
    assert before[0] <= table.doing[0]
    assert before[2] <= table.doing[2]
    assert table.doing[0] | table.doing[2] == set(NAMES)


def test_one_that_sits_down_begins_as_soon_as_the_others_made_way():
    table = Table(2)
    table.turns(3.0, but=[1])
    assert table.doing[0] == set(NAMES)

    for _ in range(2):
        table.attempt(1)
        table.attempt(0)
    table.attempt(1)

    table.check()
    assert table.doing[1]


def test_one_that_knows_of_no_answer_waits_as_long_as_a_silent_one_may_go_on():
    table = Table(2)
    table.turns(3.0, but=[1])

    for _ in range(31):
        table.attempt(1)
        assert not table.doing[1] or not table.doing[0]
        table.pass_time(0.1)
    table.attempt(1)

    assert table.doing[1] == set(NAMES)


def test_whoever_gives_its_seat_back_is_replaced_at_once():
    table = Table(2)
    table.turns(3.0)

    table.resign(0)
    table.attempt(1)

    assert table.doing[1] == set(NAMES)


def test_where_all_seats_are_taken_one_more_does_nothing():
    sitter = Sitter(name="late", timing=TIMING)
    taken = {}
    for seat in range(SEATS):
        other = Sitter(name=f"r{seat}", timing=TIMING)
        other.read(dict(taken), 0.0)
        at, said = other.claim(0.0, "now")
        taken[at] = said

    sitter.read(taken, 0.0)

    assert len(taken) == SEATS
    assert sitter.claim(0.0, "now") is None
    assert sitter.shares(0.0) == Shares()
    assert not sitter.shares(0.0).owns("anything")


def test_shares_differ_only_by_what_the_one_that_left_had():
    all_three = frozenset({0, 1, 2})
    with_all = {n: [s for s in all_three if owns(s, all_three, n)] for n in NAMES}
    without = {n: [s for s in (0, 2) if owns(s, {0, 2}, n)] for n in NAMES}

    assert all(len(owners) == 1 for owners in [*with_all.values(), *without.values()])
    assert all(with_all[n] == without[n] for n in NAMES if with_all[n] != [1])


def owns(seat, taken, name):
    return Shares(mine=seat, taken=frozenset(taken) - {seat}).owns(name)


def test_a_seat_says_whom_it_sees():
    table = Table(2)
    table.turns(1.0)

    assert table.seats[0].sees == {table.seats[1].spec.holder_identity}
    assert Seat().sees == frozenset()
