from dataclasses import replace

import msgspec
import pytest
from leadsman.engine import SglangRules
from leadsman.records import WorkerSeen
from leadsman_operator.collectors import Found
from leadsman_operator.precedence import ranked
from leadsman_operator.status import budget_status, profile_status
from leadsman_operator.targets import targets_of
from leadsman_operator.views import PoolView

from tests.settings import SETTINGS

from .objects import budget, pod, pool, profile, world

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


SGLANG = replace(SETTINGS, sglang=SglangRules(max_prefill_tokens=8192))


def views_of(there, problems=None, settings=SETTINGS):
    """See every pool with one worker an endpoint; problems: by the endpoint's address."""
    problems = problems or {}
    views = {}
    for key, one in there.pools.items():
        targets = targets_of(there, one)
        found = {
            endpoint: Found(
                workers=(
                    WorkerSeen(
                        worker=endpoint.address,
                        endpoint=endpoint.address,
                        settings=settings,
                        ready=target.accepts and endpoint.address not in problems,
                    ),
                ),
                problem=problems.get(endpoint.address),
            )
            for endpoint, target in targets.items()
        }
        budgets = ranked(there, one)
        views[key] = PoolView(pool=one, targets=targets, budgets=budgets, found=found)
    return views


def told(there, name, problems=None):
    [one] = [each for each in there.budgets.values() if each.metadata.name == name]
    status = budget_status(one, there, views_of(there, problems), NOW)
    return status, {each.type: each for each in status.conditions}


def test_a_budget_that_applies_says_where_and_at_which_place():
    there = world(
        pools=[pool(), pool("other")],
        pods=[pod("a"), pod("b", "10.0.0.2", ready=False)],
        budgets=[budget("all"), budget("chats", poolRef={"name": "chat"})],
    )

    status, conditions = told(there, "all")

    assert [(one.name, one.precedence, one.budgets) for one in status.pools] == [
        ("chat", 2, 2),
        ("other", 1, 1),
    ]
    assert [(one.workers, one.ready_workers) for one in status.pools] == [(2, 1), (2, 1)]
    assert {name: one.status for name, one in conditions.items()} == {
        "Accepted": "True",
        "ResolvedRefs": "True",
        "Effective": "True",
        "EnginesReachable": "True",
    }


def test_a_budget_that_no_request_can_fall_under_says_which_one_takes_them():
    there = world(
        pools=[pool()],
        budgets=[
            budget("first", match={"models": ["m", "n"]}),
            budget("second", match={"models": ["m"]}, created=LATER),
        ],
    )

    _, conditions = told(there, "second")

    assert (conditions["Effective"].status, conditions["Effective"].reason) == (
        "False",
        "Overridden",
    )
    assert "in pool chat, first goes before it" in conditions["Effective"].message


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({"confidence": 1.0}, "Invalid", "confidence"),
        ({"policy": "queue_cap", "parameters": {"limt": 1.0}}, "InvalidPolicy", "limt"),
        ({"policy": "ours_alone", "parameters": {"most": 1.0}}, "Accepted", ""),
    ],
)
def test_a_budget_that_cannot_be_applied_as_it_is_written_says_why(spec, reason, said):
    there = world(pools=[pool()], budgets=[budget("b", **spec)])

    _, conditions = told(there, "b")

    accepted = conditions["Accepted"]
    assert (accepted.reason, accepted.status == "True") == (reason, reason == "Accepted")
    assert said in accepted.message


@pytest.mark.parametrize(
    ("spec", "reason", "said"),
    [
        ({"poolRef": {"name": "cht"}}, "PoolNotFound", "no InferencePool 'cht' in namespace"),
        ({"match": {"objectives": ["gold", "lead"]}}, "ObjectiveNotFound", "Objective lead in"),
    ],
)
def test_a_reference_that_leads_nowhere_is_named(spec, reason, said):
    there = world(pools=[pool()], budgets=[budget("b", **spec)], objectives=["gold"])

    _, conditions = told(there, "b")

    assert (conditions["ResolvedRefs"].status, conditions["ResolvedRefs"].reason) == (
        "False",
        reason,
    )
    assert said in conditions["ResolvedRefs"].message


