import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from leadsman_operator.shared_names import SharedBlockNames

names = st.one_of(st.integers(0, 2**64 - 1), st.binary(min_size=8, max_size=32))
told = st.lists(st.tuples(names, st.integers(0, 2**64 - 1)), max_size=600)


def note(known, pairs):
    keys = np.array([key for _, key in pairs], dtype=np.uint64)
    known.note([name for name, _ in pairs], keys)


@given(st.lists(told, max_size=3))
def test_who_hears_all_that_was_told_knows_every_name(batches):
    ours, theirs = SharedBlockNames(), SharedBlockNames()

    for pairs in batches:
        note(ours, pairs)
        for piece in ours.untold():
            theirs.hear(piece)

    assert theirs._young == ours._young
    assert list(theirs.untold()) == []


@given(told)
def test_a_piece_that_was_not_taken_is_told_again(pairs):
    ours, theirs = SharedBlockNames(), SharedBlockNames()
    note(ours, pairs)

    next(ours.untold(), None)
    for piece in ours.untold():
        theirs.hear(piece)

    assert theirs._young == ours._young


def test_what_was_told_is_not_told_again():
    ours = SharedBlockNames()
    note(ours, [(1, 2)])
    assert len(list(ours.untold())) == 1

    note(ours, [(1, 2)])

    assert list(ours.untold()) == []
