"""Requests in flight are counted until their end is seen, however long that takes."""

from leadsman.prediction import Admitted
from leadsman.records import Ended, Outcome
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_extproc.grants import Grants

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
