"""Agents' tasks have the figures that their page says, whatever the seed."""

from itertools import islice
from statistics import mean

from hypothesis import given, settings
from hypothesis import strategies as st
from leadsman_bench import agents


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_a_task_is_forty_to_fifty_calls_that_build_on_each_other(seed):
    [task] = islice(agents.tasks(tasks_per_s=1.0, seed=seed), 1)

    assert agents.FEWEST_CALLS <= len(task.calls) <= agents.MOST_CALLS
    assert not task.calls[0].after
    for place, call in enumerate(task.calls):
        assert all(former < place for former in call.after)
        for former in call.after[:1]:
            before = task.calls[former].row
            shared = len(
                [1 for a, b in zip(before.pieces, call.row.pieces, strict=False) if a == b]
            )
            assert shared * agents.PIECE >= agents.SHARED


def test_the_main_line_repeats_all_that_came_before():
    [task] = islice(agents.tasks(tasks_per_s=1.0, seed=1), 1)
    last = task.calls[-1].row.pieces

    beginnings = [call.row.pieces == last[: len(call.row.pieces)] for call in task.calls]

    reads = agents.FILES
    assert beginnings.count(False) == reads


def test_the_same_seed_gives_the_same_tasks_and_tasks_share_only_their_instructions():
    one, again = (list(islice(agents.tasks(tasks_per_s=2.0, seed=7), 3)) for _ in range(2))

    first, second = (set(one[n].calls[-1].row.pieces) for n in (0, 1))

    assert one == again
    assert first & second == set(range(agents.SHARED // agents.PIECE))


def test_some_calls_go_out_at_once_and_some_are_given_up():
    some = list(islice(agents.tasks(tasks_per_s=1.0, seed=3), 30))
    calls = [call for task in some for call in task.calls]

    given_up = mean(call.hangs_up is not None for call in calls)

    assert any(len(call.after) > 1 for call in calls)
    assert abs(given_up - agents.GIVEN_UP) < 0.02
