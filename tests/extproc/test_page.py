"""What a picker remembers for its page."""

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leadsman.prediction import Admitted, Prediction, Price, Reason, Refused
from leadsman.records import Outcome, Trust
from leadsman.request import Request
from leadsman.units import RequestId, WorkerId
from leadsman_extproc.grants import Grants, Usage
from leadsman_extproc.page import Recent


def request(name, **more):
    return Request(
        id=RequestId(name),
        model="m",
        prompt_tokens=40,
        arrived_at=1.0,
        keys={16: np.array([1, 2], np.uint64)},
        **more,
    )


def admitted(name):
    price = Price(
        worker=WorkerId("a"),
        queue_wait=2.0,
        own_prefill=1.0,
        cached_tokens=16,
        queued_tokens=5,
        queued_requests=1,
    )
    prediction = Prediction(
        price=price,
        confidence=0.9,
        queue_wait_bound=3.0,
        ttft_bound=4.0,
        curve="own",
        trust=Trust.LIVE,
        trust_reason="history is complete",
        state_age=0.1,
        block_size=16,
    )
    return Admitted(
        request=RequestId(name),
        worker=WorkerId("a"),
        endpoint="a:1",
        prediction=prediction,
        candidates=(prediction,),
    )


def refused(name):
    return Refused(
        request=RequestId(name),
        reason=Reason.OVERLOADED,
        status=429,
        retry_after=3.0,
        should_retry=True,
    )


def serve(recent, name, *, cached=16, moved=False):
    grants = Grants(emit=lambda record: None, on_end=recent.ended)
    recent.decided(request(name), admitted(name), 1.0)
    grant = grants.open(request(name), admitted(name), 1.0)
    if moved:
        grants.move(grant, (WorkerId("b"), "b:1", 16), 1.5)
    grants.see(grant, 1, 4.5)
    grants.end(grant, Outcome.FINISHED, 9.0, Usage(cached_tokens=cached, completion_tokens=3))


def explained(recent, name):
    told = recent.explain(name)
    return None if told is None else msgspec.json.decode(told)


@pytest.mark.parametrize(("cached", "matched"), [(16, True), (31, True), (32, False), (None, None)])
def test_an_outcome_becomes_a_point(cached, matched):
    recent = Recent(epoch=lambda: 1000.0)

    serve(recent, "r", cached=cached)

    [point] = recent.history.news()
    assert (point.request, point.worker, point.at) == ("r", "a", 1009.0)
    assert (point.predicted, point.actual) == (3.0, 3.5)
    assert (point.predicted_wait, point.wait) == (2.0, 2.5)
    assert point.matched is matched


def test_a_request_that_another_worker_served_is_no_point():
    recent = Recent()

    serve(recent, "r", moved=True)

    assert recent.history.news() == ()


def test_the_screen_on_a_decision_says_what_came_of_it():
    recent = Recent()

    serve(recent, "r")

    told = explained(recent, "r")
    assert told["verdict"].startswith("Sent to a")
    assert told["then"][0] == (
        "Then: finished, first token after 3.50 s (500 ms later than predicted)."
    )


def test_refusals_are_counted_and_found_by_their_reason():
    recent = Recent(epoch=lambda: 0.0)

    recent.decided(request("x"), refused("x"), 5.0)
    serve(recent, "y")

    assert [(b.admitted, b.refused) for b in recent.history.buckets()] == [(1, {"overloaded": 1})]
    assert [found.request for found in recent.find("OVERL")] == ["x"]
    assert [found.request for found in recent.find("")] == ["y", "x"]
    assert recent.find("nothing") == ()


def test_names_are_hashed_as_in_records():
    recent = Recent()

    recent.decided(request("x", tenant="acme", session="s-1"), refused("x"), 5.0)

    told = recent.explain("x")
    assert b"tenant" in told
    assert b"acme" not in told
    assert b"s-1" not in told


@given(st.integers(0, 2**32), st.integers(1, 20_000))
def test_what_is_remembered_is_bounded_and_the_latest(seed, most):
    rng, recent, asked = Random(seed), Recent(most_bytes=most), []

    for _ in range(30):
        name = f"r{rng.randrange(20)}"
        recent.decided(request(name), rng.choice([admitted, refused])(name), 1.0)
        asked = [*(one for one in asked if one != name), name]
        recent.check()

    kept = [name for name in asked if recent.explain(name) is not None]
    assert kept == asked[len(asked) - len(kept) :]
