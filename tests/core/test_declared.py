from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.declared import Declared, Scope, ScopedBudget
from leadsman.request import Request

WORDS = ["a", "b", "c"]
some = st.none() | st.frozensets(st.sampled_from(WORDS), min_size=1)
headers = st.dictionaries(st.sampled_from(WORDS), st.sampled_from(WORDS), max_size=3)
scopes = st.builds(Scope, models=some, tenants=some, objectives=some, headers=headers)
maybe = st.none() | st.sampled_from(WORDS)
requests = st.builds(
    Request,
    id=st.just("r"),
    model=st.sampled_from(WORDS),
    prompt_tokens=st.just(1),
    arrived_at=st.just(0.0),
    tenant=maybe,
    objective=maybe,
)
NOBODYS = Budget(name="nobody's")


@given(requests, headers)
def test_a_scope_without_conditions_holds_every_request(request, carried):
    assert Scope().holds(request, carried)


@given(scopes, requests, headers)
def test_each_condition_alone_can_keep_a_request_out(scope, request, carried):
    parts = [
        Scope(models=scope.models),
        Scope(tenants=scope.tenants),
        Scope(objectives=scope.objectives),
        *(Scope(headers={name: value}) for name, value in scope.headers.items()),
    ]

    assert scope.holds(request, carried) == all(part.holds(request, carried) for part in parts)


@given(scopes, scopes, requests, headers)
def test_a_scope_that_covers_another_holds_all_of_its_requests(wide, narrow, request, carried):
    if wide.covers(narrow) and narrow.holds(request, carried):
        assert wide.holds(request, carried)


@given(scopes)
def test_dropping_a_condition_covers_more(scope):
    for name, unconditional in [("models", None), ("tenants", None), ("headers", {})]:
        assert replace(scope, **{name: unconditional}).covers(scope)


@given(st.lists(scopes, max_size=4), requests, headers)
def test_a_request_takes_the_first_budget_that_it_is_in_the_scope_of(several, request, carried):
    budgets = tuple(
        ScopedBudget(budget=Budget(name=str(place)), scope=scope)
        for place, scope in enumerate(several)
    )

    found = Declared(budgets=budgets).budget_for(request, carried, NOBODYS)

    holding = [str(n) for n, scope in enumerate(several) if scope.holds(request, carried)]
    assert found.name == (holding[0] if holding else "nobody's")
