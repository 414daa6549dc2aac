from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.prediction import Reason
from leadsman_operator.objects import Key
from leadsman_operator.precedence import declared, importance_of, ranked, read_budget

from .objects import NAMESPACE, budget, budgets, objective, pool, world

POOL = pool()


def order(*some):
    return [one.key.name for one in ranked(world(pools=[POOL], budgets=some), POOL)]


LADDER = [
    budget("tenant", match={"tenants": ["t"]}),
    budget("objective", match={"objectives": ["o"]}),
    budget("two headers", match={"headers": [{"name": n, "value": "v"} for n in "ab"]}),
    budget("header", match={"headers": [{"name": "h", "value": "v"}]}),
    budget("model", match={"models": ["m"]}),
    budget("pool", poolRef={"name": "chat"}),
    budget("old"),
    budget("a new one", created="2026-01-02T00:00:00Z"),
    budget("b new one", created="2026-01-02T00:00:00Z"),
]


@given(st.permutations(LADDER))
def test_what_says_more_of_the_caller_goes_before_what_says_more_of_the_place(some):
    assert order(*some) == [one.metadata.name for one in LADDER]


@given(st.lists(budgets, max_size=5), st.randoms())
def test_the_order_does_not_depend_on_the_order_in_which_they_were_seen(some, rng):
    some = list(world(budgets=some).budgets.values())
    shuffled = rng.sample(some, len(some))

    assert order(*shuffled) == order(*some)


@given(st.lists(budgets, max_size=5))
def test_an_overridden_budget_is_one_that_an_earlier_one_covers(some):
    found = ranked(world(pools=[POOL], budgets=some), POOL)

    for place, one in enumerate(found):
        earlier = [
            other.key for other in found[:place] if other.scoped.scope.covers(one.scoped.scope)
        ]
        assert one.overridden_by == (earlier[0] if earlier else None)


@given(st.lists(budgets, max_size=5))
def test_only_budgets_of_the_pool_or_of_every_pool_apply(some):
    found = {one.key for one in ranked(world(pools=[POOL], budgets=some), POOL)}

    there = world(budgets=some).budgets
    assert found == {
        key
        for key, one in there.items()
        if one.spec.pool_ref is None or one.spec.pool_ref.name == "chat"
    }


def test_a_budget_of_another_namespace_does_not_apply():
    elsewhere = pool(namespace="elsewhere")

    assert ranked(world(budgets=[budget("b")]), elsewhere) == ()


def test_a_budget_that_states_nothing_is_the_cores_default():
    read = read_budget(budget("default"))

    assert read.budget == Budget()


def test_a_budget_is_read_whole():
    one = budget(
        "b",
        maxQueueWait="1m30s",
        ttft="2s",
        overload="2m",
        confidence=0.95,
        statuses={"overloaded": 529},
        shouldRetry=False,
        retryJitter=0.2,
        sessionMoveCost="500ms",
        probes=0.01,
    )

    [scoped] = declared(ranked(world(budgets=[one]), POOL), {}).budgets

    assert scoped.budget == Budget(
        name="b",
        max_queue_wait=90.0,
        ttft=2.0,
        overload=120.0,
        confidence=0.95,
        statuses=Budget().statuses | {Reason.OVERLOADED: 529},
        should_retry=False,
        retry_jitter=0.2,
        session_move_cost=0.5,
        probes=0.01,
    )


def test_an_objective_is_as_important_as_its_priority_says_in_its_pool_alone():
    mine, others = {"name": "chat"}, {"name": "other"}
    objectives = {
        "gold": objective("gold", priority=10, poolRef=mine),
        "batch": objective("batch", priority=-1, poolRef=mine),
        "plain": objective("plain", poolRef=mine),
        "foreign": objective("foreign", priority=99, poolRef=others),
    }
    told = world(pools=[pool()])
    told = replace(told, objectives={Key(NAMESPACE, name): o for name, o in objectives.items()})

    assert importance_of(told, pool()) == {"gold": 10, "batch": -1, "plain": 0}
