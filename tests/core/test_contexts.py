"""What sessions need of caches at most, beside a walk through all their growth."""

from hypothesis import given
from hypothesis import strategies as st
from leadsman.contexts import Contexts

SIZES = st.lists(st.integers(0, 500), max_size=12)


def walked(sizes, final):
    """Let all grow by one, step by step; who has come to the final length leaves."""
    most, now = sum(sizes), [size for size in sizes if size <= final]
    while now:
        most = max(most, sum(now))
        now = [size + 1 for size in now if size < final]
    return most


@given(SIZES, st.integers(1, 600))
def test_the_most_is_what_a_walk_through_all_growth_finds(sizes, final):
    contexts = Contexts()
    contexts.ended(final)

    assert contexts.most(sizes) == walked(sizes, final)


@given(SIZES, st.integers(0, 500), st.integers(1, 600))
def test_one_more_session_never_needs_less(sizes, more, final):
    contexts = Contexts()
    contexts.ended(final)

    assert contexts.most([*sizes, more]) >= contexts.most(sizes)
