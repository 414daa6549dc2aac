"""How goals are measured: sides of the bound by hand-made timelines, tenants apart, speed."""

from types import SimpleNamespace

import pytest
from leadsman.prediction import Admitted, Reason, Refused
from leadsman.records import Outcome
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_bench import contest
from leadsman_bench.contest import entered, run
from leadsman_bench.goals import bounds, fairness, speed
from leadsman_bench.tasks import Call, Task
from leadsman_bench.traces import TraceRequest
from leadsman_bench.virtual import Offer, Stream

WORKER = WorkerId("w")


def offer(name, at, bound):
    request = Request(
        id=RequestId(name), model="m", prompt_tokens=8, arrived_at=at, max_queue_wait=bound
    )
    return Offer(request=request, output_tokens=1)


def served(at, wait, *, bound=None, because="cheapest", outcome=Outcome.FINISHED):
    """Make a stream that its worker began with so long after it was sent."""
    one = offer(f"s{at}", at, bound)
    return Stream(
        offer=one,
        admitted=Admitted(
            request=one.request.id, worker=WORKER, endpoint="e", prediction=None, because=because
        ),
        block_size=16,
        sent_at=at,
        started_at=at + wait,
        outcome=outcome,
    )


def refused(at, bound, reason=Reason.WOULD_WAIT_TOO_LONG):
    one = offer(f"r{at}", at, bound)
    said = Refused(
        request=one.request.id,
        reason=reason,
        status=429,
        retry_after=1.0,
        should_retry=True,
        candidates=(SimpleNamespace(worker=WORKER),),
    )
    return one, said


def test_who_waited_longer_than_its_bound_was_underpredicted():
    streams = [served(10, 4.9, bound=5), served(20, 5.1, bound=5), served(30, 99)]

    found = bounds.sides(streams, [], began=0.0)

    assert (found.admitted, found.underpredicted) == (2, 1)


def test_what_came_before_the_count_began_or_broke_is_no_evidence_of_an_admission():
    streams = [served(1, 9, bound=5), served(20, 9, bound=5, outcome=Outcome.CLIENT_GONE)]

    found = bounds.sides(streams, [], began=5.0)

    assert (found.admitted, found.underpredicted) == (0, 0)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        pytest.param(3.0, (1, 1, 0), id="the-next-one-began-in-time"),
        pytest.param(30.0, (0, 0, 1), id="between-the-two-nobody-knows"),
    ],
)
def test_a_refusal_is_judged_by_who_was_served_after_it(after, told):
    streams = [served(10, 1.0), served(12, after)]

    found = bounds.sides(streams, [refused(11, 5)], began=0.0)

    assert (found.refused, found.false_alarms, found.unknown) == told


def test_a_refusal_was_right_where_the_one_before_it_began_too_late():
    streams = [served(10, 9.0), served(12, 30.0)]

    found = bounds.sides(streams, [refused(11, 5)], began=0.0)

    assert (found.refused, found.false_alarms, found.unknown) == (1, 0, 0)


def test_refusals_for_other_reasons_are_not_judged():
    streams = [served(10, 1.0), served(12, 1.0)]

    found = bounds.sides(streams, [refused(11, 5, Reason.OVER_SHARE)], began=0.0)

    assert (found.refused, found.unknown) == (0, 0)


def test_probes_are_counted_apart_from_what_was_admitted():
    streams = [served(10, 1.0, bound=5, because="probe"), served(20, 9.0, bound=5, because="probe")]

    found = bounds.sides(streams, [], began=0.0)

    assert (found.admitted, found.probes, found.probes_in_time) == (0, 2, 1)
    assert found.probe_share == 0.5


def test_the_two_tenants_prompts_share_nothing():
    row = TraceRequest(at=0.0, input_tokens=9, output_tokens=1, pieces=(0, 7))
    task = Task(name="r1", calls=(Call(row=row),))

    quiet, noisy = (fairness._owned(task, tenant) for tenant in ("quiet", "noisy"))

    assert (quiet.tenant, noisy.tenant) == ("quiet", "noisy")
    assert quiet.name != noisy.name
    assert not {*quiet.calls[0].row.pieces} & {*noisy.calls[0].row.pieces}


def test_speed_counts_virtual_time_after_the_start():
    start = [(float(at), 50.0 + at) for at in range(speed.START)]
    counted = [(100.0, 200.0), (700.0, 212.0)]

    assert speed._ratio(start + counted) == 50.0


def test_the_fleet_of_64_has_each_of_the_sixteen_four_times():
    names = [spec.name for spec in speed.fleet()]

    assert len(names) == len(set(names)) == 64
    assert len({name.partition("-")[2] for name in names}) == 16


def test_policies_are_entered_by_their_unit_and_once_more_with_holding():
    found = list(entered(["none", "predicted_wait/session"], hold=3.0))

    assert [one.name for one in found] == [
        "none",
        "none, held ≤ 3 s",
        "predicted_wait/session",
        "predicted_wait/session, held ≤ 3 s",
    ]
    assert [(one.budget.unit, one.budget.hold) for one in found] == [
        ("request", None),
        ("request", 3.0),
        ("session", None),
        ("session", 3.0),
    ]


def test_a_held_contestant_runs_and_serves_more_than_one_who_refuses_at_once():
    course = contest.Course(
        workload=contest.known_workload("a10"),
        per_s=16.0,
        seed=1,
        counted=20,
        warm_up=20,
        making=contest.known_workload("a10").making(1),
    )
    plain, held = entered(["predicted_wait"], hold=3.0)

    results = [run(course, one, contest.kinds()) for one in (plain, held)]

    assert all(result.calls == 20 for result in results)
    assert results[1].waits