def test_an_engine_that_cannot_be_used_is_told_with_its_pod_and_the_cause():
    there = world(
        pools=[pool()],
        pods=[pod(name, f"10.0.0.{place}") for place, name in enumerate("abcde", 1)],
        budgets=[budget("b")],
    )

    _, conditions = told(there, "b", {f"10.0.0.{n}:8000": "no answer" for n in range(1, 6)})

    assert conditions["EnginesReachable"].message == (
        "pod a, 10.0.0.1:8000: no answer; pod b, 10.0.0.2:8000: no answer;"
        " pod c, 10.0.0.3:8000: no answer; and 2 more"
    )


def test_a_pod_that_is_not_ready_yet_is_no_trouble():
    there = world(pools=[pool()], pods=[pod("a", ready=False)], budgets=[budget("b")])

    _, conditions = told(there, "b", {"10.0.0.1:8000": "connection refused"})

    assert conditions["EnginesReachable"].status == "True"


def test_a_condition_keeps_its_time_while_it_says_the_same():
    there = world(pools=[pool()], budgets=[budget("b")])
    before, _ = told(there, "b")
    again = budget("b", status=msgspec.to_builtins(before))

    after = budget_status(again, there, views_of(there), LATER)

    assert after == before


def test_a_condition_that_turns_is_stamped_anew():
    there = world(pools=[pool()], pods=[pod("a")], budgets=[budget("b")])
    before, _ = told(there, "b")
    again = budget("b", status=msgspec.to_builtins(before))

    after = budget_status(again, there, views_of(there, {"10.0.0.1:8000": "gone"}), LATER)

    times = {one.type: one.last_transition_time for one in after.conditions}
    assert times["EnginesReachable"] == LATER
    assert times["Accepted"] == NOW


def test_a_profile_says_what_was_found_in_the_pods_that_it_speaks_of():
    ours = profile("p", labels={"app": "chat", "gpu": "h200"})
    there = world(
        pools=[pool(ports=(8000, 8001))],
        pods=[pod("a", labels={"app": "chat", "gpu": "h200"}), pod("b", "10.0.0.2")],
        profiles=[ours],
    )

    status = profile_status(ours, views_of(there), NOW)

    assert (status.pods, status.workers) == (1, 2)
    assert [(one.worker, one.pod, one.num_blocks) for one in status.discovered] == [
        ("10.0.0.1:8000", "a", 100),
        ("10.0.0.1:8001", "a", 100),
    ]
    assert [(one.type, one.status) for one in status.conditions] == [("Discovered", "True")]


@pytest.mark.parametrize(
    ("pods", "problems", "reason"),
    [
        ([], {}, "NoPods"),
        ([pod("a")], {"10.0.0.1:8000": "max_num_seqs is not known"}, "EngineUnreachable"),
    ],
)
def test_a_profile_says_why_nothing_is_discovered(pods, problems, reason):
    one = profile("p")
    there = world(pools=[pool()], pods=pods, profiles=[one])

    [condition] = profile_status(one, views_of(there, problems), NOW).conditions

    assert (condition.status, condition.reason) == ("False", reason)


@pytest.mark.parametrize(
    ("engine", "reason"), [("SGLang", "Discovered"), ("vLLM", "AnotherEngine")]
)
def test_a_profile_says_where_another_engine_answers(engine, reason):
    one = profile("p", engine=engine)
    there = world(pools=[pool()], pods=[pod("a")], profiles=[one])

    [condition] = profile_status(one, views_of(there, settings=SGLANG), NOW).conditions

    assert condition.reason == reason
    assert ("a runs SGLang" in condition.message) == (engine == "vLLM")
