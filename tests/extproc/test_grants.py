"""Requests in flight are counted until their end is seen, however long that takes."""

import pytest
from leadsman.budget import Budget
from leadsman.prediction import Admitted
from leadsman.records import Ended, Outcome
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_extproc.grants import Grants, granted

A, B = WorkerId("a:8000"), WorkerId("b:8000")
HOUR = 3600.0


def test_a_grant_of_any_age_counts_until_its_end_is_seen():
    told, over = [], []
    grants = Grants(emit=told.append, on_end=over.append)
    opened = [
        grants.open(
            Request(id=RequestId(name), model="m", prompt_tokens=9, arrived_at=0.0),
            Admitted(request=RequestId(name), worker=worker, endpoint=worker, prediction=None),
            0.0,
        )
        for name, worker in (("unary", A), ("stream", A), ("other", B))
    ]

    grants.see(opened[1], 1, HOUR)
    grants.move(opened[2], (A, "a:8000", 16), HOUR)
    counted = dict(grants.in_flight)
    grants.end(opened[0], Outcome.FINISHED, 9 * HOUR)
    grants.end(opened[0], Outcome.CLIENT_GONE, 9 * HOUR)
    grants.check()

    assert counted == {A: 3}
    assert dict(grants.in_flight) == {A: 2}
    assert [grant.request.id for grant in over] == ["unary"]
    ended = [one for one in told if isinstance(one, Ended) and one.worker == A]
    assert [(one.request, one.outcome) for one in ended] == [("unary", Outcome.FINISHED)]


@pytest.mark.parametrize(
    ("budget", "named"),
    [
        (Budget(), (None, None, None)),
        (Budget(name="b", shares={}), ("b", "acme", "s")),
        (Budget(name="b", unit="session"), ("b", "acme", "s")),
        (Budget(name="b", policy="dual_gate"), ("b", "acme", "s")),
        (None, (None, None, None)),
    ],
    ids=["remembers nothing", "shares", "sessions", "a policy", "no budget"],
)
def test_a_grant_names_whom_it_counts_for_only_where_somebody_counts(budget, named):
    grants = Grants(emit=lambda record: None, on_end=lambda grant: None)
    request = Request(
        id=RequestId("r"), model="m", prompt_tokens=9, arrived_at=0.0, tenant="acme", session="s"
    )
    admitted = Admitted(request=request.id, worker=A, endpoint=A, prediction=None, budget=budget)

    record = granted(grants.open(request, admitted, 0.0), 16, 0.0)

    assert (record.budget, record.tenant, record.session) == named
