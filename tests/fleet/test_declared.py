from hypothesis import given
from hypothesis import strategies as st
from leadsman.budget import Budget
from leadsman.declared import Declared, Scope, ScopedBudget
from leadsman.prediction import Reason
from leadsman_fleet import fleet_pb2 as pb
from leadsman_fleet.declared_codec import decode_declared, encode_declared

words = st.text(max_size=10)
seconds = st.floats(0.001, 1e6)
shares = st.floats(0, 1)
statuses = st.dictionaries(
    st.sampled_from([one for one in Reason if one is not Reason.NO_ENDPOINT]),
    st.integers(400, 599),
)
budgets = st.builds(
    Budget,
    name=words,
    max_queue_wait=st.none() | seconds,
    ttft=st.none() | seconds,
    confidence=st.floats(0.5, 1, exclude_max=True),
    overload=st.none() | seconds,
    statuses=statuses,
    should_retry=st.booleans(),
    retry_jitter=shares,
    mode=st.sampled_from(["enforce", "shadow", "off"]),
    session_move_cost=seconds,
    probes=shares,
    policy=words.filter(bool),
    parameters=st.dictionaries(words, st.floats(-1e6, 1e6), max_size=3),
    unit=st.sampled_from(["request", "session", "tenant"]),
    shares=st.none() | st.dictionaries(words, seconds, max_size=3),
    session_calls=st.integers(1, 10_000),
    session_idle=seconds,
    hold=st.none() | seconds,
)
some = st.none() | st.frozensets(words, max_size=3)
scopes = st.builds(
    Scope,
    models=some,
    tenants=some,
    objectives=some,
    headers=st.dictionaries(words, words, max_size=3),
)
declarations = st.builds(
    Declared,
    budgets=st.lists(st.builds(ScopedBudget, budget=budgets, scope=scopes), max_size=3).map(tuple),
    importance=st.dictionaries(words, st.integers(-(2**31), 2**31 - 1), max_size=3),
)


@given(declarations)
def test_what_is_declared_comes_back_as_it_was(declared):
    sent = encode_declared(declared).SerializeToString()

    assert decode_declared(pb.Declared.FromString(sent)) == (declared, 0)


def test_what_an_older_operator_does_not_tell_is_as_it_is_by_default():
    message = encode_declared(Declared(budgets=(ScopedBudget(budget=Budget()),)))
    for name in ("policy", "parameters", "unit", "shares", "session_calls", "session_idle"):
        message.budgets[0].budget.ClearField(name)

    declared, _ = decode_declared(message)

    assert declared.budgets[0].budget == Budget()


def test_a_budget_of_a_mode_that_is_not_known_is_skipped_and_counted():
    known, unknown = (ScopedBudget(budget=Budget(name=name)) for name in ("old", "new"))
    message = encode_declared(Declared(budgets=(unknown, known)))
    message.budgets[0].budget.mode = "haggle"

    declared, skipped = decode_declared(message)

    assert declared == Declared(budgets=(known,))
    assert skipped == 1


def test_a_status_for_a_reason_that_is_not_known_is_left_out():
    message = encode_declared(Declared(budgets=(ScopedBudget(budget=Budget()),)))
    message.budgets[0].budget.statuses["moon_is_full"] = 418

    [one], skipped = decode_declared(message)[0].budgets, decode_declared(message)[1]

    assert one.budget == Budget()
    assert skipped == 0
