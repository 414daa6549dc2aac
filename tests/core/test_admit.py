"""Whether a request is admitted, and when a refused one is told to come back."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.admit import Excess, admit, bounds_of, excess, refuse
from leadsman.budget import LONGEST_RETRY_AFTER, Budget, BudgetError
from leadsman.candidates import Soundings
from leadsman.prediction import Reason
from leadsman.request import Request
from leadsman.returns import Returns
from leadsman.route import Choice
from leadsman.units import RequestId


def request(**wishes):
    return Request(id=RequestId("r"), model="m", prompt_tokens=1000, arrived_at=0.0, **wishes)


def missed_by(worker, budget=None, **wishes):
    asked, budget = request(**wishes), budget or Budget()
    prediction = worker.predict(worker.price(asked, 0.0), budget.confidence, 0.0)
    return excess(prediction, asked.waited_until(0.0), bounds_of(asked, budget))


def refused_by(candidates, budget=None, *, seed=0, **wishes):
    budget = budget or Budget()
    soundings = Soundings(request(**wishes), candidates, budget.confidence, now=0.0)
    missed = admit(soundings, Choice(index=0, because="cheapest"), budget)
    return refuse(missed, soundings, budget, Random(seed))


@given(st.floats(0.2, 400), st.floats(0, 50), st.floats(0, 100), st.floats(5, 300))
def test_a_busy_worker_is_held_to_waited_plus_wait_and_its_uncertainty(
    fake_worker, wait, off_by, waited, bound
):
    worker = fake_worker(name="w", wait=wait, off_by=off_by)

    missed = missed_by(worker, max_queue_wait=bound, waited=waited)

    assert (missed is not None) == (waited + wait + off_by > bound)


@given(st.floats(0, 300), st.floats(0, 50), st.floats(0.01, 300))
def test_a_wait_bound_says_nothing_of_own_prefill(fake_worker, prefill, wait, bound):
    short = fake_worker(name="w", wait=wait, prefill=0.0)
    long = fake_worker(name="w", wait=wait, prefill=prefill)

    missed = missed_by(long, Budget(max_queue_wait=bound))

    assert (missed is None) == (missed_by(short, Budget(max_queue_wait=bound)) is None)


def test_the_requests_own_bound_goes_before_the_budgets(fake_worker):
    worker = fake_worker(name="w", wait=20.0)
    budget = Budget(max_queue_wait=10.0, overload=15.0)

    strict, patient = missed_by(worker, budget), missed_by(worker, budget, max_queue_wait=60.0)

    assert strict.reason is Reason.WOULD_WAIT_TOO_LONG
    assert patient is None


def test_severe_overload_refuses_even_without_a_bound(fake_worker):
    worker = fake_worker(name="w", wait=200.0)

    calm, severe = missed_by(worker), missed_by(worker, Budget(overload=120.0))

    assert calm is None
    assert severe.reason is Reason.OVERLOADED


def test_a_ttft_objective_bounds_the_whole(fake_worker):
    worker = fake_worker(name="w", wait=2.0, prefill=2.0)

    kept, missed = (missed_by(worker, ttft_objective=bound) for bound in (4.5, 3.5))

    assert kept is None
    assert missed.reason is Reason.WOULD_MISS_TTFT
    assert missed.seconds == pytest.approx(0.5)


def test_an_unmeasured_worker_never_refuses_on_its_own(fake_worker):
    worker = fake_worker(name="w", wait=500.0, prefill=60.0, curve="unmeasured")

    missed = missed_by(worker, Budget(overload=10.0), max_queue_wait=5.0, ttft_objective=1.0)

    assert missed is None


def test_a_borrowed_curve_may_refuse(fake_worker):
    worker = fake_worker(name="w", wait=500.0, curve="borrowed")

    missed = missed_by(worker, max_queue_wait=5.0)

    assert missed is not None


def test_an_idle_worker_admits_whatever_its_busy_hours_were_like(fake_worker):
    worker = fake_worker(name="w", wait=0.0, off_by=30.0)

    missed = missed_by(worker, max_queue_wait=5.0, waited=40.0)

    assert missed is None


def test_a_worker_whose_slots_are_all_taken_is_not_idle(fake_worker):
    worker = fake_worker(name="w", wait=30.0, queued=0)

    missed = missed_by(worker, max_queue_wait=5.0)

    assert missed is not None


def test_another_worker_that_fits_is_taken_instead_of_refusing(fake_worker, candidates_of):
    cheapest = fake_worker(name="cheapest", wait=8.0, prefill=0.1)
    fitting = fake_worker(name="fitting", wait=0.0, prefill=20.0)
    soundings = Soundings(
        request(max_queue_wait=5.0), candidates_of([cheapest, fitting]), 0.9, now=0.0
    )

    choice = admit(soundings, Choice(index=0, because="home"), Budget())

    assert choice == Choice(index=1, because="cheapest")


def test_one_idle_worker_among_many_busy_ones_is_found(fake_worker, candidates_of):
    busy = [fake_worker(name=f"w{i}", wait=50.0 + i, prefill=0.1) for i in range(255)]
    idle = fake_worker(name="idle", prefill=80.0)
    soundings = Soundings(request(max_queue_wait=5.0), candidates_of([*busy, idle]), 0.9, now=0.0)

    choice = admit(soundings, Choice(index=0, because="cheapest"), Budget())

    assert choice.index == 255
    assert sum(worker.replays for worker in busy) == 1


def test_an_unmeasured_worker_is_found_behind_a_floor_that_nobody_measured(
    fake_worker, candidates_of
):
    busy = [fake_worker(name=f"w{i}", wait=50.0) for i in range(20)]
    unmeasured = fake_worker(name="new", wait=90.0, curve="unmeasured")
    soundings = Soundings(
        request(max_queue_wait=5.0), candidates_of([*busy, unmeasured]), 0.9, now=0.0
    )

    choice = admit(soundings, Choice(index=0, because="cheapest"), Budget())

    assert choice.index == 20


def test_an_unmeasured_worker_is_not_where_all_goes_that_fits_nowhere_else(
    fake_worker, candidates_of
):
    busy = fake_worker(name="busy", wait=50.0)
    crowded = fake_worker(name="new", wait=90.0, curve="unmeasured", queued_requests=4)
    soundings = Soundings(request(max_queue_wait=5.0), candidates_of([busy, crowded]), 0.9, now=0.0)

    missed = admit(soundings, Choice(index=1, because="cheapest"), Budget())

    assert missed.reason is Reason.WOULD_WAIT_TOO_LONG


@pytest.mark.parametrize(("wait", "is_refused"), [(40.0, False), (60.0, True)])
def test_where_nobody_is_measured_a_tenth_of_what_is_predicted_must_fit(
    fake_worker, candidates_of, wait, is_refused
):
    crowd = [
        fake_worker(name=f"w{i}", wait=wait, curve="unmeasured", queued_requests=20)
        for i in range(2)
    ]
    soundings = Soundings(request(max_queue_wait=5.0), candidates_of(crowd), 0.9, now=0.0)

    verdict = admit(soundings, Choice(index=0, because="cheapest"), Budget())

    assert isinstance(verdict, Excess) is is_refused


@given(st.lists(st.floats(6, 100), min_size=1, max_size=5), st.integers(0, 50))
def test_retry_after_is_the_least_excess_and_a_little_jitter(
    fake_worker, candidates_of, waits, seed
):
    workers = [fake_worker(name=f"w{i}", wait=wait) for i, wait in enumerate(waits)]
    workers.sort(key=lambda worker: worker.wait)

    refused = refused_by(candidates_of(workers), seed=seed, max_queue_wait=5.0)

    projected = max(min(waits) - 5.0, 1.0)
    assert projected <= refused.retry_after <= projected + max(1.0, 0.1 * projected)
    assert refused.should_retry
    assert refused.predicted_wait == min(waits)
    assert (refused.bound, refused.status) == (5.0, 429)


def test_beyond_what_clients_wait_they_are_told_to_fall_back(fake_worker, candidates_of):
    workers = [fake_worker(name="w", wait=5.0 + LONGEST_RETRY_AFTER + 1)]

    refused = refused_by(candidates_of(workers), max_queue_wait=5.0)

    assert math.isfinite(refused.retry_after)
    assert not refused.should_retry


def test_what_would_miss_its_objective_even_alone_is_not_asked_back(fake_worker, candidates_of):
    workers = [fake_worker(name="w", wait=0.5, prefill=9.0)]

    refused = refused_by(candidates_of(workers), ttft_objective=2.0)

    assert refused.reason is Reason.WOULD_MISS_TTFT
    assert not refused.should_retry


def test_a_worker_that_will_fit_goes_before_one_that_never_does(fake_worker, candidates_of):
    never = fake_worker(name="never", prefill=3.0)
    later = fake_worker(name="later", wait=9.0, prefill=1.0)

    refused = refused_by(candidates_of([never, later]), ttft_objective=2.0)

    assert refused.should_retry
    assert refused.predicted_wait == pytest.approx(10.0)


def test_the_soonest_fit_counts_and_not_the_home_that_was_chosen(fake_worker, candidates_of):
    home = fake_worker(name="home", wait=60.0, prefill=1.0)
    sooner = fake_worker(name="sooner", wait=15.0, prefill=80.0)

    refused = refused_by(candidates_of([home, sooner]), max_queue_wait=5.0)

    assert refused.predicted_wait == 15.0


def test_a_budget_may_forbid_retries(fake_worker, candidates_of):
    workers = [fake_worker(name="w", wait=9.0)]

    refused = refused_by(candidates_of(workers), Budget(should_retry=False, max_queue_wait=5.0))

    assert not refused.should_retry
    assert refused.retry_after >= 4.0


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 20)), min_size=1, max_size=200),
    st.integers(1, 20),
)
def test_no_second_is_promised_more_than_the_workers_can_do(bookings, workers):
    returns = Returns()

    backs = [returns.book(0.0, at, work=work, workers=workers) for at, work in bookings]

    assert all(back >= at for back, (at, _) in zip(backs, bookings, strict=True))
    assert all(returns.booked(second) <= workers + 1e-9 for second in range(122))


def test_earlier_bookings_do_not_put_off_what_fits_before_them():
    returns = Returns()
    for _ in range(50):
        returns.book(0.0, 60.0, work=1.0, workers=1)

    back = returns.book(0.0, 3.0, work=1.0, workers=1)

    assert back == 3.0


def test_passed_seconds_are_forgotten():
    returns = Returns()
    for at in range(100):
        returns.book(float(at), at + 1.0, work=0.5, workers=1)

    returns.book(500.0, 501.0, work=0.5, workers=1)

    assert returns.booked(100) == 0.0
    assert returns.booked(501) == 0.5


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_queue_wait", 0.0),
        ("max_queue_wait", math.nan),
        ("ttft", -1.0),
        ("overload", math.inf),
        ("confidence", 1.0),
        ("confidence", 0.3),
        ("retry_jitter", -0.1),
        ("probes", 1.5),
        ("session_move_cost", -1.0),
        ("mode", "maybe"),
        ("statuses", {Reason.OVERLOADED: 200}),
        ("statuses", {Reason.NO_ENDPOINT: 429}),
    ],
)
def test_a_wrong_budget_is_refused_by_the_name_of_its_field(field, value):
    with pytest.raises(BudgetError) as caught:
        Budget(**{field: value})

    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_budget_may_answer_overload_with_529_and_leave_the_rest():
    budget = Budget(statuses={Reason.OVERLOADED: 529})

    statuses = {reason: budget.status(reason) for reason in Reason}

    assert statuses == {
        Reason.WOULD_WAIT_TOO_LONG: 429,
        Reason.WOULD_MISS_TTFT: 429,
        Reason.OVER_SHARE: 429,
        Reason.OVERLOADED: 529,
        Reason.BURST_DEFERRED: 503,
        Reason.NO_ENDPOINT: 503,
    }
